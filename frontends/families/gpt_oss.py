"""gpt-oss. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, kinds, layers, moe, window
from llmir.frontends.layers.rope import rope

_YARN = {
    **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "original_max_position_embeddings": 4096,
}


@family("GptOssForCausalLM", "gpt_oss")
def gpt_oss(config: Config) -> Decoder:
    """GptOssForCausalLM: sinks, windows in every second layer, biases everywhere, and a clamped GLU."""
    width, both = config.assumed("intermediate_size", 2880), "experts.gate_up_proj"  # columns alternate
    config.ignore("initial_context_length", "experts_per_token")  # duplicates of other fields
    experts = moe(
        config,
        *(128, 4, width),
        router="router",
        router_bias=True,
        matrices=(f"{both}[0/{width}]^T", f"{both}[1/{width}]^T", "experts.down_proj^T"),
        biases=(f"{both}_bias[0/{width}]", f"{both}_bias[1/{width}]", "experts.down_proj_bias"),
        clamp=(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)),
    )
    positions = rope(config, config.integer("head_dim", 64), 131072, 150000.0, inner=_stretched(config))
    how: dict[str, Any] = {"kv_default": 8, "head_dim_default": 64, "rope": positions}
    whole = attention(config, bias=config.flag("attention_bias", True), sinks="sinks", **how)
    usual = (("sliding_attention", "full_attention") * layers(config))[: layers(config)]
    slides = replace(whole, mask=window(config, 128))
    stack = tuple(
        Layer(slides if kind == "sliding_attention" else whole, experts)
        for kind in kinds(config, usual, "sliding_attention", "full_attention")
    )
    return decoder(config, "GptOssForCausalLM", stack, eps_default=1e-5)


def _stretched(config: Config) -> Config | None:
    """The default scaling of positions, if the config has none."""
    stated = {"rope_parameters", "rope_scaling"} & config.fields.keys()
    return None if stated else Config(_YARN, name=config.name)
