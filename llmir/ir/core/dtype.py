"""Dtypes as values: bits per element, and the scales that tiles of elements share.

A name encodes the whole dtype. `fp8_e4m3_c.kn` is e4m3 with one scale per channel, on a matrix with a
contracted first dimension (`k`) and an uncontracted second one (`n`):

- `_c`: one fp32 scale for each row along `k` (`_c16`: 16 bits); `_t`: one fp32 scale for each matrix
- `_g128`: one 16-bit scale for each 128 elements along `k`
- a final `z`: a zero point with each scale; a final `i`: a 32-bit group index for each position along `k`
  (the `g_idx` of GPTQ)
- `_b128x128`: one fp32 scale for each tile of 128 rows × 128 elements along `k`
- `mxfp4` and `nvfp4`: the scales of these standards
- `nf4` and `bnb_fp4`: the scales of bitsandbytes, one fp32 scale for each 64 elements; with `_dq`, 8 bits for
  each 64 elements, and one fp32 number for each 256 scales

After the dot comes one letter per dimension. `k` is the contracted dimension, along which elements are
grouped under scales. `n` (weights) and `m` (activations) are rows, and `b` are separate matrices, such as
experts. Dimensions with the same letter count as one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal

from llmir.base.dataclass import dataclass
from llmir.base.errors import ParseError, VerifyError
from llmir.base.names import suggest
from llmir.base.values import FrozenDict
from llmir.ir.sizes.polynomial import Size, ceildiv, product


@dataclass(frozen=True)
class DType:
    """An element type: `bits` per element, and `scale_bits` per tile of `block` (rows, elements along `k`).

    In `block`, 0 means the whole dimension. Every 256 scales share `nested_bits`, each position along `k` has
    `index_bits`, and each matrix has `matrix_bits`. `zeros` marks tiles with a zero point, which `scale_bits`
    includes. Elements of the kind `code` are indices into a table; hardware cannot multiply them directly.
    Without `roles`, a tensor counts as one long row instead of a matrix. `unit` is the arithmetic unit that
    multiplies the elements. The other fields are the names of the dtype in other systems (`_ALL`).
    """

    name: str
    bits: int
    kind: Literal["float", "int", "code"] = "float"
    block: tuple[int, int] = (0, 0)
    scale_bits: int = 0
    nested_bits: int = 0
    index_bits: int = 0
    matrix_bits: int = 0
    zeros: bool = False
    roles: str = ""
    unit: str = ""
    torch: str = ""
    stored: str = ""
    words: tuple[str, ...] = ()
    alias: str = ""
    scales: str = ""

    @property
    def low(self) -> bool:
        """Whether the dtype has low precision: 8 bits or fewer per element."""
        return self.bits <= 8

    @cached_property
    def plain(self) -> DType:
        """The dtype of arithmetic on the elements, without a specific layout of scales."""
        return DTYPES.get(self.scheme) or dtype(_SCALED.sub("", self.scheme))

    @cached_property
    def scheme(self) -> str:
        """The name without the roles of dimensions, which is equal for all matrices of one format."""
        return self.name.partition(".")[0]

    @cached_property
    def short(self) -> str:
        """The shortest name that the option `weights` of `quantize` accepts for the dtype.

        >>> [dtype(n).short for n in ("fp8_e4m3_c.kn", "fp8_e4m3_b128x128", "int4_g128", "int4_g32", "bf16")]
        ['fp8', 'fp8_b128x128', 'int4', 'int4_g32', 'bf16']
        """
        base = self.plain
        scales = self.scheme.removeprefix(base.name)
        return (base.alias or base.name) + ("" if scales == f"_{base.scales}" else scales)

    @property
    def scaled(self) -> DType:
        """The dtype with the default scales of weights, if the dtype needs scales but has none."""
        return self if self.scale_bits or not self.scales else dtype(f"{self.name}_{self.scales}")

    def laid(self, roles: str) -> DType:
        """The dtype with these roles of dimensions; unchanged if the dtype has no scales."""
        return dtype(f"{self.scheme}.{roles}") if self.scale_bits else self

    def sizes(self, shape: Iterable[Size]) -> tuple[Size, Size, Size]:
        """(matrices, rows, elements along `k`) of a tensor of this shape."""
        sizes = tuple(shape)
        if not self.roles:
            return 1, 1, product(sizes)
        if len(self.roles) != len(sizes):
            raise VerifyError(
                f"{self} has scales over {len(self.roles)} dimensions, the shape has {len(sizes)}"
            )
        found: dict[str, Size] = {"b": 1, "n": 1, "k": 1}
        for role, size in zip(self.roles.replace("m", "n"), sizes, strict=True):
            found[role] = found[role] * size
        return found["b"], found["n"], found["k"]

    def bytes_of(self, *shape: Size) -> Size:
        """Bytes of a tensor of this shape, scales included.

        >>> INT4.bytes_of(256), MXFP4.bytes_of(64), dtype("fp8_e4m3_c.kn").bytes_of(100, 7)
        (128, 34, 728)
        """
        data = ceildiv(product(shape) * self.bits, 8)
        if not self.scale_bits:
            return data
        matrices, rows, along = self.sizes(shape)
        across, length = self.block
        tiles = (ceildiv(rows, across) if across else 1) * (ceildiv(along, length) if length else 1)
        scales = ceildiv(matrices * tiles * self.scale_bits, 8)
        if not self.roles:
            return data + scales
        each = self.matrix_bits + along * self.index_bits
        each = each + (ceildiv(tiles, NESTED) * self.nested_bits if self.nested_bits else 0)
        return data + scales + ceildiv(matrices * each, 8)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


NESTED = 256  # number of scales that share a second-level scale (QLoRA, arXiv:2305.14314, section 3)

# The table of dtypes: bits, the arithmetic unit, and the names in torch, in safetensors and
# elsewhere. `alias` is the name for the most common format of a kind, `scales` the default scales of a
# low-precision weight.
FP64 = DType("fp64", 64, unit="fp64", torch="float64", stored="F64", words=("double",))
FP32 = DType("fp32", 32, unit="fp32", torch="float32", stored="F32", words=("float",))
# Tensor-core fp32: stored in 32 bits, multiplied with 10 bits of mantissa.
TF32 = DType("tf32", 32, unit="tf32")
BF16 = DType("bf16", 16, unit="bf16", torch="bfloat16", stored="BF16")
FP16 = DType("fp16", 16, unit="fp16", torch="float16", stored="F16", words=("half",))
FP8_E4M3 = DType("fp8_e4m3", 8, unit="fp8", torch="float8_e4m3fn", stored="F8_E4M3", alias="fp8", scales="c")
FP8_E5M2 = DType("fp8_e5m2", 8, unit="fp8", torch="float8_e5m2", stored="F8_E5M2", scales="c")
INT64 = DType("int64", 64, "int", unit="int32", torch="int64", stored="I64")
INT32 = DType("int32", 32, "int", unit="int32", torch="int32", stored="I32")
INT8 = DType("int8", 8, "int", unit="int8", torch="int8", stored="I8", scales="c")
INT4 = DType("int4", 4, "int", unit="int4", scales="g128")
# OCP Microscaling Formats v1.0: 32 elements share one 8-bit exponent.
MXFP4 = DType("mxfp4", 4, block=(1, 32), scale_bits=8, unit="fp4")
# NVIDIA Blackwell NVFP4: 16 elements share one fp8 (e4m3) scale, a matrix one fp32 scale.
NVFP4 = DType("nvfp4", 4, block=(1, 16), scale_bits=8, matrix_bits=32, unit="fp4")
# bitsandbytes: elements are indices into a table of 16 fp32 values, which is stored with them. The table
# contains QLoRA's normal floats, or 4-bit floats without infinities. 64 elements share one fp32 scale. If
# scales are quantized in turn, scales are indices into a table of 256 values.
NF4 = DType("nf4", 4, "code", block=(1, 64), scale_bits=32, matrix_bits=16 * 32, unit="bf16")
BNB_FP4 = replace(NF4, name="bnb_fp4")
NF4_DQ = replace(NF4, name="nf4_dq", scale_bits=8, nested_bits=32, matrix_bits=(16 + 256) * 32)
BNB_FP4_DQ = replace(NF4_DQ, name="bnb_fp4_dq")

_WIDE = (FP64, FP32, TF32, BF16, FP16, INT64, INT32)
_NARROW = (FP8_E4M3, FP8_E5M2, INT8, INT4, MXFP4, NVFP4, NF4, NF4_DQ, BNB_FP4, BNB_FP4_DQ)
_ALL = (*_WIDE, *_NARROW)
DTYPES = FrozenDict({d.name: d for d in _ALL})
_CALLED = {d.name: {d.name, d.alias, d.torch, d.stored, *d.words} - {""} for d in _ALL}
_WORDS = {word.lower(): name for name, words in _CALLED.items() for word in words}

# Each arithmetic unit, and the units that can replace it, best first. Operands are only converted to a
# format that represents their values. fp32 never becomes tf32, which would silently drop 13 mantissa bits.
WIDER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp64": (),
        "fp32": (),
        "tf32": ("fp32",),
        "bf16": ("tf32", "fp32"),
        "fp16": ("tf32", "fp32"),
        "fp8": ("bf16", "fp16", "tf32", "fp32"),
        "fp6": ("fp8", "bf16", "fp16", "tf32", "fp32"),
        "fp4": ("fp8", "bf16", "fp16", "tf32", "fp32"),
        "int32": (),
        "int8": ("bf16", "fp16", "tf32", "fp32"),
        "int4": ("int8", "bf16", "fp16", "tf32", "fp32"),
    }
)
# Arithmetic units of dtypes that no tensor in llmir has. Formats that differ in scales or in the split of
# bits into exponent and mantissa share a unit. Integers of any other width run as int32.
_UNITS = {unit: unit for unit in WIDER}
_UNITS |= {"float8": "fp8", "f8": "fp8", "mxfp8": "fp8", "mxfp6": "fp6", "float4": "fp4"}
_UNITS |= {"int16": "int32", "bool": "int32", "uint8": "int8", "uint4": "int4"}

_SCALED = re.compile(
    r"_(?:t|b(?P<n>[1-9]\d*)x(?P<k>[1-9]\d*)|(?:c(?P<c>16)?|g(?P<g>[1-9]\d*))(?P<z>z)?(?P<i>i)?)$"
)


@lru_cache(maxsize=4096)
def dtype(name: str) -> DType:
    """The dtype called `name`; `ParseError` for an unknown name.

    >>> dtype("int4_g128.kn").bytes_of(4096, 256) == 4096 * 256 // 2 + 32 * 256 * 2
    True
    """
    scheme, _, roles = name.partition(".")
    found = DTYPES.get(scheme) or _scaled(scheme)
    if found and not roles and name == scheme:
        return found
    if found and found.scale_bits and re.fullmatch("[bmnk]+", roles):
        return replace(found, name=name, roles=roles)
    raise ParseError(f"dtype {name!r} is unknown; known: {', '.join(DTYPES)}{suggest(name, DTYPES)}")


def _scaled(scheme: str) -> DType | None:
    """Parse a low-precision dtype with scales, such as `int4_g128`."""
    part = _SCALED.search(scheme)
    base = DTYPES.get(scheme[: part.start()]) if part else None
    if part is None or base is None or not base.low or base.scale_bits:
        return None
    if part["n"]:
        return replace(base, name=scheme, block=(int(part["n"]), int(part["k"])), scale_bits=32)
    if part[0] == "_t":
        return replace(base, name=scheme, block=(0, 0), scale_bits=32)
    bits = (16 if part["g"] else int(part["c"] or 32)) + (base.bits if part["z"] else 0)
    block, index = (1, int(part["g"] or 0)), 32 if part["i"] else 0
    return replace(base, name=scheme, block=block, scale_bits=bits, zeros=bool(part["z"]), index_bits=index)


@lru_cache(maxsize=4096)
def parse_dtype(word: str) -> DType:
    """Parse a dtype name of torch, safetensors, llmir or common use; `ParseError` for an unknown name.

    >>> [str(parse_dtype(w)) for w in ("torch.bfloat16", "half", "F8_E4M3", "fp8_b128x128", "int4_g32")]
    ['bf16', 'fp16', 'fp8_e4m3', 'fp8_e4m3_b128x128', 'int4_g32']
    """
    plain = word.strip().lower().removeprefix("torch.")
    scales = _SCALED.search(plain)
    base = _WORDS.get(plain) or _WORDS.get(plain[: scales.start()] if scales else "")
    if base is None:
        raise ParseError(f"dtype {word!r} is unknown; known: {', '.join(DTYPES)}{suggest(word, _WORDS)}")
    return dtype(base if plain in _WORDS or scales is None else base + scales[0])


@lru_cache(maxsize=4096)
def unit_of(word: str) -> str:
    """The arithmetic unit of a dtype, which may be unknown as a tensor's dtype; else `ParseError`.

    >>> unit_of("fp8_e4m3"), unit_of("nvfp4"), unit_of("int4_g128"), unit_of("mxfp6")
    ('fp8', 'fp4', 'int4', 'fp6')
    """
    # The part after the first underscore describes the split of bits or the scales, not the arithmetic unit.
    known = _UNITS.get(word) or _UNITS.get(word.partition("_")[0])
    if known:
        return known
    try:
        return parse_dtype(word).unit
    except ParseError:
        near = suggest(word, {**_UNITS, **_WORDS})
        raise ParseError(f"unknown dtype {word!r}, known are {', '.join(WIDER)}{near}") from None
