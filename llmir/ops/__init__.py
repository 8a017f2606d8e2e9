"""The ops, one class each. Importing this package registers them all in `OPS`."""

from typing import Any

from ..errors import VerifyError
from ..op import OPS, Op
from . import attention, elementwise, gather, linear, moe, norm, quant, region, rope
from .source import Cache, Source, Weight

__all__ = [
    "OPS",
    "Cache",
    "Source",
    "Weight",
    "attention",
    "elementwise",
    "gather",
    "linear",
    "make",
    "moe",
    "norm",
    "quant",
    "region",
    "rope",
]


def make(opcode: str, **attributes: Any) -> Op:
    """The op called `opcode` with these attributes; `VerifyError` for names that do not exist."""
    if opcode not in OPS:
        raise VerifyError(f"op {opcode!r} does not exist; there are {', '.join(sorted(OPS))}")
    try:
        return OPS[opcode](**attributes)
    except TypeError as error:
        raise VerifyError(f"{opcode}: {str(error).split('__init__() ')[-1]}") from None
