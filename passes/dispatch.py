"""dispatch: how tokens are sent to the ranks of their experts, and how results are returned.

`shard` sends a token's row once for each chosen expert (`rows`). DeepEP sends a token once to each rank, and
between nodes once to each node, that has one of its experts, and returns one sum from each (`ranks`). vLLM
and SGLang by default gather all tokens on all ranks and scatter the sums (`gather`; `allgather_reducescatter`
in vLLM's `all2all_backend`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.dispatch_modes import FORMS
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.op import Op
from llmir.ir.core.program import Program
from llmir.ir.ops.collective import TOKENS, AllToAll
from llmir.ir.ops.moe import Combine, Dispatch
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.pipeline import Pass, option


@dataclass(frozen=True)
class DispatchBy(Pass):
    """Change the form in which tokens are sent to experts on other ranks.

    Options: by, one of rows (the result of `shard`), ranks, gather. Runs after `shard`, on programs with
    different tokens on each rank.
    """

    name: ClassVar[str] = "dispatch"

    by: str = option("rows", choices=FORMS)

    def __call__(self, program: Program) -> Program:
        """Rewrite each layer of experts that exchanges rows."""
        walk: type[_Walk] = _Ranks if self.by == "ranks" else _Gather
        walks = {name: walk(graph) for name, graph in program.graphs.items()}
        if not any(each.layers for each in walks.values()):
            rule = "it requires ep, and dp or sp, so that ranks have different tokens"
            raise PassError(f"dispatch: by {self.by}: {program.name!r} sends no rows to experts; {rule}")
        if self.by == "rows":
            return program
        return program.replace(graphs={name: each.run() for name, each in walks.items()})


@dataclass(frozen=True)
class _Layer:
    """Routed experts from `dispatch` to `combine`, and the `exchange` between them."""

    combine: Node
    dispatch: Node
    exchange: AllToAll


class _Walk(ABC):
    """A graph that is rewritten to send tokens and return sums instead of rows."""

    def __init__(self, graph: Graph) -> None:
        self.old, self.b = graph, Builder(graph.name)
        self.weights: dict[str, Value] = {}  # the weights of dispatched tokens, by their combine
        self.skipped: set[str] = set()
        self.layers = [layer for node in graph.nodes if (layer := self._layer(node))]

    def _layer(self, combine: Node) -> _Layer | None:
        """The layer that ends with an op, if its rows are exchanged."""
        if not combine.op.combines:
            return None
        before, names = [combine.name], {combine.name}
        exchanges: dict[str, AllToAll] = {}
        dispatch = combine
        for name in before:
            node = self.old[name]
            if node.op.copies:
                dispatch = node
                continue
            if node.op.exchanges and node.op.routing:
                exchanges[name] = node.op_as(AllToAll)
            slots = node.operands[:1] if node is combine else node.operands
            before += [v.node for v in slots if v.node not in names]
            names |= set(before)
        sent = next((op for op in exchanges.values() if op.experts), None)
        self.skipped |= set(exchanges) if sent else set()
        return _Layer(combine, dispatch, sent) if sent else None

    def run(self) -> Graph:
        """The rewritten graph; the same graph if it exchanges no rows."""
        if not self.layers:
            return self.old
        ordered = Graph(self.old.name, self._ordered(), self.old.outputs)
        return Builder.rebuild(ordered, self._visit, into=self.b)

    def _layer_of(self, node: Node) -> _Layer | None:
        return next((each for each in self.layers if node in (each.combine, each.dispatch)), None)

    def _ordered(self) -> list[Node]:
        """The nodes in an order in which the routing weights come before each dispatch."""
        ordered: dict[str, Node] = {}

        def add(node: Node) -> None:
            if node.name not in ordered:
                layer = self._layer_of(node)
                for value in (*node.operands, *(layer.combine.operands[1:] if layer else ())):
                    add(self.old[value.node])
                ordered[node.name] = node

        for node in self.old.nodes:
            add(node)
        return [*ordered.values()]

    def _visit(self, _: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        if node.name in self.skipped:
            return tuple(operands)
        if (layer := self._layer_of(node)) is None:
            return None
        return self._begin(layer, operands) if node == layer.dispatch else self._end(layer, operands)

    def _begin(self, layer: _Layer, operands: Operands) -> tuple[Value, ...]:
        """Send tokens and weights to the ranks of their experts, and copy a row for each expert."""
        node, weights = layer.dispatch, operands.copy_of(layer.combine.operands[1])
        beside = tuple(dict.fromkeys((*operands, weights)))
        there = dict(zip(beside, self.go(layer, beside), strict=True))
        self.weights[layer.combine.name] = there[weights]
        return self.b.apply(self._local_op(layer, node), *(there[v] for v in operands), name=node.name)

    def _end(self, layer: _Layer, operands: Operands) -> tuple[Value, ...]:
        """Sum the rows of each token, and return the sums."""
        node, (rows, weights) = layer.combine, operands
        (sums,) = self.b.apply(self._local_op(layer, node), rows, self.weights[node.name], name=node.name)
        return (self.back(layer, sums, weights),)

    def _local_op(self, layer: _Layer, node: Node) -> Op:
        """The dispatch or combine op for tokens on the ranks of their experts."""
        return node.op

    @abstractmethod
    def go(self, layer: _Layer, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Send tokens and their other values to the ranks of their experts."""

    @abstractmethod
    def back(self, layer: _Layer, sums: Value, weights: Value) -> Value:
        """Return the sums to the ranks of the tokens."""

    def _named(self, opcode: str, node: Node) -> dict[str, Any]:
        return {"name": f"{opcode}_{node.name}", "block": node.op.block}


class _Ranks(_Walk):
    """Send each token once to each rank."""

    def go(self, layer: _Layer, values: tuple[Value, ...]) -> tuple[Value, ...]:
        sent, (x, *beside) = layer.exchange, values
        of: dict[str, Any] = {"top_k": sent.top_k, "experts": sent.experts, "routing": sent.routing}
        how = self._named("send_tokens", layer.dispatch)
        there: tuple[Value, ...] = self.b.send_tokens(x, *beside, over=sent.over, **of, **how)
        return there

    def back(self, layer: _Layer, sums: Value, weights: Value) -> Value:
        how = self._named("return_tokens", layer.combine)
        back: Value = self.b.return_tokens(sums, weights, over=layer.exchange.over, **how)
        return back


class _Gather(_Walk):
    """Gather all tokens on all ranks; each rank retains the rows of its experts."""

    def _local_op(self, layer: _Layer, node: Node) -> Op:
        over = layer.exchange.over
        if node == layer.dispatch:
            copies = node.op_as(Dispatch)
            return replace(copies, over=(*over, *copies.over))
        sums = node.op_as(Combine)
        return replace(sums, over=(*over, *sums.over))

    def _steps(self, layer: _Layer, value: Value) -> list[tuple[int, tuple[str, ...]]]:
        """The splits of tokens, from the outermost on: sequences, then tokens of sequences."""
        type, over = self.b.type(value), layer.exchange.over
        laid = ((0, type.placements[0]), (TOKENS, type.tokens))
        found = ((dim, tuple(axis for axis in axes if axis in over)) for dim, axes in laid)
        return [(dim, axes) for dim, axes in found if axes]

    def go(self, layer: _Layer, values: tuple[Value, ...]) -> tuple[Value, ...]:
        for dim, over in reversed(self._steps(layer, values[0])):
            values = self.b.all_gather(
                *values, over=over, dim=dim, **self._named("all_gather", layer.dispatch)
            )
        return values

    def back(self, layer: _Layer, sums: Value, weights: Value) -> Value:
        for dim, over in self._steps(layer, weights):
            how = self._named("reduce_scatter", layer.combine)
            sums = self.b.reduce_scatter(sums, over=over, dim=dim, **how)
        return sums
