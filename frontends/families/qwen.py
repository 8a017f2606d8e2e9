"""Qwen2 and Qwen2.5, Qwen3, and the MoE models of both. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import attention, check_chosen, decoder, either_field, layers, mlp, window

_POSITIONS = 32768
_KV_HEADS = 4  # of Qwen3 MoE


# The defaults of transformers, which apply if `use_sliding_window` is set.
_WINDOW, _WINDOW_LAYERS = 4096, 28


def _masks(config: Config, slides: Callable[[int, int], bool], *, typed: bool = True) -> tuple[str, ...]:
    """The mask of each layer with `use_sliding_window`: a window by `layer_types`, if the class reads it.

    Otherwise, `slides` decides from the layer number and `max_window_layers`.
    """
    own = window(config, _WINDOW, acts=config.flag("use_sliding_window", False))
    most = config.integer("max_window_layers", _WINDOW_LAYERS, minimum=0)
    found = [slides(i, most) for i in range(layers(config))]
    if typed and len(kinds := config.texts("layer_types")) == len(found):
        found = [kind == "sliding_attention" for kind in kinds]
    return tuple(own if slide else "causal" for slide in found)


def _last(layer: int, most: int) -> bool:
    return layer >= most


@family("Qwen2ForCausalLM", "qwen2")
def qwen2(config: Config) -> Decoder:
    """Qwen2ForCausalLM: biases on q, k and v only."""
    config.unmodelled("attention_bias", (None,), "q, k and v always have biases")
    mixer = attention(config, positions_default=_POSITIONS, kv_default=32, qkv_bias=True)
    stack = _stack(mixer, _masks(config, _last), (mlp(config),) * layers(config))
    return decoder(config, "Qwen2ForCausalLM", stack)


@family("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl")
def qwen2_5_vl(config: Config) -> Decoder:
    """The language model of Qwen2.5-VL."""
    return replace(qwen2(config), architecture="Qwen2_5_VLForConditionalGeneration")


@family("Qwen3ForCausalLM", "qwen3")
def qwen3(config: Config) -> Decoder:
    """Qwen3ForCausalLM: RMSNorm on q and k, by default heads of 128."""
    mixer = _normed(config, kv_default=32, head_dim_default=128)
    stack = _stack(mixer, _masks(config, _last), (mlp(config),) * layers(config))
    return decoder(config, "Qwen3ForCausalLM", stack)


def _stack(mixer: Attention, masks: tuple[str, ...], mlps: tuple[Mlp | Moe, ...]) -> tuple[Layer, ...]:
    """Layers with different masks and MLPs."""
    return tuple(Layer(replace(mixer, mask=mask), mlp) for mask, mlp in zip(masks, mlps, strict=True))


def _normed(config: Config, kv_default: int, head_dim_default: int | None = None) -> Attention:
    """Qwen3's attention."""
    bias = config.flag("attention_bias", False)
    return attention(
        config,
        positions_default=_POSITIONS,
        kv_default=kv_default,
        head_dim_default=head_dim_default,
        bias=bias,
        qk_norm="head",
    )


def experts_of(
    config: Config,
    count: int,
    chosen: int,
    intermediate: int,
    shared: Mlp | None = None,
    *,
    normalize: bool = False,
) -> Moe:
    """Read the experts of a MoE model; absent fields have the class's defaults."""
    experts = Moe(
        count=either_field(config, "num_experts", "num_local_experts", count),
        chosen=config.assumed("num_experts_per_tok", chosen),
        intermediate=config.assumed("moe_intermediate_size", intermediate),
        routing=Routing(normalize=config.flag("norm_topk_prob", normalize)),
        shared=shared,
        shared_gate=f"{shared.module}_gate" if shared else "",
    )
    return check_chosen(config, experts)


def mlps_of(config: Config, experts: Moe, dense_default: tuple[int, ...] = ()) -> tuple[Mlp | Moe, ...]:
    """The MLP of each layer: experts in every `decoder_sparse_step`-th layer except `mlp_only_layers`."""
    dense = Mlp(config.integer("intermediate_size"))
    step = config.integer("decoder_sparse_step", 1)
    only = frozenset(config.integers("mlp_only_layers", dense_default))
    return tuple(dense if i in only or (i + 1) % step else experts for i in range(layers(config)))


@family("Qwen2MoeForCausalLM", "qwen2_moe")
def qwen2_moe(config: Config) -> Decoder:
    """Qwen2MoeForCausalLM: Qwen2's biases, routed experts, and a shared expert with a gate."""
    width = config.assumed("shared_expert_intermediate_size", 5632)
    shared = Mlp(width, module="mlp.shared_expert", block="shared_experts", prefix="shared_")
    bias = config.flag("qkv_bias", True)
    mixer = attention(config, positions_default=_POSITIONS, kv_default=16, qkv_bias=bias)
    masks = _masks(config, lambda i, most: i % 2 == 0 and i < most)
    stack = _stack(mixer, masks, mlps_of(config, experts_of(config, 60, 4, 1408, shared)))
    return decoder(config, "Qwen2MoeForCausalLM", stack)


@family("Qwen3MoeForCausalLM", "qwen3_moe")
def qwen3_moe(config: Config) -> Decoder:
    """Qwen3MoeForCausalLM: experts in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`."""
    config.integer("num_key_value_heads", _KV_HEADS)  # null is not allowed in this family
    mlps = mlps_of(config, experts_of(config, 128, 8, 768))
    stack = _stack(_normed(config, _KV_HEADS), _masks(config, lambda i, most: True, typed=False), mlps)
    return decoder(config, "Qwen3MoeForCausalLM", stack)
