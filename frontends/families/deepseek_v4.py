"""DeepSeek V4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import CompressedAttention, Compressor, Rope
from ..mlps import Mlp, Moe, Routing, apart
from ..parts import check_chosen, decoder, drafts, kinds, layers
from ..rope import rope
from ..streams import Streams

_SLIDING, _SPARSE, _HEAVY = KINDS = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_RATES = {_SPARSE: 4, _HEAVY: 128}  # tokens of an entry
_BY_RATIO = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
_NAMES = ("w1", "w3", "w2")
_CALLED = Names("embed", "layers.{layer}", "norm", "head")


@family("DeepseekV4ForCausalLM", "deepseek_v4")
def deepseek_v4(config: Config) -> Decoder:
    """DeepseekV4ForCausalLM: compressed keys beside a window, streams of residuals, experts by token."""
    for key in ("attention_bias", "mlp_bias"):
        config.unmodelled(key, (None, False), "biases")
    config.unmodelled("norm_topk_prob", (None, True), "the class normalizes")
    config.unmodelled("hidden_act", (None, "silu"), "another activation")
    config.unmodelled("n_shared_experts", (None, 1), "the class has one")
    drafts(config)
    count, eps = layers(config), config.number("rms_norm_eps", 1e-6)
    streams = Streams(
        count=config.integer("hc_mult", 4),
        iterations=config.integer("hc_sinkhorn_iters", 20),
        eps=config.number("hc_eps", 1e-6),
        norm_eps=eps,
    )
    mixers = _mixers(config)
    first = config.integer("num_hash_layers", 3, minimum=0)
    default = ("hash_moe",) * min(first, count) + ("moe",) * (count - first)
    routed = config.texts("mlp_layer_types") or default
    if len(routed) != count or not {*routed} <= {"hash_moe", "moe"}:
        raise config.error("mlp_layer_types", f"expected hash_moe or moe for each of {count} layers")
    experts = _experts(config)
    by_token = replace(
        experts.routing, correction="", table="ffn.gate.tid2eid", rows=config.integer("vocab_size")
    )
    mlps = {"moe": experts, "hash_moe": replace(experts, routing=by_token)}
    norms = Norms("attn_norm", None, "ffn_norm", None)
    known = {
        (mixer, mlp): Layer(mixers[mixer], mlps[mlp], norms, streams=streams)
        for mixer in mixers
        for mlp in mlps
    }
    stack = tuple(known[each] for each in zip(_kinds(config, count), routed, strict=True))
    return decoder(config, "DeepseekV4ForCausalLM", stack, names=_CALLED)


def _kinds(config: Config, count: int) -> tuple[str, ...]:
    """By layer, in either spelling; the first two heavily compressed, then every second, where absent."""
    ratios = config.integers("compress_ratios")
    if ratios and (len(ratios) < count or not {*ratios} <= _BY_RATIO.keys()):
        raise config.error("compress_ratios", f"expected 0, 4 or 128 for each of {count} layers")
    default = [_BY_RATIO[ratio] for ratio in ratios[:count]]
    default = default or [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(count)]
    return kinds(config, default, *KINDS)


def _mixers(config: Config) -> dict[str, CompressedAttention]:
    """Attention of each kind of layer."""
    config.unmodelled("num_key_value_heads", (None, 1), "more keys than one that all heads share")
    heads, size = config.assumed("num_attention_heads", 64), config.assumed("head_dim", 512)
    groups = config.assumed("o_groups", 8)
    if heads % groups:
        raise config.error("o_groups", f"{groups} groups do not divide {heads} heads")
    main, far = _ropes(config, size)
    plain = CompressedAttention(
        heads=heads,
        head_dim=size,
        q_latent=config.assumed("q_lora_rank", 1024),
        groups=groups,
        out_rank=config.assumed("o_lora_rank", 1024),
        window=config.assumed("sliding_window", 128),
        rope=main,
    )
    given = config.nested("compress_rates")
    old = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
    sparse, heavy = (
        config.optional_integer(old[kind], 2) or (given.integer(kind, rate, 2) if given else rate)
        for kind, rate in _RATES.items()
    )
    chosen: dict[str, Any] = {
        "index_heads": config.assumed("index_n_heads", 64),
        "index_size": config.assumed("index_head_dim", 128),
        "top_k": config.assumed("index_topk", 512),
    }
    one, two = (Compressor(rate, series, size, far) for rate, series in ((heavy, 1), (sparse, 2)))
    heavily = replace(plain, rope=far, compressor=one)
    return {_SLIDING: plain, _HEAVY: heavily, _SPARSE: replace(heavily, compressor=two, **chosen)}


def _experts(config: Config) -> Moe:
    scores = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid"}
    config.unmodelled("scoring_func", (None, *scores), "another score of the router")
    routing = Routing(
        score=scores.get(config.text("scoring_func", "sqrtsoftplus"), "sigmoid"),
        normalize=True,
        scale=config.number("routed_scaling_factor", 1.5),
        correction="ffn.gate.bias",
    )
    width, clamp = (
        config.assumed("moe_intermediate_size", 2048),
        (config.number("swiglu_limit", 10.0), 1.0, 0.0),
    )
    shared = Mlp(width, False, "ffn.shared_experts", "shared_experts", "shared_", _NAMES, clamp=clamp)
    found = Moe(
        count=config.assumed("n_routed_experts", 256),
        chosen=config.assumed("num_experts_per_tok", 6),
        intermediate=width,
        routing=routing,
        module="ffn",
        matrices=apart(*_NAMES),
        clamp=clamp,
        shared=shared,
    )
    return check_chosen(config, found)


def _ropes(config: Config, size: int) -> tuple[Rope, Rope]:
    """Those of layers with a window alone, and of others, which may be stretched, their amplitude kept."""
    old = config.optional_integer("qk_rope_head_dim")
    share = old / size if old else 64 / 512
    share = config.optional_number("partial_rotary_factor") or share
    stated = config.nested("rope_parameters") or config.nested("rope_scaling")
    parts = [stated and stated.nested(key) for key in ("main", "compress")]
    near, far = parts if all(parts) else (None, stated)
    bases = config.number("rope_theta", 10000.0), config.number("compress_rope_theta", 160000.0)
    lengths = {k: config.fields[k] for k in ("max_position_embeddings",) if k in config}
    found = []
    for inner, theta in zip((near, far), bases, strict=True):
        outer = Config(lengths, name=config.name)
        alone = inner or Config({}, name=config.name)
        each = rope(outer, size, 1048576, theta, share=share, inner=alone)
        if each.scaling == "yarn" and "attention_factor" not in alone:
            each = replace(each, factors=(*each.factors[:4], 1.0, *each.factors[5:]))
        found.append(replace(each, interleaved=True, last=True))
    return found[0], found[1]
