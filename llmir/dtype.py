"""Element types as values: their bits, and the scales that travel with a block of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .dim import Size, ceildiv
from .errors import ParseError
from .names import suggest


@dataclass(frozen=True)
class DType:
    """`bits` per element; with `block`, one scale of `scale_bits` for each `block` elements."""

    name: str
    bits: int
    kind: Literal["float", "int"] = "float"
    block: int = 0
    scale_bits: int = 0

    def bytes_of(self, elements: Size) -> Size:
        """Bytes of `elements` of them, scales included.

        >>> INT4.bytes_of(256), MXFP4.bytes_of(64)
        (128, 34)
        """
        data = ceildiv(elements * self.bits, 8)
        return data + ceildiv(ceildiv(elements, self.block) * self.scale_bits, 8) if self.block else data

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


FP64 = DType("fp64", 64)
FP32 = DType("fp32", 32)
BF16 = DType("bf16", 16)
FP16 = DType("fp16", 16)
FP8_E4M3 = DType("fp8_e4m3", 8)
FP8_E5M2 = DType("fp8_e5m2", 8)
INT64 = DType("int64", 64, "int")
INT32 = DType("int32", 32, "int")
INT8 = DType("int8", 8, "int")
INT4 = DType("int4", 4, "int")
# OCP Microscaling Formats v1.0: 32 elements share one 8-bit exponent.
MXFP4 = DType("mxfp4", 4, "float", block=32, scale_bits=8)
# NVIDIA Blackwell NVFP4: 16 elements share one fp8 (e4m3) scale.
NVFP4 = DType("nvfp4", 4, "float", block=16, scale_bits=8)

DTYPES = {
    d.name: d for d in (FP64, FP32, BF16, FP16, FP8_E4M3, FP8_E5M2, INT64, INT32, INT8, INT4, MXFP4, NVFP4)
}


def dtype(name: str) -> DType:
    """The element type called `name`; `ParseError` if there is none."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ParseError(
            f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}{suggest(name, DTYPES)}"
        ) from None
