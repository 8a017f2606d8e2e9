"""The kernels of experts that the ops of a program are calls of."""

from __future__ import annotations

from llmir.backends.cost.rows import Row
from llmir.dim import product
from llmir.dtype import DType
from llmir.ops.moe import GroupedLinear
from llmir.tensor import Tensor

from .call import Call, bits, prices
from .moe import GroupedShape, MoeShape


@prices("grouped_linear")
def experts(row: Row) -> Call | None:
    """A grouped product, of several results as one wider one."""
    first, *others = row.work.gemms
    x, w = row.operands[:2]
    rows, op = x.shape[0], row.node.op
    if not isinstance(op, GroupedLinear):
        return None
    shape = GroupedShape(
        rows=rows,
        experts=op.touched(x, w),
        n=sum((g.n for g in others), start=first.n),
        k=first.k,
        away=op.routed(x, w) - rows,
        x_bits=bits(x.dtype),
        w_bits=bits(w.dtype),
        y_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    return Call(_moe_families(x.dtype, w.dtype), shape, "product")


def _moe_families(x: DType, weights: DType | None = None) -> tuple[str, ...]:
    """Kernels of a layer whose rows are of this type, as the activations of its products are."""
    narrow: tuple[str, ...] = ()
    if x.bits == 4:
        narrow = ("moe_nvfp4",)
    elif x.bits == 8:
        blocks = x.block[1] > 0
        narrow = ("moe_fp8_block", "moe_fp8") if blocks else ("moe_fp8", "moe_fp8_block")
        if weights and weights.bits == 4:
            narrow = ("moe_mxfp4", *narrow)
    elif weights and weights.bits == 4:
        narrow = ("moe_mxfp4_weights", "moe_int4_weights")
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
    """Between grouped products it is a kernel of theirs, which of the tokens knows no more than the rows."""
    return _rows(row, "activation", row.shape, row.shape)


def _rows(row: Row, part: str, many: Tensor, few: Tensor) -> Call:
    """What is done to rows before, between and after grouped products."""
    alone = part == "activation"
    shape = MoeShape(
        tokens=many.shape[0] if alone else product(few.shape[:-1]),
        top_k=1 if alone else row.operands[1].shape[-1],
        rows=many.shape[0],
        experts=1,
        hidden=few.shape[-1],
        inter=many.shape[-1],
        x_bits=bits(row.operands[0].dtype),
        dtype=row.work.dtype.name,
    )
    return Call(_moe_families(row.operands[0].dtype), shape, part)
