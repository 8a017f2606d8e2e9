"""MiMo-V2-Flash of Xiaomi. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import attention, decoder, has_experts, heads, kinds, layers, window
from llmir.frontends.layers.rope import ropes

from .deepseek import by_groups, experts

_KINDS = ("full_attention", "sliding_attention")


@family("MiMoV2FlashForCausalLM", "mimo_v2_flash")
def mimo_v2_flash(config: Config) -> Decoder:
    """MiMoV2FlashForCausalLM: windows in all layers except the first and every sixth."""
    config.spelled(rms_norm_eps="layernorm_epsilon")
    count, mixers = layers(config), dict(zip(_KINDS, _mixers(config), strict=True))
    why = "another model than the class is"
    config.fixed(why, moe_layer_freq=[0] + [1] * (count - 1))
    config.fixed(why, add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    config.absent("routed_scaling_factor")
    routed = experts(config, by_groups(config, 1, 1, 1.0), (256, 8, 2048, 0))
    dense = Mlp(config.assumed("intermediate_size", 16384))
    slides = config.integers("hybrid_layer_pattern", [int(i > 0 and (i + 1) % 6 > 0) for i in range(count)])
    usual = [_KINDS[min(slide, 1)] for slide in slides]
    found = zip(kinds(config, usual, *_KINDS), has_experts(config, 1), strict=True)
    stack = tuple(Layer(mixers[kind], routed if has else dense) for kind, has in found)
    return decoder(config, "MiMoV2FlashForCausalLM", stack, eps_default=1e-5)


def _mixers(config: Config) -> tuple[Attention, Attention]:
    """Attention without and with a window; windows come with sinks and twice the key heads."""
    count, groups, size = heads(config, 4, 192)
    if count % (2 * groups):
        fact = f"twice {groups} does not divide {count} attention heads"
        raise config.error("num_key_value_heads", fact)
    value, scale = config.integer("v_head_dim", 128), "attention_value_scale"
    why, own = "other sizes in layers with windows", {"swa_num_key_value_heads": 2 * groups}
    config.fixed(why, swa_num_attention_heads=count, swa_head_dim=size, swa_v_head_dim=value, **own)
    config.fixed("chunks", attention_chunk_size=config.fields.get("sliding_window"))
    local, whole = ropes(config, (size, size), 131072, config.number("swa_rope_theta", 1e4), 5e6, share=0.334)
    how: dict[str, Any] = {"kv_default": 4, "head_dim_default": 192, "rope": whole, "value_dim": value}
    how |= {"value_scale": (config.optional_number(scale) if scale in config else 0.707) or 1.0}
    full = attention(config, qkv_bias=config.flag("attention_bias", False), **how)
    seen = window(config, 129)
    if past := config.optional_integer("sliding_window_size"):  # the field does not count the query's own key
        seen = f"window({past + 1})"
    return full, replace(full, kv_heads=2 * groups, rope=local, mask=seen, sinks="attention_sink_bias")
