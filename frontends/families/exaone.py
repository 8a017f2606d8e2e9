"""EXAONE 4, and K-EXAONE with experts. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import POST_NORMS, Layer
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import (
    all_but_every,
    attention,
    decoder,
    drafts,
    has_experts,
    mlp,
    sliding_layers,
    window,
)

from .deepseek import by_groups, experts


def _mixers(config: Config) -> tuple[Attention, ...]:
    """The attention of each layer: windows, except in every fourth layer, which then has no positions."""
    mask, pattern = window(config, 4096), "sliding_window_pattern"
    if mask == "causal" or config.texts("layer_types"):  # the pattern is unused; may be "LLLG"
        config.ignore(pattern)
        every = 0
    else:
        every = config.integer(pattern, 4)
    mixer = attention(config, kv_default=32, qk_norm="head")
    full = replace(mixer, rope=mixer.rope if mask == "causal" else None)
    kinds = full, replace(mixer, mask=mask)
    return tuple(kinds[slide] for slide in sliding_layers(config, all_but_every(every)))


@family("Exaone4ForCausalLM", "exaone4")
def exaone4(config: Config) -> Decoder:
    """Exaone4ForCausalLM: norms after both sublayers."""
    feed = mlp(config)
    stack = tuple(Layer(mixer, feed, POST_NORMS) for mixer in _mixers(config))
    return decoder(config, "Exaone4ForCausalLM", stack, eps_default=1e-5)


@family("ExaoneMoeForCausalLM", "exaone_moe")
@family("ExaoneMoEForCausalLM", "exaone_moe")
def exaone_moe(config: Config) -> Decoder:
    """ExaoneMoeForCausalLM, K-EXAONE: DeepSeek V3's experts, norms before both sublayers."""
    drafts(config)
    config.spelled(first_k_dense_replace="first_last_k_dense_replace", n_routed_experts="num_experts")
    config.spelled(n_shared_experts="num_shared_experts")
    routing = replace(by_groups(config, 1, 1, 2.5), correction="mlp.e_score_correction_bias")
    routed, dense = (
        experts(config, routing, (64, 8, 1024, 1)),
        Mlp(config.assumed("intermediate_size", 16384)),
    )
    has = has_experts(config, config.integer("first_k_dense_replace", 1, minimum=0))
    config.unmodelled("is_moe_layer", (None, [*has]), "other layers of experts than the class has")
    stack = tuple(Layer(m, routed if s else dense) for m, s in zip(_mixers(config), has, strict=True))
    return decoder(config, "ExaoneMoeForCausalLM", stack, eps_default=1e-5)
