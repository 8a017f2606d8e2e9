"""Collectives in another dtype: convert before sending, convert back after receiving.

Values that have separate scales cannot be added while they are sent. So a sum becomes the sum of the
converted summands: `reduce_scatter` receives the low-precision pieces of all ranks and adds them in the
original dtype. `all_reduce` becomes this op followed by an `all_gather`, the two-shot form of quantized
collectives (ZeRO++, arXiv:2306.10209, section 3.3; Flash Communication, arXiv:2412.04964). `quantize` uses
this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmir.base.errors import PassError
from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.ops.collective import TOKENS, AllReduce, ReduceScatter
from llmir.ir.ops.quant import Compress
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.rewrite import rewrite

from . import formats
from .retype import before_dispatch

_COMPRESS_FIRST = before_dispatch(Compress)


def sends(graph: Graph, node: Node) -> bool:
    """Whether the dtype of the values that an op sends may change; it may not if they are integers or have
    low precision.
    """
    if not node.op.exchanges:
        return False
    dtype = graph.type(node.operands[0]).dtype
    return _compress(graph, node) is not None or (dtype.kind == "float" and not dtype.low)


def _compress(graph: Graph, node: Node) -> Compress | None:
    """The conversion before a collective, possibly before tokens are copied; None without one."""
    value = node.operands[0]
    first = graph[value.node]
    if value.result in first.op.copies:
        first = graph[first.operands[first.op.copies[value.result]].node]
    return first.op if isinstance(first.op, Compress) else None


def with_wire_type(graph: Graph, wanted: Callable[[Node], DType | None]) -> Graph:
    """`graph`, in which each collective sends the dtype that `wanted` returns; None leaves a collective
    unchanged.
    """
    due = {node.name: to for node in graph.nodes if sends(graph, node) and (to := wanted(node))}
    if not due:
        return graph
    walk = _Conversion(graph, due)
    built = walk.run()
    return rewrite(built, [_COMPRESS_FIRST]) if walk.changed else graph


class _Conversion:
    """Rebuilds one graph, in which the collectives in `due` get other dtypes."""

    def __init__(self, graph: Graph, due: Mapping[str, DType]) -> None:
        self.graph, self.due = graph, due
        types = {v: t for node in graph.nodes for v, t in zip(node.values, node.results, strict=True)}
        self.b = Builder(graph.name, types)  # a conversion does not take the name of a node
        self.made: dict[tuple[Value, str], Value] = {}
        self.changed = False

    def run(self) -> Graph:
        """The graph, rebuilt in order."""
        return Builder.rebuild(self.graph, self._visit, into=self.b)

    def _visit(self, _: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        if (to := self.due.get(node.name)) is None:
            return None
        type = self.b.type(operands[0])
        before, form = _compress(self.graph, node), formats.wire_format(to, len(type.shape))
        if type.dtype == form:
            return None
        if before:
            carried = f"{type.dtype.scheme} already, so not {form.scheme}"
            raise PassError(
                f"quantize: collectives: {node.name} carries {carried}; shard the program again before"
            )
        self.changed = True
        return self._carry(node, operands, form)

    def _carry(self, node: Node, operands: Operands, form: DType) -> tuple[Value, ...]:
        """The collective, with conversions of its first value around it."""
        op = node.op
        value, *others = operands
        beside: list[Value] = []
        due, stem = self.b.type(value).dtype.name, node.name.removeprefix(f"{op.opcode}_")
        value = self._compressed(value, form, op.block)
        if form.low and isinstance(op, ReduceScatter):
            return self.b.keep(replace(node, op=replace(op, to=due)), value)
        if form.low and isinstance(op, AllReduce):
            # Whole tokens, so that no scale is split.
            dim = TOKENS if len(self.b.type(value).shape) > 2 else 0
            how: dict[str, Any] = {"over": op.over, "dim": dim, "block": op.block}
            pieces = self.b.reduce_scatter(value, to=due, name=f"reduce_scatter_{stem}", **how)
            name = f"compress_{stem}_sum"
            narrow = self.b.compress(pieces, to=form.name, block=op.block, name=name)
            value = self.b.all_gather(narrow, name=f"all_gather_{stem}", **how)
        else:
            value, *beside = self.b.keep(node, value, *others)
        done: Value = self.b.decompress(value, to=due, block=op.block, name=f"decompress_{stem}")
        return (done, *beside)

    def _compressed(self, value: Value, form: DType, block: str) -> Value:
        """The value in the dtype of the transfer; it is converted only once for all collectives that send
        it.
        """
        if (value, form.name) not in self.made:
            name = f"compress_{value.node}"
            self.made[value, form.name] = self.b.compress(value, to=form.name, block=block, name=name)
        return self.made[value, form.name]
