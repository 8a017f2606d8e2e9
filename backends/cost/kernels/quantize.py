"""Narrowing x before a product: as fast as it is read and written, or as its rows are done one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmir.backends.cost.rows import Row
from llmir.dim import Number
from llmir.dtype import DType
from llmir.hw import Device

from .base import Kernel, families, parameter
from .call import Call, prices, rows_of
from .stream import StreamShape


@families("quantize_fp8", "quantize_fp8_block", "quantize_nvfp4", "quantize_int8")
@dataclass(frozen=True)
class Quantize(Kernel):
    """What narrows a product's x, whose time is measured with the product's."""

    narrowing: float = parameter(0.6, 0.05, 1, "", "share of the memory bandwidth that narrowing reaches")
    row_ns: float = parameter(1, 0.05, 30, "ns", "to narrow a row, however short")
    launch_us: float = parameter(2.4, 0.2, 20, "µs", "of a call that has nothing to do")

    def seconds(self, device: Device, shape: StreamShape) -> Number:
        """Time of one call."""
        memory = shape.moved / (device.memory_Bps * self.narrowing)
        return self.launch_us * 1e-6 + np.maximum(shape.rows * self.row_ns * 1e-9, memory)


@prices("quantize")
def quantize(row: Row) -> Call:
    """All that is read and written, in rows that have a scale or more each."""
    static = getattr(row.node.op, "static", False)
    shape = StreamShape(rows_of(row.shape), row.read + row.write)
    return Call((*_families(row.shape.dtype, static=static), "add"), shape)


def _families(to: DType, *, static: bool) -> tuple[str, ...]:
    """Kernels for this type, the nearest first."""
    if to.bits == 4:
        own = ("quantize_nvfp4", "quantize_fp8_block")
    elif static:
        own = ("quantize_static",)
    elif to.kind == "int":
        own = ("quantize_int8",)
    else:
        own = ("quantize_fp8_block",) if to.block[1] else ()
    return tuple(dict.fromkeys((*own, "quantize_fp8", "quantize_fp8_block", "quantize_static")))
