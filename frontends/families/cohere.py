"""Cohere: Command-R to Command-A+. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import (
    all_but_every,
    attention,
    decoder,
    has_experts,
    interleaved,
    layers,
    mlp,
    moe,
    sliding_layers,
    window,
)

# Fields of older configs that the classes do not read.
_SAID = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
}


def _attention(config: Config, **how: Any) -> Attention:
    bias = config.flag("attention_bias", False)
    return interleaved(attention(config, positions_default=8192, bias=bias, **how))


def _cohere(
    config: Config, architecture: str, pairs: Iterable[tuple[Attention, Mlp | Moe]], norm: Norm | None = None
) -> Decoder:
    """Both sublayers read one LayerNorm of the layer's input; logits are scaled."""
    norm = norm or Norm(config.number("layer_norm_eps", 1e-5), "layer_norm")
    scale = config.number("logit_scale", 0.0625)
    stack = tuple(Layer(*pair, Norms(before_mlp=None), parallel=True) for pair in pairs)
    return decoder(config, architecture, stack, tied_default=True, norm=norm, logits_scale=scale)


@family("CohereForCausalLM", "cohere")
def cohere(config: Config) -> Decoder:
    """CohereForCausalLM: with `use_qk_norm`, each head of q and k has a separate norm."""
    norm = "heads" if config.flag("use_qk_norm", False) else ""
    mixer = _attention(config, theta_default=5e5, qk_norm=norm)
    return _cohere(config, "CohereForCausalLM", [(mixer, mlp(config))] * layers(config))


@family("Cohere2ForCausalLM", "cohere2")
def cohere2(config: Config) -> Decoder:
    """Cohere2ForCausalLM: windows in all layers except every fourth, which has no positions."""
    every = config.integer("sliding_window_pattern", 4)
    config.fixed("another kind of layers", **_SAID, layer_switch=every)
    mixer = _attention(config)
    feed, kinds = mlp(config), (replace(mixer, rope=None), replace(mixer, mask=window(config, 4096)))
    own = sliding_layers(config, all_but_every(every))
    return _cohere(config, "Cohere2ForCausalLM", ((kinds[slide], feed) for slide in own))


@family("Cohere2MoeForCausalLM", "cohere2_moe")
def cohere2_moe(config: Config) -> Decoder:
    """Cohere2MoeForCausalLM: Cohere 2 with experts after dense layers, all of which have positions."""
    first, prefix = (
        config.integer("first_k_dense_replace", 0, minimum=0),
        config.integer("prefix_dense_sliding_window_pattern", 1),
    )
    before, after = all_but_every(prefix), all_but_every(config.integer("sliding_window_pattern", 4))
    own = sliding_layers(config, lambda i: before(i) if i < first else after(i - first))
    mixer = _attention(config, head_dim_default=128)
    full = [mixer if prefix == 1 else replace(mixer, rope=None), replace(mixer, rope=None)]
    sliding, width = replace(mixer, mask=window(config, 4096)), config.integer("intermediate_size")
    sparse = _experts(config, width)
    dense = Mlp(config.optional_integer("prefix_dense_intermediate_size") or width)
    found = zip(own, has_experts(config, first), strict=True)
    pairs = ((sliding if slide else full[has], sparse if has else dense) for slide, has in found)
    eps = config.optional_number("rms_norm_eps")
    return _cohere(config, "Cohere2MoeForCausalLM", pairs, Norm(eps) if eps else None)


def _experts(config: Config, width: int) -> Moe:
    """Routed and shared experts; shared experts form one wide MLP. Their outputs are summed or averaged."""
    config.spelled(num_local_experts="num_experts")
    score, key = config.text("expert_selection_fn", "softmax"), "shared_expert_combination_strategy"
    config.unmodelled("expert_selection_fn", ("softmax", "sigmoid"), "another choice of experts")
    normed = config.flag("norm_topk_prob", True) or score == "softmax"
    config.unmodelled(key, ("average", "sum"), "another sum")
    count = config.integer("num_shared_experts", 0, minimum=0)
    part = 0.5 if count and config.text(key, "average") == "average" else 1.0
    shared = Mlp(count * width, False, "mlp.shared_experts", "shared_experts", "shared_", scales=(1.0, part))
    routing = Routing(score, normalize=normed, scale=part)
    return moe(config, 8, 2, width, routing=routing, shared=shared if count else None)
