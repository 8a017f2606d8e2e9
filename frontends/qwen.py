"""Qwen2 and Qwen2.5, Qwen3, and Qwen3 MoE. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from .config import Config
from .decoder import Decoder
from .family import family
from .layers import Attention, Layer, Mlp, Moe
from .llama import attention, check_chosen, decoder, layers, mlp, window

_POSITIONS = 32768
_KV_HEADS = 4  # of Qwen3 MoE


# The defaults of transformers, which act where `use_sliding_window` is set.
_WINDOW, _FIRST_WITH_WINDOW = 4096, 28


def _masks(config: Config, *, moe: bool = False) -> tuple[str, ...]:
    """By layer: `layer_types` says which have a window, else `max_window_layers` where they begin.

    In a MoE model all have it, or none.
    """
    own = window(config, _WINDOW, acts=config.flag("use_sliding_window", False))
    first = config.integer("max_window_layers", _FIRST_WITH_WINDOW, minimum=0)
    slides = [moe or i >= first for i in range(layers(config))]
    if not moe and len(kinds := config.texts("layer_types")) == len(slides):
        slides = [kind == "sliding_attention" for kind in kinds]
    return tuple(own if slide else "causal" for slide in slides)


@family("Qwen2ForCausalLM", "qwen2")
def qwen2(config: Config) -> Decoder:
    """Qwen2ForCausalLM: biases on q, k and v only."""
    config.unmodelled("attention_bias", (None,), "q, k and v have biases, whatever it says")
    mixer = attention(config, positions_default=_POSITIONS, kv_default=32, qkv_bias=True)
    stack = _stack(mixer, _masks(config), (mlp(config),) * layers(config))
    return decoder(config, "Qwen2ForCausalLM", stack)


@family("Qwen3ForCausalLM", "qwen3")
def qwen3(config: Config) -> Decoder:
    """Qwen3ForCausalLM: RMSNorm on q and k, heads of 128 unless said otherwise."""
    mixer = _normed(config, kv_default=32, head_dim_default=128)
    stack = _stack(mixer, _masks(config), (mlp(config),) * layers(config))
    return decoder(config, "Qwen3ForCausalLM", stack)


def _stack(mixer: Attention, masks: tuple[str, ...], mlps: tuple[Mlp | Moe, ...]) -> tuple[Layer, ...]:
    """Layers that differ in their masks and in what follows."""
    return tuple(Layer(replace(mixer, mask=mask), mlp) for mask, mlp in zip(masks, mlps, strict=True))


def _normed(config: Config, kv_default: int, head_dim_default: int | None = None) -> Attention:
    """Qwen3's attention."""
    bias = config.flag("attention_bias", False)
    return attention(
        config,
        positions_default=_POSITIONS,
        kv_default=kv_default,
        head_dim_default=head_dim_default,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )


def _experts(config: Config) -> int:
    """How many there are, in either spelling; the second is what transformers 5 writes."""
    spellings = [key for key in ("num_experts", "num_local_experts") if key in config]
    counts = [config.integer(key) for key in spellings]
    if len(set(counts)) > 1:
        raise config.error(spellings[1], f"{counts[1]} contradicts num_experts {counts[0]}")
    return counts[0] if counts else config.assumed("num_experts", 128)


def _sparse(config: Config) -> tuple[bool, ...]:
    """Which layers have experts: every `decoder_sparse_step`-th, but `mlp_only_layers`."""
    step, dense = config.integer("decoder_sparse_step", 1), frozenset(config.integers("mlp_only_layers"))
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers(config)))


@family("Qwen3MoeForCausalLM", "qwen3_moe")
def qwen3_moe(config: Config) -> Decoder:
    """Qwen3MoeForCausalLM: experts in every `decoder_sparse_step`-th layer, but `mlp_only_layers`."""
    config.integer("num_key_value_heads", _KV_HEADS)  # of this family null is no number of heads
    experts = Moe(
        count=_experts(config),
        chosen=config.assumed("num_experts_per_tok", 8),
        intermediate=config.assumed("moe_intermediate_size", 768),
        normalize=config.flag("norm_topk_prob", False),
    )
    check_chosen(config, experts)
    mixer, dense = _normed(config, _KV_HEADS), Mlp(config.integer("intermediate_size"))
    mlps = tuple(experts if routed else dense for routed in _sparse(config))
    return decoder(config, "Qwen3MoeForCausalLM", _stack(mixer, _masks(config, moe=True), mlps))
