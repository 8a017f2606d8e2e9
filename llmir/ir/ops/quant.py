"""Conversion to low-precision element types and back, also around collectives.

`round_trip` quantizes and dequantizes values: each tile is scaled, and its elements are rounded to the dtype.
A scale is the largest magnitude of the tile, divided by the largest value of the format. Values in dtypes of
16 bits and more are not rounded.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

# --- Rounding ---

# Mantissa bits, smallest exponent and largest value of each float format.
_FLOATS = {"fp8_e4m3": (3, -6, 448.0), "fp8_e5m2": (2, -14, 57344.0), "fp4": (1, 0, 6.0)}
_FP4 = {"mxfp4", "nvfp4"}
# bitsandbytes' tables, scaled to a maximum of 1: normal floats (QLoRA, arXiv:2305.14314, appendix E), and
# 4-bit floats with the magnitudes 0, 1/192 and six multiples of 1/12.
_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023),
    1.0,
)
_MAGNITUDES = (0.0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1.0)
_CODES = {"nf4": np.array(_NORMAL), "bnb_fp4": np.array(sorted({*_MAGNITUDES, *(-x for x in _MAGNITUDES)}))}


def round_trip(x: Array, to: DType) -> Array:
    """`x` after quantization to `to` and dequantization."""
    if not to.low:
        return x
    if not to.scale_bits:
        return to_format(x, to.plain.name)
    # Reshape to [matrices, tiles of rows, rows, tiles along k, elements], with zeros where the last tiles are
    # incomplete.
    order = sorted(
        range(x.ndim), key=lambda i: "bnk".index(to.roles.replace("m", "n")[i] if to.roles else "k")
    )
    matrices, rows, along = map(Binding(), to.sizes(x.shape))
    if not x.size:
        return x
    moved = x.transpose(order)
    across, length = to.block[0] or rows, to.block[1] or along
    padded = np.pad(
        moved.reshape(matrices, rows, along).astype(np.float64),
        ((0, 0), (0, -rows % across), (0, -along % length)),
    )
    tiled = padded.reshape(matrices, padded.shape[1] // across, across, -1, length)
    kept = _tiles(tiled, to).reshape(padded.shape)[:, :rows, :along].reshape(moved.shape)
    result: Array = kept.transpose(np.argsort(order))
    return result


def to_format(x: Array, name: str) -> Array:
    """Round `x` to a format without scales (ties to even), and clip it to the format's largest value."""
    if name in _FLOATS:
        mantissa, least, most = _FLOATS[name]
        exponent = np.maximum(np.frexp(x)[1] - 1, least)
        step = np.exp2(exponent - mantissa)
        result: Array = np.clip(np.rint(x / step) * step, -most, most)
        return result
    if name in _CODES:
        values = _CODES[name]
        nearest: Array = values[np.searchsorted((values[1:] + values[:-1]) / 2, x)]
        return nearest
    top = {"int8": 127, "int4": 7}[name]
    whole: Array = np.clip(np.rint(x), -top, top)
    return whole


def _tiles(x: Array, to: DType) -> Array:
    name = to.plain.name.removesuffix("_dq")  # quantized scales are first dequantized
    if to.zeros:
        return _with_zeros(x, 2**to.bits - 1)
    largest = np.abs(x).max(axis=(2, 4), keepdims=True)
    if name == "mxfp4":  # OCP: a power of two, from the exponents of the largest value and of the format (2)
        scale = np.exp2(np.frexp(largest)[1] - 1.0 - 2)
    elif name == "nvfp4":  # e4m3 scales, which one scale of the matrix multiplies
        matrix = _nonzero(largest.max(axis=(1, 3), keepdims=True) / (6.0 * 448.0))
        scale = to_format(largest / 6.0 / matrix, "fp8_e4m3") * matrix
    elif name in _CODES:
        scale = largest
    else:
        scale = largest / (_FLOATS[name][2] if name in _FLOATS else 127.0 if to.bits == 8 else 7.0)
    scale = _nonzero(scale)
    return to_format(x / scale, "fp4" if name in _FP4 else name) * scale


def _with_zeros(x: Array, top: int) -> Array:
    """Round each tile to `top` + 1 levels from its smallest to its largest value; the range includes zero."""
    low = np.minimum(x.min(axis=(2, 4), keepdims=True), 0.0)
    high = np.maximum(x.max(axis=(2, 4), keepdims=True), 0.0)
    scale = _nonzero((high - low) / top)
    zero = np.rint(-low / scale)
    result: Array = (np.clip(np.rint(x / scale) + zero, 0, top) - zero) * scale
    return result


def _nonzero(scale: Array) -> Array:
    result: Array = np.where(scale == 0, 1.0, scale)
    return result


# --- Quantize and dequantize ---


@dataclass(frozen=True)
class Quantize(Op):
    """Quantize x to the low-precision dtype `to`, with scales computed at run time; 2 FLOPs per element.

    The FLOPs are a maximum and a scaling. `static` scales come from an earlier calibration, so the kernel
    takes only 1 FLOP (scaling). The interpreter computes scales from x in either case.
    """

    opcode = "quantize"
    kind = "elementwise"
    rule = "* -> *"
    moves = converts = True
    vector_flops = 2

    to: str
    static: bool = False

    def giving(self, to: DType, x: DType) -> Op:
        """The op with this result dtype."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element for scaling, and 1 for the maximum unless scales are static."""
        return (1 if self.static else 2) * results[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """x, rounded to the dtype."""
        return (round_trip(operands[0], results[0].dtype),)


@dataclass(frozen=True)
class Dequantize(Op):
    """Dequantize x to the dtype `to`: multiply elements by their scales; 1 FLOP per element."""

    opcode = "dequantize"
    kind = "elementwise"
    rule = "* -> *"
    moves = converts = True
    vector_flops = 1

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """The op with this result dtype."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """x itself, because `quantize` has already rounded it."""
        return (operands[0],)


# --- Conversion around collectives ---


@dataclass(frozen=True)
class Conversion(Op, ABC):
    """Base class of conversions to the dtype `to` before or after a transfer."""

    kind = "elementwise"
    rule = "* -> *"
    moves = relays = converts = True
    linear = frozenset({0})

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """The op with this result dtype."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtype of the transfer, or of the computation."""
        return (named(self.to),)


@dataclass(frozen=True)
class Compress(Conversion):
    """Convert each rank's part of x to the low-precision dtype `to` before it is sent, with scales.

    Each rank of a partial sum converts its summand, so the sum adds rounded summands.
    """

    opcode = "compress"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per element, as for `quantize`; none for a dtype of 16 bits or more, which is a cast."""
        return 2 * results[0].elements if results[0].dtype.low else 0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The part of this rank, rounded to the dtype."""
        return (round_trip(operands[0], results[0].dtype),)


@dataclass(frozen=True)
class Decompress(Conversion):
    """Convert x back to the dtype `to` after the transfer."""

    opcode = "decompress"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element, as for `dequantize`; none from a dtype of 16 bits or more, which is a cast."""
        return results[0].elements if operands[0].dtype.low else 0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """x itself, because `compress` has already rounded it."""
        return (operands[0],)
