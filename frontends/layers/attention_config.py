"""Readers of attention fields for kinds of attention that only some families have.

- `compressed_attention`: several tokens compressed to one key (DeepSeek-V4)
- `block_attention`: blocks of keys that an index selects (MiniMax-M3)
- `latent`: multi-head latent attention, in the field names of DeepSeek
- `kv_sharing`: the last layers read keys and values of earlier layers (Gemma 3n, Gemma 4)
- `global_heads`: other head sizes and counts in layers without a window (Gemma 4)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.base.errors import UnsupportedError
from llmir.frontends.config.reader import Config

from .attention import Attention, BlockIndex, Rope
from .compressed_attention import CompressedAttention, Compressor
from .latent_attention import LatentAttention
from .parts import attention, heads, kinds, layers, window
from .rope import rope, ropes, score_factor

# --- Compressed keys ---

_SLIDING, _SPARSE, _HEAVY = _COMPRESSED_LAYER_TYPES = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_RATES = {_SPARSE: 4, _HEAVY: 128}  # tokens per compressed entry
_OLD = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_BY_RATIO = {0: _SLIDING, **{rate: kind for kind, rate in _RATES.items()}}


def compressed_attention(config: Config) -> list[CompressedAttention]:
    """The attention of each layer, in either spelling of the kinds of layers.

    By default, the first two layers and then every second layer are heavily compressed.
    """
    count, ratios = layers(config), config.integers("compress_ratios")
    if ratios and (len(ratios) < count or not {*ratios} <= _BY_RATIO.keys()):
        raise config.error("compress_ratios", f"expected 0, 4 or 128 for each of {count} layers")
    default = [_BY_RATIO[ratio] for ratio in ratios[:count]]
    default = default or [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(count)]
    mixers = _by_kind(config)
    return [mixers[kind] for kind in kinds(config, default, *_COMPRESSED_LAYER_TYPES)]


def _by_kind(config: Config) -> dict[str, CompressedAttention]:
    """The attention by kind of layer."""
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
    """Rotary positions of layers with only a window, and of other layers, where they may be scaled."""
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


# --- Blocks of keys ---

_INDEX_LAYER_TYPES = ("full_attention", "minimax_m3_sparse")
_OBJECT = "sparse_attention_config"
# Config fields inside this object, or next to the object.
_INDEX_SIZES = {
    "index_n_heads": ("sparse_num_index_heads", 4),
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}


def block_attention(config: Config, mixer: Attention) -> list[Attention]:
    """The attention of each layer: over all keys, or over blocks that an index selects."""
    stated, none = config.nested(_OBJECT), (0,) * layers(config)
    places = stated.integers("sparse_attention_freq", none) if stated else none
    found = kinds(config, [_INDEX_LAYER_TYPES[bool(place)] for place in places], *_INDEX_LAYER_TYPES)
    own = dict(
        zip(
            _INDEX_LAYER_TYPES,
            (mixer, replace(mixer, blocks=_index(config, stated, mixer.kv_heads))),
            strict=True,
        )
    )
    return [own[kind] for kind in found]


def _index(config: Config, stated: Config | None, kv_heads: int) -> BlockIndex:
    """Read the selection of blocks; ConfigError unless the index has one head per key head."""
    heads, size, length, top_k, local = (
        stated.integer(old, beside) if stated else beside
        for beside, old in (
            (config.integer(key, default), old) for key, (old, default) in _INDEX_SIZES.items()
        )
    )
    if heads != kv_heads:
        raise config.error(
            "index_n_heads", f"{heads} heads for {kv_heads} key/value heads, which need one each"
        )
    if local > top_k:
        raise config.error(
            "index_local_blocks", f"{local} is more than the {top_k} blocks of index_topk_blocks"
        )
    if stated:
        stated.ignore("use_sparse_attention", "sparse_init_block", "sparse_score_type")
    return BlockIndex(size, length, top_k, local)


# --- Latent attention ---

_LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent(
    config: Config,
    defaults: tuple[int | None, int, int, int, int | None],
    *,
    positions_default: int | None,
    interleaved: bool,
    whole: bool = False,
) -> LatentAttention:
    """Read multi-head latent attention; the defaults of a class are in the order of `_SIZES`.

    For queries, a latent size of null means no latent. For values, a head size of null means hidden / heads.
    `head_dim` is the number of rotary elements of a head. With `whole`, `head_dim` is the number of all
    elements of a query head, and `partial_rotary_factor` is the fraction of rotary elements.
    """
    heads, found = config.integer("num_attention_heads"), dict(zip(_LATENT_SIZES, defaults, strict=True))
    for key, default in found.items():
        if default and (key not in config or key not in ("q_lora_rank", "v_head_dim")):
            found[key] = config.assumed(key, default)
        else:
            found[key] = config.optional_integer(key)
    q_latent, kv, nope, rotary, value = found.values()
    assert kv and nope and rotary
    if rotary % 2:
        raise config.error("qk_rope_head_dim", f"rotary positions need an even size, got {rotary}")
    config.unmodelled("num_key_value_heads", (None, heads), "heads that share keys of their own")
    config.unmodelled("qk_head_dim", (None, nope + rotary), "heads of another size")
    positions, factor = None, 1.0
    if positions_default:
        size = nope + rotary if whole else rotary
        config.unmodelled("head_dim", (None, size), "heads of another size")
        positions = rope(config, size, positions_default, share=rotary / size if whole else None)
        if positions.size not in (0, rotary):
            fact = f"{positions.size} of {size} elements have positions; qk_rope_head_dim says {rotary}"
            raise config.error("partial_rotary_factor", fact)
        positions = replace(positions, size=0, interleaved=interleaved)
        factor = score_factor(config, positions)
    return LatentAttention(
        heads=heads,
        q_latent=q_latent,
        latent=kv,
        nope=nope,
        rotary=rotary,
        value=value or config.integer("hidden_size") // heads,
        rope=positions,
        scale=(nope + rotary) ** -0.5 * factor,
        bias=config.flag("attention_bias", False),
    )


# --- Shared keys ---

KINDS = SLIDING, FULL = ("sliding_attention", "full_attention")


def kv_sharing(
    config: Config, full: Attention, sliding: Attention, types: tuple[str, ...], shared: int
) -> list[Attention]:
    """The attention of each layer; the last layers (by default `shared`) use keys of earlier layers."""
    key = "num_kv_shared_layers"
    shared = config.integer(key, shared, minimum=0, maximum=len(types))
    own = types[: len(types) - shared]
    if shared and {*own} != {*types}:
        missing = min({*types} - {*own})
        raise config.error(key, f"{shared} leaves no {missing} with keys of its own, which others read")
    each = {FULL: full, SLIDING: sliding}
    lent = {kind: replace(mixer, lends=mixer.sees) if shared else mixer for kind, mixer in each.items()}
    borrowing = {kind: replace(mixer, borrows=mixer.sees) for kind, mixer in each.items()}
    return [lent[kind] for kind in own] + [borrowing[kind] for kind in types[len(own) :]]


# --- Other heads in global layers ---

_GROUPS = "num_global_key_value_heads"
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


def global_heads(config: Config, types: tuple[str, ...]) -> tuple[Attention, Attention]:
    """The attention of layers without a window, where keys may equal values, and with a window."""
    bias, one = config.flag("attention_bias", False), config.flag("attention_k_eq_v", False)
    count, kv, size = heads(config, None, None)
    wide, groups = _sizes(config, types, size, kv, apart=one)
    if count % groups:
        raise config.error(_GROUPS, f"{groups} does not divide {count} attention heads")
    local, whole = ropes(config, (size, wide), 131072, 1e4, 1e6, default=_ROPES)
    how: dict[str, Any] = {"qk_norm": "head", "bare_v": True, "scale": 1.0, "mask": window(config, 512)}
    sliding = attention(config, rope=local, qkv_bias=bias, out_bias=bias, **how)
    full = replace(sliding, rope=whole, mask="causal", head_dim=wide, kv_heads=groups, one_kv=one)
    return full, sliding


def _sizes(config: Config, types: tuple[str, ...], size: int, kv: int, *, apart: bool) -> tuple[int, int]:
    """The head size and key/value heads of layers without a window, in either spelling.

    The separate number of heads applies only if these layers are `apart`.
    """
    key, stated = "per_layer_config", config.nested("per_layer_config")
    wide, groups = config.integer("global_head_dim", 512), config.optional_integer(_GROUPS)
    if stated is None:
        return wide, groups if apart and groups else kv
    each = {name: stated.nested(name) or config for name in stated.fields}
    found = {(own.integer("head_dim", size), own.integer("num_key_value_heads", kv)) for own in each.values()}
    full = [i for i, kind in enumerate(types) if kind == FULL]
    if len(found) != 1 or sorted(int(i) if i.isdigit() else -1 for i in each) != full:
        fact = f"sizes other than one for all layers of {FULL} are not modelled"
        raise config.error(key, fact, UnsupportedError)
    return found.pop()
