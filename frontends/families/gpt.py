"""GPT-2 and 3, GPT-J, CodeGen, StarCoder. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention, Rope
from llmir.frontends.layers.decoder import CheckpointNames, Decoder, LearnedPositions
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import activation, attention, decoder, heads, layer_norm, layers

_NAMES = CheckpointNames("transformer.wte", "transformer.h.{layer}", "transformer.ln_f")


def _spelled(config: Config, positions: int) -> int:
    """Register the field names of these classes, and return the number of positions."""
    config.spelled(hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer")
    config.spelled(intermediate_size="n_inner", hidden_act="activation_function")
    config.spelled(max_position_embeddings="n_positions")
    return config.assumed("max_position_embeddings", positions)


def _mlp(config: Config, act: str, *matrices: str) -> Mlp:
    """An MLP of two matrices with biases; the default width is 4 · hidden."""
    wide = config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size")
    return Mlp(wide, bias=True, matrices=matrices, activation=activation(config, default=act))


def _scale(config: Config) -> float | None:
    return None if config.flag("scale_attn_weights", True) else 1.0


def _learned(config: Config, architecture: str, rows: int, mixer: Attention, mlp: Mlp) -> Decoder:
    """A decoder with a table of learned positions."""
    norm, table = layer_norm(config, "layer_norm_epsilon"), LearnedPositions("transformer.wpe", rows)
    stack = (Layer(mixer, mlp, Norms("ln_1", before_mlp="ln_2")),) * layers(config)
    how: dict[str, Any] = {"norm": norm, "names": _NAMES, "learned": table}
    return decoder(config, architecture, stack, tied_default=True, **how)


@family("GPT2LMHeadModel", "gpt2")
def gpt2(config: Config) -> Decoder:
    """GPT2LMHeadModel: matrices are stored as [in, out], and one tensor stores q, k and v."""
    rows = _spelled(config, 1024)
    config.unmodelled("scale_attn_by_inverse_layer_idx", (False,), "scores scaled by the layer's number")
    names = ("c_attn[0]^T", "c_attn[1]^T", "c_attn[2]^T", "c_proj^T")
    how: dict[str, Any] = {"module": "attn", "matrices": names, "bias": True}
    mixer = attention(config, rope=None, scale=_scale(config), **how)
    return _learned(config, "GPT2LMHeadModel", rows, mixer, _mlp(config, "gelu_new", "c_fc^T", "c_proj^T"))


@family("GPTBigCodeForCausalLM", "gpt_bigcode")
def gpt_bigcode(config: Config) -> Decoder:
    """GPTBigCodeForCausalLM: one key/value head, unless `multi_query` is off."""
    rows, act = _spelled(config, 1024), "gelu_pytorch_tanh"
    one, (count, *_) = config.flag("multi_query", True), heads(config, None, None)
    names = tuple(f"c_attn[{i}]" if one else f"c_attn[{i}/{count}]" for i in range(3))
    how: dict[str, Any] = {"module": "attn", "matrices": (*names, "c_proj"), "bias": True}
    mixer = attention(config, rope=None, kv_heads=1 if one else count, scale=_scale(config), **how)
    return _learned(config, "GPTBigCodeForCausalLM", rows, mixer, _mlp(config, act, "c_fc", "c_proj"))


@family("JAISLMHeadModel", "jais")
def jais(config: Config) -> Decoder:
    """JAISLMHeadModel: GPT-2 with ALiBi and a gated MLP, scaled by muP (modeling_jais.py in checkpoints)."""
    _spelled(config, 2048)
    config.unmodelled("position_embedding_type", ("alibi",), "learned positions")
    config.unmodelled("hidden_act", ("swiglu",), "an MLP without a gate")
    config.fixed("scores scaled by the layer's number", scale_attn_by_inverse_layer_idx=False)
    config.fixed("scores that are not scaled", scale_attn_weights=True)
    (_, _, size), wide = heads(config, None, None), config.integer("intermediate_size")
    scale = size**-1.0 if config.flag("mup_scale_qk_dot_by_d", False) else None
    names = ("c_attn[0]^T", "c_attn[1]^T", "c_attn[2]^T", "c_proj^T")
    how: dict[str, Any] = {"module": "attn", "matrices": names, "bias": True, "mask": "alibi(1)"}
    own = Mlp(wide, bias=True, matrices=("c_fc2^T", "c_fc^T", "c_proj^T"))
    into, out = config.number("mup_embeddings_scale", 1.0), config.number("mup_output_alpha", 1.0)
    layer = Layer(attention(config, rope=None, scale=scale, **how), own, Norms("ln_1", before_mlp="ln_2"))
    ends: dict[str, Any] = {"names": _NAMES, "norm": layer_norm(config, "layer_norm_epsilon")}
    ends |= {"embedding_scale": into, "logits_scale": out * config.number("mup_width_scale", 1.0)}
    return decoder(config, "JAISLMHeadModel", (layer,) * layers(config), tied_default=True, **ends)


def _rotary(config: Config, architecture: str, *projections: str) -> Decoder:
    """Attention and MLP in parallel after one norm; neighboring pairs in part of each head rotate."""
    _spelled(config, 2048)
    norm, size = layer_norm(config, "layer_norm_epsilon"), heads(config, None, None)[-1]
    turned = config.integer("rotary_dim", 64, minimum=2, maximum=size)
    if turned % 2:
        raise config.error("rotary_dim", f"expected an even number, got {turned}")
    positions = Rope(10000.0, size=0 if turned == size else turned, interleaved=True)
    mixer = attention(config, rope=positions, module="attn", matrices=(*projections, "out_proj"))
    mlp = _mlp(config, "gelu_new", "fc_in", "fc_out")
    stack = (Layer(mixer, mlp, Norms("ln_1", before_mlp=None), parallel=True),) * layers(config)
    return decoder(config, architecture, stack, norm=norm, names=_NAMES, head_bias=True)


@family("GPTJForCausalLM", "gptj")
def gptj(config: Config) -> Decoder:
    """GPTJForCausalLM."""
    return _rotary(config, "GPTJForCausalLM", "q_proj", "k_proj", "v_proj")


@family("CodeGenForCausalLM", "codegen")
def codegen(config: Config) -> Decoder:
    """CodeGenForCausalLM: GPT-J; each of four blocks in a tensor stores q, v and k."""
    return _rotary(config, "CodeGenForCausalLM", "qkv_proj[0/4]", "qkv_proj[2/4]", "qkv_proj[1/4]")
