"""Gemma 4 (text): heads that differ by kind of layer, keys that later layers share, experts beside MLPs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layer_input import PerLayer
from ..layers import Layer
from ..lending import FULL, GROUPS, KINDS, SLIDING, lending, sizes
from ..mixers import Attention
from ..mlps import Mixture, Mlp, Moe, Routing
from ..parts import activation, attention, check_chosen, heads, kinds, layers, window
from ..rope import ropes
from .gemma import SANDWICH, TANH
from .gemma3n import model

_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


@family("Gemma4ForCausalLM", "gemma4_text")
def gemma4(config: Config) -> Decoder:
    """Gemma4ForCausalLM: five layers with a window to one without; the last has none."""
    config.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262144)
    config.unmodelled("use_bidirectional_attention", (None, "vision"), "attention to later tokens")
    last = layers(config) - 1
    types = kinds(config, [FULL if i % 6 == 5 or i == last else SLIDING for i in range(last + 1)], *KINDS)
    tanh, width = activation(config, "hidden_activation", TANH), config.integer("intermediate_size")
    key = "hidden_size_per_layer_input"
    tail = PerLayer((config.optional_integer(key, 0) or 0) if key in config else 256, tanh, "layer_scalar")
    double = 2 if config.flag("use_double_wide_mlp", False) else 1
    experts = _experts(config, tanh) if config.flag("enable_moe_block", False) else None
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")  # act with the block alone

    def layer(mixer: Attention) -> Layer:
        mlp = Mlp(width * (double if mixer.borrows else 1), activation=tanh)
        if not experts:
            return Layer(mixer, mlp, SANDWICH, tail=tail)
        return Layer(mixer, Mixture(mlp, experts, _NORMS), replace(SANDWICH, before_mlp=None), tail=tail)

    stack = tuple(map(layer, lending(config, *_attention(config, types), types, 0)))
    return model(config, "Gemma4ForCausalLM", stack, tail.size, 0.0)


def _attention(config: Config, types: tuple[str, ...]) -> tuple[Attention, Attention]:
    """That of layers that see all, of other heads and maybe one projection to k and v, and with windows."""
    bias, one = config.flag("attention_bias", False), config.flag("attention_k_eq_v", False)
    count, kv, size = heads(config, None, None)
    wide, groups = sizes(config, types, size, kv, apart=one)
    if count % groups:
        raise config.error(GROUPS, f"{groups} does not divide {count} attention heads")
    local, whole = ropes(config, (size, wide), 131072, 1e4, 1e6, default=_ROPES)
    how: dict[str, Any] = {"qk_norm": "head", "bare_v": True, "scale": 1.0, "mask": window(config, 512)}
    sliding = attention(config, rope=local, qkv_bias=bias, out_bias=bias, **how)
    full = replace(sliding, rope=whole, mask="causal", head_dim=wide, kv_heads=groups, one_kv=one)
    return full, sliding


def _experts(config: Config, activation: str) -> Moe:
    """Those beside the MLP of each layer, which are chosen by normalized hidden states."""
    config.spelled(num_experts_per_tok="top_k_experts")
    experts = Moe(
        count=config.integer("num_experts"),
        chosen=config.integer("top_k_experts"),
        intermediate=config.integer("moe_intermediate_size"),
        routing=Routing(normalize=True, expert_scale="router.per_expert_scale"),
        module="",
        router="router.proj",
        matrices=("experts.gate_up_proj[0]", "experts.gate_up_proj[1]", "experts.down_proj"),
        activation=activation,
        norm="pre_feedforward_layernorm_2",
        router_scale="router.scale",
    )
    return check_chosen(config, experts)
