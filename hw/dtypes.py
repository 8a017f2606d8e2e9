"""Which arithmetic unit serves a dtype, and what takes over where a device lacks that unit."""

from __future__ import annotations

from llmir.errors import HardwareError
from llmir.names import suggest

# Each unit, and the units that may take over, best first: an operand is only ever widened to a format
# that holds its values. fp32 never becomes tf32, which would drop thirteen bits of mantissa in silence.
WIDER: dict[str, tuple[str, ...]] = {
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

# Other names of the same arithmetic: formats that differ in scales or in the split of exponent and
# mantissa share a unit, and integers of any other width run where int32 does.
_SPELLINGS = {
    "fp64": "float64 f64",
    "fp32": "float32 f32",
    "bf16": "bfloat16",
    "fp16": "float16 f16 half",
    "fp8": "float8 f8 mxfp8",
    "fp6": "mxfp6",
    "fp4": "nvfp4 mxfp4 float4",
    "int32": "int16 int64 bool",
    "int8": "uint8",
    "int4": "uint4",
}
_UNIT = {name: unit for unit in WIDER for name in (unit, *_SPELLINGS.get(unit, "").split())}


def unit_of(dtype: str) -> str:
    """The unit that does the arithmetic of `dtype`; HardwareError if the dtype is unknown.

    >>> unit_of("fp8_e4m3"), unit_of("nvfp4"), unit_of("int4_g128")
    ('fp8', 'fp4', 'int4')
    """
    # What follows the first underscore says how the bits are split or scaled, not which unit multiplies them.
    unit = _UNIT.get(dtype) or _UNIT.get(dtype.split("_", 1)[0])
    if unit is None:
        raise HardwareError(f"unknown dtype {dtype!r}, known are {', '.join(WIDER)}{suggest(dtype, _UNIT)}")
    return unit
