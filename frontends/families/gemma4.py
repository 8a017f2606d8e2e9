"""Gemma 4 (text): two head sizes, later layers that share keys, and experts in parallel with MLPs."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.attention_config import FULL, KINDS, SLIDING, global_heads, kv_sharing
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, PerLayer
from llmir.frontends.layers.mlp import Mlp, Moe, ParallelMlpMoe, Routing
from llmir.frontends.layers.parts import activation, check_chosen, kinds, layers

from .gemma import SANDWICH, TANH, by_layer, cap

_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")


@family("Gemma4ForCausalLM", "gemma4_text")
def gemma4(config: Config) -> Decoder:
    """Gemma4ForCausalLM: by default, every sixth layer and the last layer have no window."""
    config.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262144)
    config.unmodelled("use_bidirectional_attention", (None, "vision"), "attention to later tokens")
    last = layers(config) - 1
    types = kinds(config, [FULL if i % 6 == 5 or i == last else SLIDING for i in range(last + 1)], *KINDS)
    tanh, width = activation(config, "hidden_activation", TANH), config.integer("intermediate_size")
    key = "hidden_size_per_layer_input"
    tail = PerLayer((config.optional_integer(key, 0) or 0) if key in config else 256, tanh, "layer_scalar")
    double = 2 if config.flag("use_double_wide_mlp", False) else 1
    experts = _experts(config, tanh) if config.flag("enable_moe_block", False) else None
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")  # need experts

    def layer(mixer: Attention) -> Layer:
        mlp = Mlp(width * (double if mixer.borrows else 1), activation=tanh)
        if not experts:
            return Layer(mixer, mlp, SANDWICH, tail=tail)
        return Layer(
            mixer, ParallelMlpMoe(mlp, experts, _NORMS), replace(SANDWICH, before_mlp=None), tail=tail
        )

    stack = tuple(map(layer, kv_sharing(config, *global_heads(config, types), types, 0)))
    logits = cap(config, "final_logit_softcapping", 0.0)
    return by_layer(config, "Gemma4ForCausalLM", stack, tail.size, logits_cap=logits)


def _experts(config: Config, activation: str) -> Moe:
    """The experts in parallel with each layer's MLP; the router reads normalized hidden states."""
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
