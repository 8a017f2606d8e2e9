"""Mellum 2 and Flint: the experts of Qwen3 and attention windows. Absent fields as in transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import attention, decoder, drafts, has_experts, heads, kinds, layers, window
from llmir.frontends.layers.rope import ropes

from .qwen import experts_of, mlps_of

_KINDS = ("full_attention", "sliding_attention")


@family("MellumForCausalLM", "mellum")
def mellum(config: Config) -> Decoder:
    """MellumForCausalLM: windows by `layer_types`, with separate rotary positions."""
    drafts(config)
    config.ignore("mtp_layer_types", "mtp_mlp_layer_types")
    local, whole = ropes(config, (heads(config, 4, 128)[-1],) * 2, 131072, 1e4, 5e5)
    how: dict[str, Any] = {"kv_default": 4, "head_dim_default": 128, "rope": whole, "qk_norm": "head"}
    full = attention(config, bias=config.flag("attention_bias", False), **how)
    mixers = dict(zip(_KINDS, (full, replace(full, rope=local, mask=window(config, 1024))), strict=True))
    routed, dense = (
        experts_of(config, 64, 8, 896, normalize=True),
        Mlp(config.assumed("intermediate_size", 7168)),
    )
    found = zip(kinds(config, _KINDS[:1] * layers(config), *_KINDS), has_experts(config, 0), strict=True)
    stack = tuple(Layer(mixers[kind], routed if has else dense) for kind, has in found)
    return decoder(config, "MellumForCausalLM", stack)


@family("FlintForCausalLM", "flint")
def flint(config: Config) -> Decoder:
    """FlintForCausalLM: sinks; the first two, every fourth and the last layer have no window and no
    positions.
    """
    how: dict[str, Any] = {"positions_default": 262144, "kv_default": 4, "head_dim_default": 128}
    how |= {"qk_norm": "head", "sinks": "softmax_offset", "mask": window(config, 513)}
    sliding, count = attention(config, bias=config.flag("attention_bias", False), **how), layers(config)
    mixers = dict(zip(_KINDS, (replace(sliding, rope=None, mask="causal"), sliding), strict=True))
    width = config.assumed("shared_expert_intermediate_size", 1024)
    always = Mlp(width, module="mlp.shared_expert", block="shared_experts", prefix="shared_")
    routed = replace(experts_of(config, 256, 6, 512, always, normalize=True), shared_gate="")
    routed = replace(routed, routing=replace(routed.routing, score="sigmoid"))
    usual = [_KINDS[i > 1 and i % 4 != 1 and i < count - 1] for i in range(count)]
    found = zip(kinds(config, usual, *_KINDS), mlps_of(config, routed, (0, 1)), strict=True)
    stack = tuple(Layer(mixers[kind], own) for kind, own in found)
    return decoder(config, "FlintForCausalLM", stack)
