"""DeepSeek V4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import compressed_attention
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Norms, streams
from llmir.frontends.layers.mlp import Mlp, Moe, Routing, expert_tensor_names
from llmir.frontends.layers.parts import decoder, drafts, layer_pairs, layers, mlp_kinds

from .deepseek import experts

_SCORES = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid"}
_NAMES = ("w1", "w3", "w2")
_CALLED = CheckpointNames("embed", "layers.{layer}", "norm", "head")


@family("DeepseekV4ForCausalLM", "deepseek_v4")
def deepseek_v4(config: Config) -> Decoder:
    """DeepseekV4ForCausalLM: compressed keys and a window, residual streams, experts by token id."""
    config.fixed("biases", attention_bias=False, mlp_bias=False)
    config.fixed("the class normalizes", norm_topk_prob=True)
    config.fixed("another activation", hidden_act="silu")
    config.fixed("the class has one", n_shared_experts=1)
    drafts(config)
    _expert_dtype(config)
    by_score = _experts(config)
    rows = config.integer("vocab_size")
    table = replace(by_score.routing, correction="", table="ffn.gate.tid2eid", rows=rows)
    mlps = {"hash_moe": replace(by_score, routing=table), "moe": by_score}
    first = config.integer("num_hash_layers", 3, minimum=0)
    routed = mlp_kinds(config, ("hash_moe" if i < first else "moe" for i in range(layers(config))), *mlps)
    norms, mixers = Norms("attn_norm", None, "ffn_norm", None), compressed_attention(config)
    stack = layer_pairs(mixers, (mlps[kind] for kind in routed), norms, streams=streams(config))
    return decoder(config, "DeepseekV4ForCausalLM", stack, names=_CALLED)


def _expert_dtype(config: Config) -> None:
    """Move `expert_dtype` into the `quantization_config`, as transformers does with configs of V4."""
    stated, scheme = config.fields.get("expert_dtype"), config.fields.get("quantization_config")
    if isinstance(scheme, Mapping):
        moved = {**scheme, "expert_dtype": scheme.get("expert_dtype", stated)}
        config.fields = MappingProxyType({**config.fields, "quantization_config": moved})
        config.ignore("expert_dtype")
    else:
        config.unmodelled("expert_dtype", (None,), "a type without a quantization_config")


def _experts(config: Config) -> Moe:
    """Experts that tokens choose by scores, and a shared expert of the same width."""
    config.unmodelled("scoring_func", (None, *_SCORES), "another score of the router")
    config.unmodelled("topk_method", (None, "noaux_tc"), "another choice of experts")
    routing = Routing(
        score=_SCORES.get(config.text("scoring_func", "sqrtsoftplus"), "sigmoid"),
        normalize=True,
        scale=config.number("routed_scaling_factor", 1.5),
        correction="ffn.gate.bias",
    )
    found = experts(config, routing, (256, 6, 2048, 0), module="ffn")
    clamp = (config.number("swiglu_limit", 10.0), 1.0, 0.0)
    shared = Mlp(found.intermediate, False, "ffn.shared_experts", "shared_experts", "shared_", _NAMES)
    return replace(
        found, matrices=expert_tensor_names(*_NAMES), clamp=clamp, shared=replace(shared, clamp=clamp)
    )
