"""What configs say of attention to compressed keys (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.reader import Config

from .attention import Rope
from .compressed_attention import CompressedAttention, Compressor
from .parts import kinds, layers
from .rope import rope

_SLIDING, _SPARSE, _HEAVY = _KINDS = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_RATES = {_SPARSE: 4, _HEAVY: 128}  # tokens of an entry
_OLD = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_BY_RATIO = {0: _SLIDING, **{rate: kind for kind, rate in _RATES.items()}}


def compressed_attention(config: Config) -> list[CompressedAttention]:
    """By layer its attention, in either spelling of the kinds.

    Where they are absent the first two are heavily compressed, and then every second.
    """
    count, ratios = layers(config), config.integers("compress_ratios")
    if ratios and (len(ratios) < count or not {*ratios} <= _BY_RATIO.keys()):
        raise config.error("compress_ratios", f"expected 0, 4 or 128 for each of {count} layers")
    default = [_BY_RATIO[ratio] for ratio in ratios[:count]]
    default = default or [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(count)]
    mixers = _by_kind(config)
    return [mixers[kind] for kind in kinds(config, default, *_KINDS)]


def _by_kind(config: Config) -> dict[str, CompressedAttention]:
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
    sparse, heavy = (
        config.optional_integer(_OLD[kind], 2) or (given.integer(kind, rate, 2) if given else rate)
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
