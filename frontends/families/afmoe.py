"""Trinity (AFMoE) of Arcee. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp, Routing
from llmir.frontends.layers.parts import all_but_every, attention, decoder, layers, sliding_layers, window

from .deepseek import experts

_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")


@family("AfmoeForCausalLM", "afmoe")
def afmoe(config: Config) -> Decoder:
    """AfmoeForCausalLM: gated attention with windows; every fourth layer has no window and no positions."""
    config.spelled(n_routed_experts="num_experts", n_shared_experts="num_shared_experts")
    config.ignore(
        "load_balance_coeff", "use_grouped_mm"
    )  # fields for training only, or for the implementation of the same computation
    one = {"num_expert_groups": 1, "num_limited_groups": 1}
    config.fixed("another choice of experts than the class has", score_func="sigmoid", route_norm=True, **one)
    scale, correction = config.number("route_scale", 1.0), "mlp.expert_bias"
    routing = Routing("sigmoid", normalize=True, scale=scale, correction=correction, learned=True)
    routed = replace(experts(config, routing, (64, 6, 1408, 2)), router="router.gate")
    dense, first = Mlp(config.integer("intermediate_size", 6144)), config.integer("num_dense_layers", 1, 0)
    bias, every = config.flag("attention_bias", False), config.integer("global_attn_every_n_layers", 4)
    own = sliding_layers(config, all_but_every(every))
    sliding = attention(
        config,
        positions_default=16384,
        head_dim_default=128,
        bias=bias,
        qk_norm="head",
        gate="gate_proj",
        mask=window(config, 1024),
    )
    full, norms = replace(sliding, mask="causal", rope=None), Norms(*_NORMS)
    stack = tuple(
        Layer(sliding if own[i] else full, dense if i < first else routed, norms)
        for i in range(layers(config))
    )
    scaled = config.integer("hidden_size") ** 0.5 if config.flag("mup_enabled", False) else 1.0
    return decoder(config, "AfmoeForCausalLM", stack, eps_default=1e-5, embedding_scale=scaled)
