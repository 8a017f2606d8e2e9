"""Rebuild a graph after its sources changed dtype: infer each op again and insert conversions.

A token is quantized once, before copies go to experts or to other ranks. A value with several users is also
quantized only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType, dtype
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.op import Op
from llmir.ir.ops.quant import Compress, Dequantize, Quantize
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.rewrite import Match, Rule, rewrite

from . import formats


@dataclass(frozen=True)
class Types:
    """New dtypes by node: of weights and caches, and of the inputs of products.

    The input of a product has an entry only if it has low precision. `wide` maps each dtype of the model's
    arithmetic to its replacement.
    """

    held: Mapping[str, DType]
    activations: Mapping[str, DType]
    wide: Mapping[DType, DType]


def retype_graph(graph: Graph, types: Types) -> tuple[Graph, frozenset[str]]:
    """Rebuild a graph with these dtypes; also return the products with quantized activations."""
    walk = _Walk(graph, types)
    built = walk.run()
    if walk.quantized:
        built = _shared(rewrite(built, _QUANTIZE_FIRST))
    return graph if built == graph else built, frozenset(walk.quantized)


def before_dispatch(kind: type[Quantize | Compress]) -> Rule:
    """A rule that quantizes a token once before dispatch, instead of once for each expert."""

    def dispatched(p: Any, x: Value, chosen: Value) -> Any:
        rows, experts = p.dispatch(x, chosen, label="dispatch", results=2)
        return getattr(p, kind.opcode)(rows, label="narrow"), experts

    def narrowed_first(b: Builder, match: Match, x: Value, chosen: Value) -> Any:
        dispatch, op = match["dispatch"], match.op("narrow", kind)
        roles = "m" * (len(b.type(x).shape) - 1) + "k"
        narrow = b.apply(replace(op, to=dtype(op.to).laid(roles).name), x, name=f"{kind.opcode}_{x.node}")
        return b.apply(dispatch.op, *narrow, chosen, name=dispatch.name)

    return Rule(f"{kind.opcode}-before-dispatch", dispatched, narrowed_first)


def _exchanged(p: Any, rows: Value) -> Any:
    return p.quantize(p.all_to_all(rows, label="exchange"), label="quantize")


def _quantized_first(b: Builder, match: Match, rows: Value) -> Any:
    exchange, quantize = match["exchange"], match["quantize"]
    return b.apply(exchange.op, *b.apply(quantize.op, rows, name=quantize.name), name=exchange.name)[0]


# If rows arrive in low precision, they are also sent in low precision.
_QUANTIZE_FIRST = (
    Rule("quantize-before-exchange", _exchanged, _quantized_first),
    before_dispatch(Quantize),
)


def _shared(graph: Graph) -> Graph:
    """Merge `quantize` ops with equal operands and dtypes into one op."""
    first: dict[tuple[Value, str], Value] = {}

    def visit(_: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        if not isinstance(node.op, Quantize):
            return None
        kept = first.setdefault((operands[0], node.op.to), node.values[0])
        return None if kept == node.values[0] else (kept,)

    built = Builder.rebuild(graph, visit)
    return built if len(built.nodes) < len(graph.nodes) else graph


def _quantizes(node: Node) -> bool:
    """Whether a node is a conversion that the pass `quantize` inserts before or after an op."""
    return node.op.converts and not node.op.relays


class _Walk:
    """One walk through a graph in schedule order."""

    def __init__(self, graph: Graph, types: Types) -> None:
        self.old, self.types = graph, types
        self.new = Builder(graph.name)
        self.made: dict[tuple[Value, str], Value] = {}
        self.names: set[str] = set()  # conversions
        self.quantized: set[str] = set()

    def run(self) -> Graph:
        """The new graph, without conversions that have become unnecessary."""
        built = Builder.rebuild(self.old, self._visit, into=self.new)
        nodes, needed = [], {value.node for value in built.outputs}
        for node in reversed(built.nodes):
            if node.name in needed or not _quantizes(node):
                nodes.append(node)
                needed |= {v.node for v in node.operands}
        return Graph(built.name, reversed(nodes), built.outputs)

    def _visit(self, _: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        return self._source(node) if node.op.source else self._compute(node, tuple(operands))

    def _source(self, node: Node) -> tuple[Value, ...] | None:
        old = node.results[0].dtype
        stays = node.op.cached or node.op.role != "activation"
        to = self.types.held.get(node.name, old) if stays else self._due(old)
        return None if to == old else self.new.apply(node.op.giving(to, old), name=node.name)

    def _compute(self, node: Node, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        op, due = node.op, self._due(node.results[0].dtype)
        if op.converts and self.new.type(operands[0]).dtype == due:
            return operands[:1]
        if op.matrices:
            operands = self._product(node, operands)
        operands = tuple(self._operand(op, slot, operands) for slot in range(len(operands)))
        made = self.new.keep(replace(node, op=op.giving(due, self.new.type(operands[0]).dtype)), *operands)
        if _quantizes(node):
            self.made.setdefault((operands[0], due.name), made[0])
        return made

    def _operand(self, op: Op, slot: int, operands: tuple[Value, ...]) -> Value:
        """The operand, converted to the dtype that the op requires."""
        value = operands[slot]
        if slot in op.copies.values():
            return self._unquantized(value)
        if slot in op.alike:
            return self._widened(value, operands[op.alike[slot]])
        return self._undequantized(value) if slot in op.widens else value

    def _due(self, dtype: DType) -> DType:
        return self.types.wide.get(dtype, dtype)

    def _product(self, node: Node, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        """The operands of a product; x has low precision if requested, and if the matrices have it."""
        x, wanted = self._unquantized(operands[0]), self.types.activations.get(node.name)
        matrices = [self.new.type(operands[slot]).dtype for slot in node.op.matrices]
        if wanted is None or not all(w.low and formats.multiplies(wanted, w) for w in matrices):
            return (x, *operands[1:])
        to = formats.activation_format(wanted, matrices, node.op.scale_roles(0))
        self.quantized.add(node.name)
        if self.new.type(x).dtype == to:
            return (x, *operands[1:])
        narrow = Quantize(to=to.name, static=formats.static(wanted), block=node.op.block)
        return (self._once(x, narrow), *operands[1:])

    def _widened(self, value: Value, like: Value) -> Value:
        """The cache, dequantized to the dtype of the other operand, in which eager attention multiplies."""
        value, to = self._undequantized(value), self.new.type(like).dtype
        if self.new.type(value).dtype == to:
            return value
        return self._once(value, Dequantize(to=to.name, block=self.new.node(value.node).op.block))

    def _unquantized(self, value: Value) -> Value:
        """The operand of the `quantize` that computed a value; the value itself without such an op."""
        return self._before(value) if self.new.type(value).dtype.low else value

    def _undequantized(self, value: Value) -> Value:
        """The operand of the `dequantize` that computed a value; the value itself without such an op."""
        before = self._before(value)
        return before if self.new.type(before).dtype.low else value

    def _before(self, value: Value) -> Value:
        node = self.new.node(value.node)
        return node.operands[0] if _quantizes(node) else value

    def _once(self, value: Value, op: Quantize | Dequantize) -> Value:
        """The converted value; all users share one conversion."""
        if (value, op.to) not in self.made:
            name = f"{op.opcode}_{value.node}"
            while name in self.old.users or name in self.names:
                name += "_"
            self.names.add(name)
            (self.made[value, op.to],) = self.new.apply(op, value, name=name)
        return self.made[value, op.to]
