"""LFM2 of Liquid AI, dense and with experts. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Norms, Sublayer
from llmir.frontends.layers.mamba import ShortConv
from llmir.frontends.layers.mlp import Mlp, Moe, Routing, expert_tensor_names
from llmir.frontends.layers.parts import attention, check_chosen, decoder, kinds, layer_pairs, layers

_NORMS = Norms("operator_norm", before_mlp="ffn_norm")
_MODULE, _MATRICES = "feed_forward", ("w1", "w3", "w2")


@family("Lfm2ForCausalLM", "lfm2")
def lfm2(config: Config) -> Decoder:
    """Lfm2ForCausalLM: short convolutions, and attention in the layers of `full_attn_idxs`."""
    every = range(layers(config))
    chosen = config.integers("full_attn_idxs", every)
    usual = ("full_attention" if i in chosen else "conv" for i in every)
    mlp = Mlp(_width(config), module=_MODULE, matrices=_MATRICES)
    return _decoder(config, "Lfm2ForCausalLM", usual, [mlp] * len(every))


@family("Lfm2MoeForCausalLM", "lfm2_moe")
def lfm2_moe(config: Config) -> Decoder:
    """Lfm2MoeForCausalLM: LFM2 with experts and sigmoid routing after the first layers."""
    correction = f"{_MODULE}.expert_bias" if config.flag("use_expert_bias", True) else ""
    normalize, scale = config.flag("norm_topk_prob", True), config.number("routed_scaling_factor", 1.0)
    experts = Moe(
        count=config.assumed("num_experts", 32),
        chosen=config.assumed("num_experts_per_tok", 4),
        intermediate=config.assumed("moe_intermediate_size", 1792),
        routing=Routing("sigmoid", normalize, scale, correction=correction),
        module=_MODULE,
        matrices=expert_tensor_names(*_MATRICES),
    )
    sparse = check_chosen(config, experts)
    dense = Mlp(config.assumed("intermediate_size", 7168), module=_MODULE, matrices=_MATRICES)
    first = config.integer("num_dense_layers", 2, minimum=0)
    mlps = [dense if i < first else sparse for i in range(layers(config))]
    return _decoder(config, "Lfm2MoeForCausalLM", (), mlps)


def _decoder(config: Config, architecture: str, usual: Iterable[str], mlps: Sequence[Sublayer]) -> Decoder:
    """A decoder with mixers by `layer_types`; the default is `usual`."""
    attends = attention(
        config,
        positions_default=128_000,
        kv_default=8,
        theta_default=1e6,
        qk_norm="head",
        matrices=("q_proj", "k_proj", "v_proj", "out_proj"),
        qk_norms=("q_layernorm", "k_layernorm"),
    )
    bias = config.flag("conv_bias", False)
    conv = ShortConv(config.integer("hidden_size"), config.integer("conv_L_cache", 3), bias)
    own = kinds(config, usual, "conv", "full_attention")
    stack = layer_pairs((conv if kind == "conv" else attends for kind in own), mlps, _NORMS)
    norm, names = Norm(config.number("norm_eps", 1e-5)), CheckpointNames(norm="model.embedding_norm")
    tied = config.flag("tie_embedding", True)
    return decoder(config, architecture, stack, norm=norm, tied_default=tied, names=names)


def _width(config: Config) -> int:
    """The MLP width: 2/3 of the field, rounded up, unless `block_auto_adjust_ff_dim` is off."""
    width = config.integer("block_ff_dim", config.integer("intermediate_size", 12288))
    factor, step = config.number("block_ffn_dim_multiplier", 1.0), config.integer("block_multiple_of", 256)
    adjusted = -(-int(factor * int(2 * width / 3)) // step) * step
    return adjusted if config.flag("block_auto_adjust_ff_dim", True) else width
