"""Hybrids of Mamba-2 and attention: Bamba, Granite 4, Falcon-H1. Absent fields as in transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mamba import Mamba2, ParallelMixers
from llmir.frontends.layers.mlp import Mlp, Moe
from llmir.frontends.layers.parts import (
    activation,
    attention,
    check_chosen,
    decoder,
    kinds,
    layer_pairs,
    layers,
    mlp,
)
from llmir.frontends.layers.state_config import channels, mamba2

from .granite_moe import shared, stacked

_NORMS = Norms(before_mlp="pre_ff_layernorm")
_NAMES = CheckpointNames(norm="model.final_layernorm")


def _scan(config: Config, eps: float) -> Mamba2:
    """Mamba-2; its norm has the epsilon of the other norms, by default `eps`."""
    return mamba2(config, channels(config), eps=config.number("rms_norm_eps", eps), module="mamba")


@family("BambaForCausalLM", "bamba")
def bamba(config: Config) -> Decoder:
    """BambaForCausalLM: Mamba-2, and attention with half-rotated heads in some layers."""
    bias = config.flag("attention_bias", False)
    config.ignore("partial_rotary_factor")  # the class always has a separate head
    attends = attention(config, kv_default=8, share_default=0.5, qkv_bias=bias, out_bias=bias)
    config.unmodelled("attn_rotary_emb", (None, attends.head_dim // 2), "positions on another part of a head")
    config.ignore("mamba_dt_rank")  # a field of Mamba 1
    keeps, chosen = _scan(config, 1e-5), config.integers("attn_layer_indices")
    wide = mlp(config, module="feed_forward", bias=config.flag("mlp_bias", False))
    count = layers(config)
    stack = layer_pairs((attends if i in chosen else keeps for i in range(count)), [wide] * count, _NORMS)
    return decoder(config, "BambaForCausalLM", stack, names=_NAMES, eps_default=1e-5)


@family("GraniteMoeHybridForCausalLM", "granitemoehybrid")
def granite_hybrid(config: Config) -> Decoder:
    """GraniteMoeHybridForCausalLM: Granite's multipliers, a shared MLP, and optional experts."""
    bias, scale = config.flag("attention_bias", False), config.number("attention_multiplier", 1.0)
    how: dict[str, Any] = {"qkv_bias": bias, "out_bias": bias, "scale": scale}
    config.unmodelled("position_embedding_type", (None, "nope", "rope"), "other positions")
    if config.fields.get("position_embedding_type") != "rope":
        how["rope"] = None
        config.ignore("rope_theta", "rope_scaling", "rope_parameters")
    config.unmodelled("normalization_function", (None, "rmsnorm"), "another norm")
    attends, keeps = attention(config, **how), _scan(config, 1e-6)
    count = config.optional_integer("num_local_experts", 0) if "num_local_experts" in config else 8
    width = config.assumed("shared_intermediate_size", 1024)
    wide: Mlp | Moe
    if count:
        wide = check_chosen(config, replace(stacked(config, count), shared=shared(width)))
    else:
        names = shared(width).matrices
        wide = Mlp(width, module="shared_mlp", matrices=names, activation=activation(config))
        config.ignore("num_experts_per_tok", "intermediate_size")
    own: dict[str, Attention | Mamba2] = {"full_attention": attends, "attention": attends}
    own |= {"linear_attention": keeps, "mamba": keeps}
    residual = config.number("residual_multiplier", 1.0)
    found = kinds(config, ("mamba",) * layers(config), *own)
    made = {kind: Layer(mixer, wide, residual=residual) for kind, mixer in own.items()}
    return decoder(
        config,
        "GraniteMoeHybridForCausalLM",
        tuple(made[kind] for kind in found),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )


@family("FalconH1ForCausalLM", "falcon_h1")
def falcon_h1(config: Config) -> Decoder:
    """FalconH1ForCausalLM: Mamba-2 and attention in parallel, with multipliers between all parts."""
    bias = config.flag("attention_bias", False)
    attends = attention(config, positions_default=8192, kv_default=8, qkv_bias=bias, out_bias=bias)
    # The class scales keys before it caches them; the same factor on scores gives the same result.
    scale = attends.head_dim**-0.5 * _factor(config, "key_multiplier")
    before = config.flag("mamba_norm_before_gate", True)
    inner = config.optional_integer("mamba_d_ssm") if "mamba_d_ssm" in config else 1024
    into = _factor(config, "ssm_in_multiplier")
    config.unmodelled("mamba_use_mlp", (None, True), "layers without an MLP")
    config.unmodelled("attn_layer_indices", (None,), "layers without attention")
    config.ignore(
        "mamba_expand", "expansion_factor", "mlp_expansion_factor"
    )  # other fields contain the sizes
    keeps = mamba2(
        config,
        inner or channels(config),
        eps=config.number("rms_norm_eps", 1e-5),
        module="mamba",
        norm=("before" if before else "gated") if config.flag("mamba_rms_norm", False) else "",
        scales=tuple(into * x for x in _factors(config, "ssm_multipliers", 5)),
        out_bias=config.flag("projectors_bias", False),
    )
    if keeps.bias and into != 1:
        config.unmodelled("ssm_in_multiplier", (1.0,), "biases that are not scaled")
    out = _factor(config, "ssm_out_multiplier"), _factor(config, "attention_out_multiplier")
    both = ParallelMixers(
        keeps, replace(attends, scale=scale), _factor(config, "attention_in_multiplier"), out
    )
    factors = _factors(config, "mlp_multipliers", 2)
    wide = mlp(config, module="feed_forward", bias=config.flag("mlp_bias", False), scales=factors)
    return decoder(
        config,
        "FalconH1ForCausalLM",
        (Layer(both, wide, _NORMS),) * layers(config),
        names=_NAMES,
        eps_default=1e-5,
        embedding_scale=_factor(config, "embedding_multiplier"),
        logits_scale=_factor(config, "lm_head_multiplier"),
    )


def _factor(config: Config, key: str) -> float:
    return config.number(key, 1.0)


def _factors(config: Config, key: str, count: int) -> tuple[float, ...]:
    return config.numbers(key, count) if config.fields.get(key) is not None else (1.0,) * count
