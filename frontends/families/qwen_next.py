"""Qwen3-Next and Qwen3.5: delta nets, and gated attention in every fourth layer.

Absent fields have the defaults of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Sublayer
from llmir.frontends.layers.linear_attention import DeltaNet
from llmir.frontends.layers.mlp import Mlp, Moe
from llmir.frontends.layers.parts import attention, decoder, draft, kinds, layer_pairs, layers, mlp
from llmir.frontends.layers.rope import multimodal_axes
from llmir.frontends.layers.state_config import qwen_delta

from .qwen import experts_of, mlps_of

_KINDS = ("linear_attention", "full_attention")
_APART = ("qkv", "z", "b", "a")
# Parts of a multi-token prediction layer: the layer, norms of embeddings and hidden states, projection, norm.
_DRAFT = ("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")


@family("Qwen3NextForCausalLM", "qwen3_next")
def qwen3_next(config: Config) -> Decoder:
    """Qwen3NextForCausalLM: two tensors store the projections of a delta net, ordered by key head."""
    mlps = mlps_of(config, _experts(config, 512, 10))
    return _decoder(config, "Qwen3NextForCausalLM", qwen_delta(config, ("qkvz", "ba"), by_head=True), mlps)


@family("Qwen3_5ForCausalLM", "qwen3_5_text")
@family("Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text")
def qwen3_5(config: Config) -> Decoder:
    """Qwen3_5ForCausalLM: one tensor stores a delta net's q, k and v, and each gate has a separate tensor."""
    mlps = [mlp(config)] * layers(config)
    return _later(config, "Qwen3_5ForCausalLM", mlps, 4)


@family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text")
@family("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text")
def qwen3_5_moe(config: Config) -> Decoder:
    """Qwen3_5MoeForCausalLM: Qwen3.5 with experts in every layer; a token's routing weights add up to 1."""
    config.unmodelled("norm_topk_prob", (None, True), "weights of experts that do not add up to one")
    config.unmodelled("decoder_sparse_step", (None, 1), "dense layers between")
    config.ignore("intermediate_size")  # the width of dense MLPs, which this model does not have
    mlps = [_experts(config, 256, 8)] * layers(config)
    return _later(config, "Qwen3_5MoeForCausalLM", mlps, 2)


def _later(config: Config, architecture: str, mlps: Sequence[Sublayer], kv_heads: int) -> Decoder:
    """Build Qwen3.5; some config fields only repeat the fixed behavior of the class."""
    config.unmodelled("mlp_only_layers", (None, []), "dense layers between")
    config.unmodelled("attn_output_gate", (None, True), "attention without a gate")
    config.unmodelled("mamba_ssm_dtype", (None, "float32"), "states of another type")
    config.ignore("mtp_use_dedicated_embeddings")
    multimodal_axes(config)
    return _decoder(config, architecture, qwen_delta(config, _APART, by_head=False), mlps, kv_heads)


def _experts(config: Config, count: int, chosen: int) -> Moe:
    width = config.assumed("shared_expert_intermediate_size", 512)
    shared = Mlp(width, module="mlp.shared_expert", block="shared_experts", prefix="shared_")
    return experts_of(config, count, chosen, 512, shared, normalize=True)


def _decoder(
    config: Config, architecture: str, keeps: DeltaNet, mlps: Sequence[Sublayer], kv_heads: int = 2
) -> Decoder:
    """Build a decoder whose norms store weights minus 1, except the norms after delta nets."""
    bias = config.flag("attention_bias", False)
    attends = attention(
        config,
        positions_default=32768,
        kv_default=kv_heads,
        head_dim_default=256,
        share_default=0.25,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
        gate="q_proj",
    )
    every = config.integer("full_attention_interval", 4)
    usual = (_KINDS[(i + 1) % every == 0] for i in range(layers(config)))
    mixers = (attends if kind == _KINDS[1] else keeps for kind in kinds(config, usual, *_KINDS))
    stack = layer_pairs(mixers, mlps)
    norm = Norm(config.number("rms_norm_eps", 1e-6), offset=1.0)
    own = draft(config, Layer(attends, mlps[-1]), "mtp_num_hidden_layers", _DRAFT)
    return decoder(config, architecture, stack, norm=norm, draft=own)
