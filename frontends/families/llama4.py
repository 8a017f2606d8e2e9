"""The language model of Llama 4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention, Temper
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Routing
from llmir.frontends.layers.parts import attention, decoder, interleaved, kinds, layers, moe

_MODULE = "feed_forward"
_STACKED = ("experts.gate_up_proj[0]^T", "experts.gate_up_proj[1]^T", "experts.down_proj^T")


@family("Llama4ForCausalLM", "llama4_text")
def llama4(config: Config) -> Decoder:
    """Llama4ForCausalLM: chunked attention, full attention without positions, and scaled expert inputs."""
    config.ignore("for_llm_compressor")  # only a compression tool reads this field
    width, count = config.assumed("intermediate_size", 8192), layers(config)
    shared = Mlp(width, module=f"{_MODULE}.shared_expert", block="shared_experts", prefix="shared_")
    how: dict[str, Any] = {"module": _MODULE, "router": "router", "matrices": _STACKED, "scaled_inputs": True}
    sparse = moe(config, 16, 1, width, routing=Routing("sigmoid"), shared=shared, **how)
    dense = Mlp(config.assumed("intermediate_size_mlp", 16384), module=_MODULE)
    step = config.integer("interleave_moe_layer_step", 1)
    routed = config.integers("moe_layers", range(step - 1, count, step))
    mixers = enumerate(_mixers(config, count))
    stack = tuple(Layer(mixer, sparse if i in routed else dense) for i, mixer in mixers)
    return decoder(config, "Llama4ForCausalLM", stack, eps_default=1e-5)


def _mixers(config: Config, count: int) -> list[Attention]:
    """The attention of each layer: by default, every n-th layer has neither chunks nor positions."""
    bias, every = config.flag("attention_bias", False), config.integer("no_rope_layer_interval", 4)
    norm, sizes = (
        "bare" if config.flag("use_qk_norm", True) else "",
        {"kv_default": 8, "head_dim_default": 128},
    )
    how: dict[str, Any] = {"qk_norm": norm, "norm_turned": True, "bias": bias, **sizes}
    turned = interleaved(attention(config, positions_default=131072, theta_default=5e5, **how))
    config.ignore("attn_temperature_tuning")  # some configs have a number for true
    tempered = Temper(config.number("attn_scale", 0.1), config.number("floor_scale", 8192), 1.0)
    sharp = tempered if config.fields.get("attn_temperature_tuning", True) else None
    bare = replace(turned, rope=None, qk_norm="", temper=sharp)
    usual = tuple(int((i + 1) % every != 0) for i in range(count))
    places = config.integers("no_rope_layers") or usual  # published configs have an empty list
    if len(places) < count:
        raise config.error("no_rope_layers", f"{len(places)} places for {count} layers")
    places, (chunked, full) = places[:count], ("chunked_attention", "full_attention")
    found = kinds(config, [chunked if place else full for place in places], chunked, full)
    masks = {chunked: f"chunk({config.integer('attention_chunk_size', 8192)})", full: "causal"}
    pairs = zip(places, found, strict=True)
    return [replace(turned if place else bare, mask=masks[kind]) for place, kind in pairs]
