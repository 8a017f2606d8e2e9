"""GPT-NeoX, Pythia, Bloom, Falcon and Persimmon: one tensor stores q, k and v head by head.

Absent fields have the defaults of transformers.
"""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import activation, attention, decoder, heads, layer_norm, layers, mlp

_WIDER = ("dense_h_to_4h", "dense_4h_to_h")


def _by_head(blocks: int | str) -> tuple[str, str, str, str]:
    """The checkpoint names of q, k and v, which one tensor interleaves in `blocks` blocks."""
    q, k, v = (f"query_key_value[{i}/{blocks}]" for i in range(3))
    return q, k, v, "dense"


@family("GPTNeoXForCausalLM", "gpt_neox")
def gpt_neox(config: Config) -> Decoder:
    """GPTNeoXForCausalLM: parallel sublayers with separate norms; a quarter of each head is rotated."""
    config.spelled(partial_rotary_factor="rotary_pct", rope_theta="rotary_emb_base")
    bias, matrices = config.flag("attention_bias", True), _by_head(heads(config, None, None)[0])
    how: dict[str, Any] = {"module": "attention", "matrices": matrices, "bias": bias}
    wide = mlp(config, activation=activation(config, default="gelu"), matrices=_WIDER, bias=True)
    mixer = attention(config, share_default=0.25, **how)
    layer = Layer(mixer, wide, parallel=config.flag("use_parallel_residual", True))
    names = CheckpointNames(
        "gpt_neox.embed_in", "gpt_neox.layers.{layer}", "gpt_neox.final_layer_norm", "embed_out"
    )
    norm = layer_norm(config, "layer_norm_eps")
    return decoder(config, "GPTNeoXForCausalLM", (layer,) * layers(config), norm=norm, names=names)


_NAMES = CheckpointNames("transformer.word_embeddings", "transformer.h.{layer}", "transformer.ln_f")


@family("BloomForCausalLM", "bloom")
def bloom(config: Config) -> Decoder:
    """BloomForCausalLM: ALiBi, and a norm after the embeddings."""
    config.spelled(hidden_size="n_embed", num_attention_heads="n_head", num_hidden_layers="n_layer")
    usual = "apply_residual_connection_post_layernorm"
    config.unmodelled(usual, (False,), "residuals taken after the norm")
    matrices, norm = _by_head(heads(config, None, None)[0]), layer_norm(config, "layer_norm_epsilon")
    how: dict[str, Any] = {"module": "self_attention", "matrices": matrices, "bias": True}
    wide = Mlp(4 * config.integer("hidden_size"), bias=True, matrices=_WIDER, activation="gelu_tanh")
    layer = Layer(attention(config, rope=None, mask="alibi(1)", **how), wide)
    more: dict[str, Any] = {
        "norm": norm,
        "names": _NAMES,
        "embedding_norm": "transformer.word_embeddings_layernorm",
    }
    return decoder(config, "BloomForCausalLM", (layer,) * layers(config), tied_default=True, **more)


@family("FalconForCausalLM", "falcon")
@family("RWForCausalLM", "RefinedWeb", "RefinedWebModel", "falcon")
def falcon(config: Config) -> Decoder:
    """FalconForCausalLM: 7B (one key/value head), 40B, 180B and 11B (`new_decoder_architecture`), RW (ALiBi).

    ALiBi's slopes have the same scale as the scores.
    """
    old = "n_head_kv" in config.fields  # the code in the first checkpoints
    config.spelled(hidden_size="n_embed", num_key_value_heads="n_head_kv" if old else "num_kv_heads")
    config.spelled(hidden_act="activation", num_attention_heads="n_head", num_hidden_layers="n_layer")
    config.fixed("residuals taken after the norm", apply_residual_connection_post_layernorm=False)
    count, groups, size = heads(config, None, None)
    new, one = config.flag("new_decoder_architecture", old), config.flag("multi_query", True)
    beside, alibi = config.flag("parallel_attn", True), config.flag("alibi", False)
    if new:
        config.unmodelled("parallel_attn", (True,), "the new architecture one after the other")
    config.unmodelled("num_ln_in_parallel_attn", (None, 1, 2) if new else (None, 1), "other norms")
    two = new and config.optional_integer("num_ln_in_parallel_attn") != 1
    groups = groups if new else 1 if one else count
    how: dict[str, Any] = {"kv_heads": groups, "module": "self_attention", "matrices": _by_head(groups)}
    how |= {"bias": (bias := config.flag("bias", False))}
    how |= {"rope": None, "mask": f"alibi({size})"} if alibi else {}
    width = config.optional_integer("ffn_hidden_size") or 4 * config.integer("hidden_size")
    act = activation(config, default="gelu")
    named = Norms("ln_attn", before_mlp="ln_mlp") if two else Norms(before_mlp=None)
    wide = Mlp(width, bias=bias, matrices=_WIDER, activation=act)
    layer = Layer(attention(config, **how), wide, named if beside else Norms(), parallel=beside)
    norm = layer_norm(config, "layer_norm_epsilon")
    stack = (layer,) * layers(config)
    more: dict[str, Any] = {"norm": norm, "names": _NAMES}
    return decoder(config, "FalconForCausalLM", stack, tied_default=True, **more)


@family("PersimmonForCausalLM", "persimmon")
def persimmon(config: Config) -> Decoder:
    """PersimmonForCausalLM: normalized q and k, squared ReLU, and positions on half of each head."""
    norm, matrices = layer_norm(config, "layer_norm_eps"), _by_head(heads(config, None, None)[0])
    normed = "head" if config.flag("qk_layernorm", True) else ""
    how: dict[str, Any] = {"matrices": matrices, "bias": True, "qk_norm": normed}
    mixer = attention(config, share_default=0.5, qk_norms=("q_layernorm", "k_layernorm"), **how)
    wide = mlp(config, activation=activation(config, default="relu2"), matrices=_WIDER, bias=True)
    stack, names = (Layer(mixer, wide),) * layers(config), CheckpointNames(norm="model.final_layernorm")
    return decoder(config, "PersimmonForCausalLM", stack, norm=norm, names=names)
