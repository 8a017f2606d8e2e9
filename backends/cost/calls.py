"""Which kernel an op is a call of, and what that kernel is given: sizes that numbers enter last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from llmir.dim import Binding, Dim, Number, product
from llmir.dtype import DType
from llmir.hw import Device
from llmir.ops.linear import Linear
from llmir.ops.moe import GroupedLinear
from llmir.tensor import Tensor

from .experts import Experts
from .kernels import (
    AttentionShape,
    CollectiveShape,
    GemmShape,
    GroupedShape,
    Kernel,
    MoeShape,
    Shape,
    StreamShape,
    SumShape,
)
from .rows import Row

S = TypeVar("S", bound=Shape)
_MANY = 1 << 14  # elements of a square matrix whose scales say how many bits an element has


@dataclass(frozen=True)
class Call:
    """One execution of an op as a kernel sees it: `families` of kernels, the best first, and its shape.

    `part` is the method of a kernel that is a whole layer's, of which the op is a part.
    """

    families: tuple[str, ...]
    shape: Shape
    part: str = "seconds"

    def at(self, binding: Binding) -> Shape:
        """The shape with numbers put in."""
        return bound(self.shape, binding)

    def seconds(self, kernel: Kernel, device: Device, at: Binding) -> Number:
        """Time of the call."""
        time = getattr(kernel, self.part)(device, self.at(at))
        return time if np.ndim(time) else float(time)


def bound(shape: S, at: Binding) -> S:
    """`shape` with the sizes in it evaluated."""
    sizes = {f.name: v for f in fields(shape) if isinstance(v := getattr(shape, f.name), Dim)}
    return replace(shape, **{name: at(size) for name, size in sizes.items()}) if sizes else shape


def call(row: Row) -> Call | None:
    """The call that an op is; None for what no kernel is known of."""
    make = _BY_OP.get(row.node.op.opcode) or _BY_KIND.get(row.kind)
    return make(row) if make else None


def bits(type: DType) -> float:
    """Bits an element, with its share of scales."""
    if not type.scale_bits:
        return type.bits
    rows, along = type.block
    each = (rows or _MANY) * (along or _MANY)
    return type.bits + type.scale_bits / each


def _gemm(row: Row) -> Call | None:
    """A product, or several of the same x as one wider one."""
    first, *others = row.work.gemms
    n = sum((g.n for g in others), start=first.n)
    if isinstance(row.node.op, Linear):
        x, w = row.operands[0].dtype, row.operands[1].dtype
    else:
        x, w = (t.dtype for t in row.operands[:2])
    shape = GemmShape(
        m=first.m,
        n=n,
        k=first.k,
        batch=first.batch,
        x_bits=bits(x),
        w_bits=bits(w),
        y_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    # A program narrows x by an op of its own.
    return Call(_gemm_families(row.work.dtype, w), shape, "multiply")


def _gemm_families(computes: DType, weights: DType) -> tuple[str, ...]:
    """Kernels for this type of arithmetic and of weights; others for 16 bits are the nearest of all else."""
    names: tuple[str, ...] = ()
    if computes.kind == "float" and computes.bits == 8:
        names = ("gemm_fp8_block", "gemm_fp8") if weights.block[0] > 1 else ("gemm_fp8", "gemm_fp8_block")
    elif computes.bits == 4:
        names = ("gemm_nvfp4", "gemm_fp8")
    elif computes.name == "int8":
        names = ("gemm_int8", "gemm_fp8")
    elif weights.bits < 16:
        name = "gemm_int8_weights" if weights.bits == 8 else "gemm_int4_weights"
        names = (name, "gemm_int8_weights")
    elif computes.name == "fp32":
        names = ("gemm_fp32",)
    return (*names, "gemm_bf16")


def _stream(*families: str) -> Callable[[Row], Call]:
    def made(row: Row) -> Call:
        shared = sum((n for role, n in row.reads if role == "weight"), start=0)
        shape = StreamShape(_rows(row.shape), row.read + row.write, shared)
        return Call((*families, "add", "rms_norm"), shape)

    return made


def _append(row: Row) -> Call:
    """Of the new rows alone; the result is the whole cache."""
    return Call(("add", "rms_norm"), StreamShape(_rows(row.operands[1]), row.read + row.write))


def _rows(type: Tensor) -> Dim | int:
    """Rows of a tensor: those that its scales tell apart, else all its dimensions but the last."""
    if roles := type.dtype.roles:
        return product(size for size, role in zip(type.shape, roles, strict=True) if role != "k")
    return product(type.shape[:-1]) if len(type.shape) > 1 else 1


def _collective(row: Row) -> Call | None:
    if not row.work.wire:
        return None
    pattern = row.work.pattern or row.node.op.opcode
    made = SumShape if pattern == "all_reduce" else CollectiveShape
    return Call((pattern,), made(row.work.payload, row.work.ranks, adds=row.shape.dtype.bits >= 16))


def _attention(row: Row) -> Call | None:
    """Of any number of new tokens of each sequence; `decoding` is the call for one."""
    q, k, *_ = row.operands
    batch, new, groups, group, head = q.shape
    shape = AttentionShape(
        batch=batch,
        new=new,
        cached=k.shape[1] - new,
        kv_heads=groups,
        group=group,
        head=head,
        q_bits=q.dtype.bits,
        kv_bits=bits(k.dtype),
        out_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    own = {8: ("attention_prefill_kv8",), 32: ("attention_prefill_fp32",)}.get(int(k.dtype.bits), ())
    return Call((*own, "attention_prefill"), shape)


def decoding(prefill: Call) -> Call:
    """The same call by the kernels that take one new token of each sequence."""
    return replace(prefill, families=tuple(f.replace("prefill", "decode") for f in prefill.families))


def _grouped(row: Row) -> Call | None:
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
    return Call(_moe_families(x.dtype, w.dtype), shape, "product")


def _moe_families(x: DType, weights: DType) -> tuple[str, ...]:
    """Kernels of a layer whose products are of rows and weights of these types."""
    narrow: tuple[str, ...] = ()
    if x.bits == 4:
        narrow = ("moe_nvfp4",)
    elif x.bits == 8:
        blocks = x.block[1] > 0
        narrow = ("moe_fp8_block", "moe_fp8") if blocks else ("moe_fp8", "moe_fp8_block")
        if weights.bits == 4:
            narrow = ("moe_mxfp4", *narrow)
    elif weights.bits == 4:
        narrow = ("moe_mxfp4_weights", "moe_int4_weights")
        narrow = narrow[::-1] if weights.kind == "int" else narrow
    return (*narrow, "moe_bf16")


def _routed(part: str) -> Callable[[Row], Call]:
    """What is done to rows before, between and after grouped products: a kernel of the layer's family."""

    def made(row: Row) -> Call:
        x, *_ = row.operands
        of = row.experts or Experts(x.dtype, x.dtype, 0)
        many, few = (row.shape, x) if part == "dispatch" else (x, row.shape)
        between = part == "activation"  # which knows no tokens
        tokens = many.shape[0] + of.away if between else product(few.shape[:-1])
        shape = MoeShape(
            tokens=tokens,
            top_k=1 if between else row.operands[1].shape[-1],
            rows=many.shape[0],
            experts=1,
            hidden=few.shape[-1],
            inter=many.shape[-1],
            x_bits=bits(x.dtype),
            dtype=row.work.dtype.name,
        )
        return Call(_moe_families(of.rows, of.weights), shape, part)

    return made


def _activation(row: Row) -> Call:
    """Between grouped products it is a kernel of theirs."""
    return (_routed("activation") if row.experts else _stream("activation"))(row)


_BY_OP: dict[str, Callable[[Row], Call | None]] = {
    "rms_norm": _stream("rms_norm"),
    "add_rms_norm": _stream("rms_norm"),
    "softmax": _stream("softmax"),
    "silu": _stream("activation"),
    "silu_mul": _activation,
    "flash_attention": _attention,
    "causal_flash_attention": _attention,
    "grouped_linear": _grouped,
    "dispatch": _routed("dispatch"),
    "combine": _routed("combine"),
    "append": _append,
    "rope": _stream("rope"),
    "rope_append": _stream("rope"),
    "quantize": _stream("quantize"),
    "dequantize": _stream("quantize"),
}
_BY_KIND: dict[str, Callable[[Row], Call | None]] = {
    "gemm": _gemm,
    "norm": _stream("rms_norm"),
    "elementwise": _stream("add"),
    "moe": _stream("add"),
    "gather": _stream("add"),
    "collective": _collective,
}
