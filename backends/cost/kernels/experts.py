"""The kernels of experts that the ops of a program are calls of."""

from __future__ import annotations

from llmir.backends.cost.routed import Experts
from llmir.backends.cost.rows import Row
from llmir.dim import product
from llmir.dtype import DType
from llmir.ops.moe import GroupedLinear
from llmir.tensor import Tensor

from .call import Call, bits, prices
from .moe import GroupedShape, MoeShape


@prices("grouped_linear")
def grouped(row: Row) -> Call | None:
    """A grouped product, of several results as one wider one."""
    first, *others = row.work.gemms
    x, w = row.operands[:2]
    op = row.node.op
    if not isinstance(op, GroupedLinear):
        return None
    shape = GroupedShape(
        rows=x.shape[0],
        experts=op.touched(x, w),
        n=sum((g.n for g in others), start=first.n),
        k=first.k,
        away=row.experts.away if row.experts else 0,
        x_bits=bits(x.dtype),
        w_bits=bits(w.dtype),
        y_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    return Call(_families(x.dtype, w.dtype), shape, "product")


def _families(x: DType, weights: DType) -> tuple[str, ...]:
    """Kernels of a layer whose products are of rows and weights of these types."""
    narrow: tuple[str, ...] = ()
    if x.bits == 4:
        narrow = ("moe_nvfp4",)
    elif x.bits == 8:
        blocks = x.block[1] > 0
        narrow = ("moe_fp8_block", "moe_fp8") if blocks else ("moe_fp8", "moe_fp8_block")
        if weights.bits == 4:  # rather another engine's than its own that reads twice the bytes
            narrow = ("moe_mxfp4",)
    elif weights.bits == 4:
        narrow = ("moe_mxfp4_weights", "moe_int4_weights")
        narrow = narrow[::-1] if weights.kind == "int" else narrow
    return (*narrow, "moe_bf16")


@prices("dispatch")
def dispatch(row: Row) -> Call:
    """Rows gathered by expert."""
    return _rows(row, "dispatch", row.shape, row.operands[0])


@prices("combine")
def combine(row: Row) -> Call:
    """Each token's rows added up."""
    return _rows(row, "combine", row.operands[0], row.shape)


@prices("silu_mul", block="routed_experts")
def activation(row: Row) -> Call:
    """Between grouped products it is a kernel of theirs, which knows rows and no tokens."""
    return _rows(row, "activation", row.shape, row.shape)


def _rows(row: Row, part: str, many: Tensor, few: Tensor) -> Call:
    """What is done to rows before, between and after grouped products, by a kernel of the layer's family."""
    x = row.operands[0].dtype
    layer = row.experts or Experts(x, x, 0)
    between = part == "activation"
    shape = MoeShape(
        tokens=many.shape[0] + layer.away if between else product(few.shape[:-1]),
        top_k=1 if between else row.operands[1].shape[-1],
        rows=many.shape[0],
        experts=1,
        hidden=few.shape[-1],
        inter=many.shape[-1],
        x_bits=bits(x),
        dtype=row.work.dtype.name,
    )
    return Call(_families(layer.rows, layer.weights), shape, part)
