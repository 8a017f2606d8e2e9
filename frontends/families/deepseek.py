"""DeepSeek V2 and V3, and similar models. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import latent
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.latent_attention import Indexer
from llmir.frontends.layers.layer import Layer, Norms, Sublayer
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import check_chosen, decoder, draft, has_experts, layers

_EXPERTS = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
_V2, _V3 = (64, None, 1407, 2), (256, 8, 2048, 1)


def experts(
    config: Config,
    routing: Routing,
    defaults: tuple[int | None, int | None, int | None, int | None] = (None,) * 4,
    *,
    bias: bool = False,
    module: str = "mlp",
    **differences: Any,
) -> Moe:
    """The routed experts of DeepSeek's configs, and the shared experts as one wide MLP.

    `defaults` contains the number of experts, the number that a token chooses, their width, and the number of
    shared experts. If the last default is 0, the class has no shared experts. `differences` are fields of
    `Moe`.
    """
    keys = zip(_EXPERTS, defaults if defaults[3] != 0 else defaults[:3], strict=False)
    count, chosen, width, *shared = (
        config.assumed(key, default) if default else config.integer(key) for key, default in keys
    )
    if shared:
        always = Mlp(shared[0] * width, bias, f"{module}.shared_experts", "shared_experts", "shared_")
        differences = {"shared": always, **differences}
    return check_chosen(config, Moe(count, chosen, width, routing, module=module, **differences))


def by_groups(config: Config, groups: int, kept: int, scale: float, module: str = "mlp") -> Routing:
    """V3's routing: sigmoid scores with a bias, and groups chosen by the sum of their two best scores."""
    config.unmodelled("scoring_func", (None, "sigmoid"), "another score of the router")
    config.unmodelled("topk_method", (None, "noaux_tc"), "another choice of experts")
    return Routing(
        score="sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", scale),
        groups=config.integer("n_group", groups),
        kept=config.integer("topk_group", kept),
        best=2,
        correction=f"{module}.gate.e_score_correction_bias",
    )


def stack(config: Config, mixer: Sublayer, dense: Mlp, sparse: Moe, first: int) -> tuple[Layer, ...]:
    """The first layers are dense, the others have experts; without experts, all are dense."""
    kept = config.integer("first_k_dense_replace", first, minimum=0)
    return tuple(Layer(mixer, dense if i < kept else sparse) for i in range(layers(config)))


def by_type(config: Config, mixer: Sublayer, dense: Mlp, sparse: Moe, first: int) -> tuple[Layer, ...]:
    """Dense and expert layers by `mlp_layer_types`; without it, the `first` layers are dense."""
    return tuple(Layer(mixer, sparse if has else dense) for has in has_experts(config, first))


def indexer(config: Config, heads: int, *, interleaved: bool = False) -> Indexer:
    """The selection of keys in all layers; `heads` is the default number of index heads."""
    config.every("layer_types", *("indexed_attention",) * layers(config))
    config.integer("q_lora_rank", 1536)  # the indexer also reads the latent, so null is not allowed
    sizes = (config.assumed("index_n_heads", heads), config.assumed("index_head_dim", 128))
    return Indexer(*sizes, config.assumed("index_topk", 2048), interleaved)


@family("DeepseekV2ForCausalLM", "deepseek_v2")
def deepseek_v2(config: Config) -> Decoder:
    """DeepseekV2ForCausalLM: V2 and V2.5, and V2-Lite, which has no latent for queries."""
    config.unmodelled("scoring_func", (None, "softmax"), "another score of the router")
    config.unmodelled("norm_topk_prob", (None, False), "the class does not normalize")
    config.unmodelled("topk_method", (None, "greedy", "group_limited_greedy"), "another choice of experts")
    scale = config.number("routed_scaling_factor", 1.0)
    groups, kept = config.optional_integer("n_group"), config.optional_integer("topk_group")
    limited = config.fields.get("topk_method") == "group_limited_greedy"
    routing = Routing(scale=scale, groups=groups or 1, kept=kept or 1) if limited else Routing(scale=scale)
    bias = config.flag("mlp_bias", False)
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=2048, interleaved=True)
    dense = Mlp(config.assumed("intermediate_size", 11008), bias=bias)
    sparse = experts(config, routing, _V2, bias=bias)
    return decoder(config, "DeepseekV2ForCausalLM", stack(config, mixer, dense, sparse, 0))


@family("DeepseekV3ForCausalLM", "deepseek_v3", "kimi_k2")
def deepseek_v3(config: Config) -> Decoder:
    """DeepseekV3ForCausalLM: V3, V3.1, R1 and Kimi-K2, with V3's routing."""
    routing = by_groups(config, groups=8, kept=4, scale=2.5)
    pairs = config.flag("rope_interleave", True)
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=4096, interleaved=pairs)
    dense = Mlp(config.assumed("intermediate_size", 18432))
    sparse = experts(config, routing, _V3)
    own = draft(config, Layer(mixer, sparse))
    return decoder(config, "DeepseekV3ForCausalLM", stack(config, mixer, dense, sparse, 3), draft=own)


@family("DeepseekV32ForCausalLM", "deepseek_v32")
def deepseek_v32(config: Config) -> Decoder:
    """DeepseekV32ForCausalLM: V3 with an indexer that selects the keys of each query."""
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=163840, interleaved=True)
    mixer = replace(mixer, indexer=indexer(config, 64))
    dense = Mlp(config.assumed("intermediate_size", 18432))
    sparse = experts(config, by_groups(config, 8, 4, 2.5), _V3)
    first = config.integer("first_k_dense_replace", 3, minimum=0)
    stacked, own = by_type(config, mixer, dense, sparse, first), draft(config, Layer(mixer, sparse))
    return decoder(config, "DeepseekV32ForCausalLM", stacked, draft=own)


@family("GlmMoeDsaForCausalLM", "glm_moe_dsa")
def glm_moe_dsa(config: Config) -> Decoder:
    """GlmMoeDsaForCausalLM, GLM-5: V3.2's layers; the indexer also rotates neighboring pairs."""
    _own_indexers(config)
    config.fixed("halves that are rotated", rope_interleave=True, indexer_rope_interleave=True)
    mixer = latent(config, (2048, 512, 192, 64, 256), positions_default=202752, interleaved=True)
    mixer = replace(mixer, indexer=indexer(config, 32, interleaved=True))
    dense = Mlp(config.assumed("intermediate_size", 12288))
    sparse = experts(config, by_groups(config, 1, 1, 2.5), _V3)
    first = config.integer("first_k_dense_replace", 3, minimum=0)
    stacked, own = by_type(config, mixer, dense, sparse, first), draft(config, Layer(mixer, sparse))
    return decoder(config, "GlmMoeDsaForCausalLM", stacked, eps_default=1e-5, draft=own)


def _own_indexers(config: Config) -> None:
    """Raise ConfigError for layers that use the keys that another layer's indexer selected."""
    why = "keys that another layer's indexer chose"
    config.every("indexer_types", *("full",) * layers(config))
    config.unmodelled("index_topk_pattern", (None, "F" * layers(config)), why)
    config.unmodelled("index_topk_freq", (None, 0, 1), why)
    config.ignore("index_skip_topk_offset")  # the first layer without its own indexer


@family("AXK1ForCausalLM", "axk1")
def axk1(config: Config) -> Decoder:
    """AXK1ForCausalLM, A.X K1: V3 with a norm after the experts."""
    config.integer("q_lora_rank", 1536)  # null is not allowed
    pairs = config.flag("rope_interleave", True)
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=32768, interleaved=pairs)
    sparse = experts(config, by_groups(config, 8, 4, 2.5), (192, 8, 2048, 1))
    dense = Mlp(config.assumed("intermediate_size", 18432))
    first, behind = (
        config.integer("first_k_dense_replace", 1, minimum=0),
        Norms(after_mlp="post_mlp_layernorm"),
    )
    stacked = (
        replace(layer, norms=behind) if layer.mlp == sparse else layer
        for layer in by_type(config, mixer, dense, sparse, first)
    )
    return decoder(config, "AXK1ForCausalLM", tuple(stacked))
