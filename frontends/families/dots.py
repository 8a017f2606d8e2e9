"""dots.llm1. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Routing
from llmir.frontends.layers.parts import attention, decoder, sliding_layers, window

from .deepseek import experts


@family("Dots1ForCausalLM", "dots1")
def dots1(config: Config) -> Decoder:
    """Dots1ForCausalLM: DeepSeek's experts after attention with normalized q and k."""
    config.unmodelled("scoring_func", (None, "sigmoid", "noaux_tc"), "another score of the router")
    config.unmodelled("topk_method", (None, "noaux_tc"), "another choice of experts")
    routing = Routing(
        score="sigmoid",
        normalize=config.flag("norm_topk_prob", False),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=config.optional_integer("n_group") or 1,
        kept=config.optional_integer("topk_group") or 1,
        best=2,
        correction="mlp.gate.e_score_correction_bias",
    )
    bias, most = config.flag("attention_bias", False), config.integer("max_window_layers", 62, minimum=0)
    full = attention(config, kv_default=32, bias=bias, qk_norm="head")
    sliding = replace(full, mask=window(config, 4096))
    sparse, dense = experts(config, routing), Mlp(config.assumed("intermediate_size", 10944))
    kept = config.integer("first_k_dense_replace", 0, minimum=0)
    stack = tuple(
        Layer(sliding if slide else full, dense if i < kept else sparse)
        for i, slide in enumerate(sliding_layers(config, lambda layer: layer >= most))
    )
    return decoder(config, "Dots1ForCausalLM", stack)
