"""Rotary positions of a config, read as in `modeling_rope_utils` of transformers 5; others are errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from llmir.base.dataclass import dataclass
from llmir.frontends.config.reader import Config
from llmir.frontends.config.source import show

from .attention import Rope

_NUMBERS = """
    attention_factor beta_fast beta_slow factor finetuned high_freq_factor long_factor low_freq_factor mscale
    mscale_all_dim short_factor truncate
"""
_SHARE = "partial_rotary_factor"
_THETA, _TRAINED, _POSITIONS = "rope_theta", "original_max_position_embeddings", "max_position_embeddings"


@dataclass(frozen=True)
class _RopeConfig:
    """The fields of rotary positions: the config, its nested object for positions, and unscaled lengths."""

    config: Config
    inner: Config
    theta: float
    head_dim: int
    positions: int
    own: int | None  # the class's length before scaling, which counts as a stated field

    @property
    def trained(self) -> float:
        """The length before scaling, from the object or from the outer config."""
        return _agreed(self.config, self.inner, _TRAINED, self.positions, self.own)

    def factor(self) -> float:
        """The scaling factor of positions; null means the ratio of the lengths after and before scaling."""
        if self.inner.fields.get("factor", 1) is None:
            self.inner.ignore("factor")
            return self.positions / self.trained
        return self.inner.number("factor")


def rope(
    config: Config,
    head_dim: int,
    positions: int,
    theta: float = 10000.0,
    trained: int | None = None,
    share: float | None = None,
    *,
    inner: Config | None = None,
) -> Rope:
    """Read rotary positions from `rope_theta` and `rope_scaling`, from `rope_parameters`, or from `inner`.

    `positions`, `theta`, `trained` and `share` are the family's defaults for `max_position_embeddings`,
    `rope_theta`, `original_max_position_embeddings` and `partial_rotary_factor`; by default, all elements of
    a head have positions.
    """
    inner = inner or _object(config)
    kind = _kind(inner)
    size = head_dim if kind == "proportional" else _part(config, inner, head_dim, share)
    theta = _agreed(config, inner, _THETA, theta)
    length = config.optional_integer(_POSITIONS) or positions
    factors = _FACTORS[kind](_RopeConfig(config, inner, theta, size, length, trained))
    unread = ((None,), "a number of other rotary scalings")
    inner.finish(neutral=dict.fromkeys(_NUMBERS.split(), unread))
    if size % 2:
        if factors:
            raise config.error(_SHARE, f"{size} of {head_dim} elements are no pairs, and they are stretched")
        # The classes use powers of theta in steps of 2/size, and round the number of pairs up.
        theta, size = theta ** ((size + 1) / size), size + 1
    return Rope(theta, kind, factors, 0 if size == head_dim else size)


_NOTHING: Mapping[str, object] = MappingProxyType({})
_KINDS = ("sliding_attention", "full_attention")


def ropes(
    config: Config,
    head_dims: tuple[int, int],
    positions: int,
    local: float,
    theta: float,
    share: float | None = None,
    default: Mapping[str, object] = _NOTHING,
) -> tuple[Rope, Rope]:
    """The rotary positions of layers with a window and of other layers, from `rope_parameters`.

    With the older field names, scaling applies only to layers without a window. `local` and `theta` are the
    default bases, and `default` is the object if it is missing.
    """
    params = config.nested("rope_parameters")
    if default and params is None:
        params = Config(default, name=config.name)
    if params is None or not params.fields:
        bare = {key: value for key, value in config.fields.items() if key == _SHARE}
        sliding = rope(Config(bare, name=config.name), head_dims[0], positions, local, share=share)
        return sliding, rope(config, head_dims[1], positions, theta, share=share)
    if odd := [key for key in params.fields if key not in _KINDS]:
        raise params.error(odd[0], f"expected objects for {' and '.join(_KINDS)} alone")
    config.unmodelled("rope_scaling", (None,), "a scaling beside rope_parameters")
    each = [params.nested(kind) or Config({}, name=config.name) for kind in _KINDS]
    sliding, full = (
        rope(config, size, positions, base, share=share, inner=inner)
        for size, base, inner in zip(head_dims, (local, theta), each, strict=True)
    )
    return sliding, full


def multimodal_axes(config: Config) -> None:
    """Accept and ignore the layout of image positions, because text has equal positions on all axes."""
    for key in ("rope_scaling", "rope_parameters"):
        if inner := config.nested(key):
            inner.ignore("mrope_section", "mrope_interleaved")


def _part(config: Config, inner: Config, head_dim: int, share: float | None) -> int:
    """The number of elements with positions in a head."""
    if share is None:
        for view in (config, inner):
            view.unmodelled(_SHARE, (None, 1.0), "rotary positions on part of a head")
        return head_dim
    share = _agreed(config, inner, _SHARE, share)
    if not 1 <= (size := int(min(head_dim * share, 2**48))) <= head_dim:  # the product may be infinite
        raise config.error(_SHARE, f"{show(share)} of {head_dim} elements are {size}; expected 1 to all")
    return size


def score_factor(config: Config, rope: Rope) -> float:
    """The factor of latent attention's scores for scaled positions, from `mscale_all_dim`."""
    mscale = _object(config).fields.get("mscale_all_dim")
    if rope.scaling != "yarn" or not isinstance(mscale, int | float) or not mscale:
        return 1.0
    return amplitude(rope.factors[0], mscale) ** 2


def amplitude(factor: float, mscale: float) -> float:
    """The attention factor for positions scaled by `factor` (arXiv:2309.00071, eq. 22)."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _object(config: Config) -> Config:
    """The object in either spelling; an empty object counts as missing."""
    found = [
        view for key in ("rope_parameters", "rope_scaling") if (view := config.nested(key)) and view.fields
    ]
    if not found:
        return Config({}, name=config.name)
    if any(view.fields != found[0].fields for view in found):
        raise config.error("rope_scaling", "contradicts rope_parameters; one of them is enough")
    for view in found[1:]:
        view.ignore(*view.fields)
    return found[0]


def _agreed(config: Config, inner: Config, key: str, default: float, own: float | None = None) -> float:
    """A number from the object or the outer config; ConfigError if both set it and differ."""
    values = [view.number(key) for view in (inner, config) if key in view]
    values += [own] if own is not None and key not in config else []
    if len(set(values)) > 1:
        raise inner.error(key, f"{show(values[0])} contradicts {show(values[1])} beside it")
    return values[0] if values else default


def _kind(inner: Config) -> str:
    spellings = [key for key in ("rope_type", "type") if key in inner]
    names = [inner.text(key) for key in spellings]
    if "mrope_section" in inner:  # positions along three axes, which are equal for text
        names = ["default" if name == "mrope" else name for name in names]
    if len(set(names)) > 1:
        raise inner.error("type", f"{show(names[1])} contradicts rope_type {show(names[0])}")
    if not names:
        return "none"
    known = {"default": "none", **{kind: kind for kind in _FACTORS if kind != "none"}}
    inner.unmodelled(spellings[0], tuple(known), "rotary scaling")
    return known.get(names[0], "none")


def _none(stated: _RopeConfig) -> tuple[float, ...]:
    for view in (stated.config, stated.inner):
        view.ignore(_TRAINED)  # no scaling
    return ()


def _linear(stated: _RopeConfig) -> tuple[float, ...]:
    for view in (stated.config, stated.inner):
        view.ignore(_TRAINED)  # all positions are scaled equally
    return (stated.inner.number("factor"),)


def _dynamic(stated: _RopeConfig) -> tuple[float, ...]:
    for view in (stated.config, stated.inner):
        view.unmodelled(_TRAINED, (stated.positions,), f"dynamic scaling begins at {_POSITIONS}")
    if stated.head_dim == 2:
        raise stated.config.error("head_dim", "dynamic rotary scaling needs heads of more than 2")
    return (stated.inner.number("factor"), stated.positions)


def _llama3(stated: _RopeConfig) -> tuple[float, ...]:
    low, high = (stated.inner.number(f"{end}_freq_factor") for end in ("low", "high"))
    if low > high:
        fact = f"expected at least low_freq_factor, {show(low)}, got {show(high)}"
        raise stated.inner.error("high_freq_factor", fact)
    return (stated.inner.number("factor"), low, high, stated.trained)


def _yarn(stated: _RopeConfig) -> tuple[float, ...]:
    """YaRN (arXiv:2309.00071); `mscale` and `mscale_all_dim` have an effect only if both are set."""
    inner, factor = stated.inner, stated.factor()
    if stated.theta <= 1:
        raise stated.config.error(_THETA, f"yarn needs more than 1, got {show(stated.theta)}")

    ours, all_dim = (inner.optional_number(key, zero=True) for key in ("mscale", "mscale_all_dim"))
    attention = inner.optional_number("attention_factor")
    if attention is None:
        attention = (
            amplitude(factor, ours) / amplitude(factor, all_dim) if ours and all_dim else amplitude(factor, 1)
        )
    fast, slow = inner.optional_number("beta_fast") or 32.0, inner.optional_number("beta_slow") or 1.0
    inner.unmodelled("finetuned", (None, True), "scaling by the length of the prompt")
    return (factor, stated.trained, fast, slow, attention, float(inner.flag("truncate", True)))


def _longrope(stated: _RopeConfig) -> tuple[float, ...]:
    """LongRoPE (arXiv:2402.13753)."""
    inner, trained = stated.inner, stated.trained
    factor = stated.factor() if "factor" in inner else stated.positions / trained
    if trained <= 1:
        raise inner.error(_TRAINED, f"longrope needs more than 1, got {show(trained)}")
    attention = inner.optional_number("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    short, long = (inner.numbers(f"{part}_factor", stated.head_dim // 2) for part in ("short", "long"))
    return (trained, attention, *short, *long)


def _proportional(stated: _RopeConfig) -> tuple[float, ...]:
    """Only the first pairs rotate, with the exponents of the whole head."""
    share = stated.inner.optional_number(_SHARE) or 1.0
    if share > 1:
        raise stated.inner.error(_SHARE, f"expected at most 1, got {show(share)}")
    return (stated.inner.optional_number("factor") or 1.0, share)


_FACTORS: dict[str, Callable[[_RopeConfig], tuple[float, ...]]] = {
    "none": _none,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
"""What `Rotary.factors` holds for each scaling of `llmir.ir.ops.rope.SCALINGS`."""
