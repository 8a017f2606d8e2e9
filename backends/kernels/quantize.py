"""Narrowing x: a stream of its own, fitted together with the products that it comes before."""

from __future__ import annotations

from llmir.backends.work.rows import Row
from llmir.ir.core.dtype import DType

from .base import families
from .call import Call, prices, rows_of
from .stream import Stream, StreamShape

families("quantize_fp8", "quantize_fp8_block", "quantize_nvfp4", "quantize_int8")(Stream)


@prices("quantize")
def quantize(row: Row) -> Call:
    """All that is read and written, in rows that have a scale or more each."""
    known = families_of(row.shape.dtype, static=getattr(row.node.op, "static", False))
    return Call(known, StreamShape(rows_of(row.shape), row.read + row.write))


def families_of(to: DType, *, static: bool = False) -> tuple[str, ...]:
    """Kernels that narrow to this type, the nearest first; to 8 bits by known scales is another one."""
    own: tuple[str, ...] = ()
    if to.bits == 4:
        own = ("quantize_nvfp4", "quantize_fp8_block")
    elif static:
        own = ("stream",)
    elif to.kind == "int":
        own = ("quantize_int8",)
    elif to.block[1]:
        own = ("quantize_fp8_block",)
    return tuple(dict.fromkeys((*own, "quantize_fp8", "quantize_fp8_block", "stream")))
