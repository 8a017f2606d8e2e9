"""Rotary positions, query temperature, and the write of keys and values to the cache.

Axes: `b` sequences, `t` new tokens, `p` cached tokens, `g` key/value heads, `r` query heads for each
key/value head, `d` head size, `e` head size of the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import plain
from llmir.ir.core.dtype import DType
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, product

from .norm import rms_norm
from .quant import round_trip

# The methods that extend positions beyond the trained length, with their parameters in `Rotary.factors`. A
# star represents one number for each pair of elements of a head.
SCALINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": (),
        "linear": ("factor",),
        "dynamic": ("factor", "trained length"),
        "llama3": ("factor", "low frequency factor", "high frequency factor", "trained length"),
        "yarn": ("factor", "trained length", "beta fast", "beta slow", "attention factor", "truncate"),
        "longrope": ("trained length", "attention factor", "short factors*", "long factors*"),
        "proportional": ("factor", "share"),
    }
)


@dataclass(frozen=True)
class Rotary(Op):
    """Base class of ops that rotate by position (arXiv:2104.09864, eq. 34).

    A pair has one element of each half of a head (as in HF), or two neighbors with `interleaved` (GPT-J).
    `scaling` is a key of `SCALINGS`, which defines the `factors`. The first `size` elements of each head are
    rotated, or the last `size` elements with `last`, or all elements if `size` is 0. A row covers `stride`
    positions, and is rotated by the first of them.
    """

    sense: ClassVar[int] = 1

    theta: float = 10000.0
    scaling: str = "none"
    factors: tuple[float, ...] = ()
    size: int = 0
    interleaved: bool = False
    last: bool = False
    stride: int = 1

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.scaling not in SCALINGS:
            known = ", ".join(SCALINGS)
            raise VerifyError(f"scaling {plain(self.scaling)!r} is none of {known}")
        names = SCALINGS[self.scaling]
        starred = any(name.endswith("*") for name in names)
        head = Binding()(operands[0].shape[-1]) if operands and (starred or self.size) else 0
        if self.size % 2 or not 0 <= self.size <= head:
            raise VerifyError(f"{self.size} elements of a head of {head} cannot be rotated in pairs")
        pairs = (self.size or head) // 2 if starred else 0
        wanted = sum(pairs if name.endswith("*") else 1 for name in names)
        if len(self.factors) != wanted:
            fact = f"{len(self.factors)} factors, expected {wanted} ({', '.join(names) or 'none'})"
            raise VerifyError(f"scaling {self.scaling} has {fact}")
        return super().types(operands)

    def rotate(self, x: Array, at: ExecutionPlace) -> Array:
        """`x` with tokens on axis 1 and the head on the last, rotated by their global positions."""
        size = self.size or x.shape[-1]
        start = x.shape[-1] - size if self.last else 0
        # The axis of length 2 has the elements of a pair.
        axis = -1 if self.interleaved else -2
        pairs = (size // 2, 2) if self.interleaved else (2, size // 2)
        one, two = np.moveaxis(x[..., start : start + size].reshape((*x.shape[:-1], *pairs)), axis, 0)
        cos, sin = self.factors_of(x, at, size)
        turned = np.stack([one * cos - two * sin, two * cos + one * sin], axis=axis)
        parts = x[..., :start], turned.reshape((*x.shape[:-1], size)), x[..., start + size :]
        return np.concatenate(parts, axis=-1)

    def factors_of(self, x: Array, at: ExecutionPlace, size: int) -> tuple[Array, Array]:
        """The cosine and the sine for each token and pair, in a shape that broadcasts with `x`."""
        # A row for several tokens has the number of its entry, not the number of a token.
        first = at.cached + at.origin("t") if self.stride == 1 else at.cached // self.stride
        positions = (first + np.arange(x.shape[1])) * self.stride
        frequencies, amplitude = _frequencies(self, size, int(positions.max(initial=0)) + 1)
        angles = (positions[:, None] * frequencies).reshape((len(positions), *(1,) * (x.ndim - 3), size // 2))
        return np.cos(angles) * amplitude, self.sense * np.sin(angles) * amplitude

    def turned(self, x: Tensor) -> Size:
        """The number of rotated elements."""
        return product(x.shape[:-1]) * (self.size or x.shape[-1])


def _frequencies(rope: Rotary, size: int, length: int) -> tuple[Array, float]:
    """Radians per position for each pair of a head of `size`, and the factor of the result."""
    theta, powers = rope.theta, np.arange(0, size, 2) / size
    if rope.scaling == "dynamic":
        factor, trained = rope.factors
        if length > trained:
            theta *= (factor * length / trained - (factor - 1)) ** (size / (size - 2))
    unscaled: Array = theta**-powers
    if rope.scaling == "linear":
        return unscaled / rope.factors[0], 1.0
    if rope.scaling == "proportional":  # exponents use the whole head; only the first pairs rotate
        factor, share = rope.factors
        return unscaled / factor * (np.arange(size // 2) < int(share * size // 2)), 1.0
    if rope.scaling == "llama3":
        return _llama3(unscaled, *rope.factors), 1.0
    if rope.scaling == "yarn":
        return _yarn(unscaled, theta, *rope.factors)
    if rope.scaling == "longrope":
        trained, amplitude, *stretches = rope.factors
        of_pairs = stretches[len(unscaled) :] if length > trained else stretches[: len(unscaled)]
        return unscaled / np.array(of_pairs), amplitude
    return unscaled, 1.0


def _llama3(unscaled: Array, factor: float, low: float, high: float, trained: float) -> Array:
    """Divide low frequencies by `factor`, leave high frequencies unchanged, and interpolate in between."""
    turns = trained * unscaled / (2 * math.pi)
    kept = np.clip(
        (turns - low) / max(high - low, 1e-30), 0.0, 1.0
    )  # equal bounds, as in Llama 4, give a step function
    result: Array = unscaled * (kept + (1 - kept) / factor)
    return result


def _yarn(unscaled: Array, theta: float, factor: float, trained: float, *more: float) -> tuple[Array, float]:
    """Divide low frequencies, and interpolate toward high frequencies (arXiv:2309.00071, as in HF)."""
    (*turns, amplitude, truncate), size = more, 2 * len(unscaled)
    low, high = (size * math.log(trained / (n * 2 * math.pi)) / (2 * math.log(theta)) for n in turns)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    slowed = np.clip((np.arange(len(unscaled)) - low) / (high - low or 0.001), 0.0, 1.0)
    return unscaled * (1 - slowed + slowed / factor), amplitude


@dataclass(frozen=True)
class Rope(Rotary):
    """Rotary positions on the last axis; 6 FLOPs per element."""

    opcode = "rope"
    kind = "elementwise"
    rule = "b t! * d! -> b t! * d!"
    vector_flops = 6

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        return self.vector_flops * self.turned(operands[0])

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The rotation."""
        return (self.rotate(operands[0], at),)


# --- Single steps of a rotation ---


@dataclass(frozen=True)
class ScaleByCosine(Rotary):
    """x · cos, with equal factors for both halves of a head; 2 of the 6 FLOPs per element of `rope`."""

    opcode = "scale_by_cosine"
    kind = "elementwise"
    rule = "b t! * d! -> b t! * d!"
    vector_flops = 2

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        (x,) = operands
        return (x * np.concatenate([self.factors_of(x, at, x.shape[-1])[0]] * 2, axis=-1),)


@dataclass(frozen=True)
class ScaleBySine(ScaleByCosine):
    """x · sin, with equal factors for both halves of a head; 2 of the 6 FLOPs per element of `rope`."""

    opcode = "scale_by_sine"

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        (x,) = operands
        return (x * np.concatenate([self.factors_of(x, at, x.shape[-1])[1]] * 2, axis=-1),)


@dataclass(frozen=True)
class NegateHalf(Op):
    """−x for the second half of each row; 2 FLOPs per result element, part of the 6 per element of `rope`."""

    opcode = "negate_half"
    kind = "elementwise"
    rule = "* d! -> * e"
    vector_flops = 2

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Half of a row."""
        return {"e": _half(operands[0])}

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per negated element, which is 1 per element of x."""
        return self.vector_flops * results[0].elements

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Half of x."""
        return (results[0].bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The negated second half of x."""
        (x,) = operands
        return (-x[..., x.shape[-1] // 2 :],)


@dataclass(frozen=True)
class JoinHalf(Op):
    """`half`, followed by the first half of each row of x, in new memory (`torch.cat`)."""

    opcode = "join_half"
    kind = "elementwise"
    rule = "* d!, * e! -> * d!"
    takes = ("x", "half")

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The bytes of half of x, and of `half`."""
        return (operands[1].bytes, operands[1].bytes)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The concatenation."""
        x, half = operands
        return (np.concatenate([half, x[..., : x.shape[-1] // 2]], axis=-1),)


def _half(x: Tensor) -> int:
    """Half of the row length; `VerifyError` if the length is odd."""
    if (size := Binding()(x.shape[-1])) % 2:
        raise VerifyError(f"rows of {size} elements have no halves")
    return int(size) // 2


# --- Other uses of positions, and caches ---


@dataclass(frozen=True)
class Unrope(Rope):
    """The inverse of `rope`, which removes the query's position from an average of rotated values."""

    opcode = "unrope"
    sense = -1


@dataclass(frozen=True)
class Temper(Op):
    """x · (1 + beta · ln(1 + ⌊(position + shift) / length⌋)): scales up late queries (Llama 4)."""

    opcode = "temper"
    kind = "elementwise"
    rule = "b t! * -> b t! *"
    vector_flops = 1

    beta: float
    length: float
    shift: float = 0.0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        (x,) = operands
        positions = at.cached + at.origin("t") + np.arange(x.shape[1])
        factors = 1 + self.beta * np.log1p(np.floor((positions + self.shift) / self.length))
        return (x * factors.reshape((-1, *(1,) * (x.ndim - 2))),)


@dataclass(frozen=True)
class Append(Op):
    """Append the rows of the new tokens to a cache, in place and in the dtype of the cache."""

    opcode = "append"
    kind = "elementwise"
    rule = "b p *, b t * -> b (p+t) *"
    takes = ("cache", "rows")
    aliases = MappingProxyType({0: 0})

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The new rows only."""
        return (0, operands[1].bytes)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The new rows only."""
        return (operands[1].to(results[0].dtype).bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The concatenation."""
        cache, rows = operands
        return (np.concatenate([cache, round_trip(rows, results[0].dtype)], axis=1),)


@dataclass(frozen=True)
class RopeAppend(Rotary):
    """Rotate q and k, and write k and v to their caches, in one kernel.

    The operands are q, k, v, key cache and value cache. The results are rotated q, key cache and value cache.
    """

    opcode = "rope_append"
    lowered = True
    kind = "elementwise"
    rule = "b t! g r d!, b t! g d!, b t! g e, b p g d!, b p g e -> b t! g r d!, b (p+t) g d!, b (p+t) g e"
    takes = ("q", "k", "v", "k_cache", "v_cache")
    aliases = MappingProxyType({0: 0, 1: 3, 2: 4})

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return tuple(operands[i].dtype for i in (0, 3, 4))

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The FLOPs of the rotations of q and k."""
        return Rope.vector_flops * (self.turned(operands[0]) + self.turned(operands[1]))

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The bytes of q, k and v, without the caches."""
        return (*(t.bytes for t in operands[:3]), 0, 0)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """q, and the new rows of the caches."""
        return tuple(t.to(r.dtype).bytes for t, r in zip(operands[:3], results, strict=True))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The rotations and the appends."""
        q, k, v, keys, values = operands
        _, key, value = results
        new = round_trip(self.rotate(k, at), key.dtype), round_trip(v, value.dtype)
        grown = (np.concatenate(pair, axis=1) for pair in zip((keys, values), new, strict=True))
        return (self.rotate(q, at), *grown)


@dataclass(frozen=True)
class NormRopeAppendIndex(Rotary):
    """`rope_append` of normalized q and k, and of the queries and keys of an index, in one kernel.

    Operands: q, k, v, key cache, value cache, and the norm weights of q and k; then index queries, index
    keys, the cache of index keys, and the norm weights of index queries and keys. Results: rotated q, key
    cache, value cache, rotated index queries, cache of index keys. Each head is normalized: 4 FLOPs per
    element, and 6 for rotated elements.
    """

    opcode = "norm_rope_append_index"
    lowered = True
    kind = "elementwise"
    rule = (
        "b t! g r d!, b t! g d!, b t! g e, b p g d!, b p g e, d!, d!, b t! g y!, b t! y!, b p y!, y!, y!"
        " -> b t! g r d!, b (p+t) g d!, b (p+t) g e, b t! g y!, b (p+t) y!"
    )
    takes = (
        *("q", "k", "v", "k_cache", "v_cache", "q_weight", "k_weight"),
        *("index_q", "index_k", "index_cache", "index_q_weight", "index_k_weight"),
    )
    aliases = MappingProxyType({0: 0, 1: 3, 2: 4, 3: 7, 4: 9})

    eps: float = 1e-6
    offset: float = 0.0

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtypes of the queries and caches."""
        return tuple(operands[i].dtype for i in self.aliases.values())

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The FLOPs of four norms and four rotations."""
        turned = [operands[i] for i in (0, 1, 7, 8)]
        return sum((4 * t.elements + Rope.vector_flops * self.turned(t) for t in turned), start=0)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The bytes of all operands except caches."""
        caches = (3, 4, 9)
        return tuple(0 if i in caches else t.bytes for i, t in enumerate(operands))

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Queries, and the new rows of caches."""
        new = (operands[i] for i in (0, 1, 2, 7, 8))
        return tuple(t.to(r.dtype).bytes for t, r in zip(new, results, strict=True))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The norms, the rotations and the appends."""
        q, k, v, keys, values, *weights = operands
        q_weight, k_weight, index_q, index_k, index_keys, *index_weights = weights

        def turned(x: Array, weight: Array) -> Array:
            return self.rotate(rms_norm(x, weight + self.offset, self.eps), at)

        main = turned(q, q_weight), turned(k, k_weight)
        index = turned(index_q, index_weights[0]), turned(index_k, index_weights[1])
        new = (main[1], keys, results[1]), (v, values, results[2]), (index[1], index_keys, results[4])
        caches = [np.concatenate((old, round_trip(x, to.dtype)), axis=1) for x, old, to in new]
        return main[0], caches[0], caches[1], index[0], caches[2]
