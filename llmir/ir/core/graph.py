"""Nodes, values and graphs: immutable ops in schedule order, with a networkx view.

A `Node` is an op in a graph, with operands and result types; a `Value` is one of its results. `graph.nx` is a
`networkx.MultiDiGraph` that refuses changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.formats import Displayable
from llmir.base.names import plain
from llmir.base.values import FrozenDict, Immutable

from .op import Loop, Op
from .tensor import Tensor

if TYPE_CHECKING:
    from .frozen_graph import FrozenGraph

OpT = TypeVar("OpT", bound=Op)


_MOST_NODES = 2_000_000  # more nodes than any model with all layers unrolled
_NAME = re.compile(r"""[^\s#,()=\[\]{}"@%:]+""")


def check_name(name: object) -> str:
    """Return `name` if it is valid in the text form of IR; otherwise raise `VerifyError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = 'text without spaces, and none of # , ( ) = [ ] { } " @ % :'
        arguments.refuse("name", name, allowed, VerifyError)
    return name


class Value(NamedTuple):
    """One result of a node, printed as `%node`; later results are `%node#1`, `%node#2`, …."""

    node: str
    result: int = 0

    def __str__(self) -> str:
        return f"%{self.node}#{self.result}" if self.result else f"%{self.node}"


@dataclass(frozen=True)
class Node:
    """An op in a graph, with its name, its operands and its result types."""

    name: str
    op: Op
    operands: tuple[Value, ...]
    results: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        for what, found, kind in (("operands", self.operands, Value), ("results", self.results, Tensor)):
            if type(found) is tuple and {kind}.issuperset(map(type, found)):
                continue
            if not isinstance(found, tuple) or not all(isinstance(each, kind) for each in found):
                arguments.refuse(f"node: {what}", found, f"a tuple of {kind.__name__}s", VerifyError)
        if not isinstance(self.op, Op):
            arguments.refuse("node: op", self.op, "an op", VerifyError)

    def op_as(self, kind: type[OpT]) -> OpT:
        """Return the op, typed as the given class; VerifyError for another class."""
        found = self.op
        if not isinstance(found, kind):
            raise VerifyError(f"%{self.name} is of {found.opcode}, expected {kind.opcode or kind.__name__}")
        return found

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The results as values."""
        return tuple(Value(self.name, i) for i in range(len(self.results)))


class Graph(Immutable, Displayable):
    """An immutable graph of nodes in schedule order. `graph.nx` is a `networkx.MultiDiGraph`:

    node `name` has the attribute `node` (a `Node`). The key of an edge is the operand slot, and its attribute
    `value` the value.
    """

    prints = "ir"

    name: str
    outputs: tuple[Value, ...]
    _nodes: FrozenDict[str, Node]

    def __init__(self, name: str, nodes: Iterable[Node], outputs: Iterable[Value]) -> None:
        check_name(name)
        found: dict[str, Node] = {}
        for node in arguments.items("nodes", nodes, "nodes", most=_MOST_NODES, error=VerifyError):
            if not isinstance(node, Node):
                arguments.refuse(f"graph @{name}: nodes", node, "nodes", VerifyError)
            if check_name(node.name) in found:
                raise VerifyError(f"graph @{name}: two ops are called %{node.name}")
            for value in node.operands:
                if value.node not in found:
                    raise VerifyError(
                        f"graph @{name}: %{node.name} uses {value}, which is not defined before it"
                    )
            found[node.name] = node
        given = arguments.items("outputs", outputs, "values", most=_MOST_NODES, error=VerifyError)
        vars(self).update(name=name, outputs=given, _nodes=FrozenDict(found))
        for value in self.outputs:
            self.type(value)

    def __repr__(self) -> str:
        return f"<Graph @{self.name}: {len(self.nodes)} ops>"

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in schedule order."""
        return tuple(self._nodes.values())

    @cached_property
    def users(self) -> Mapping[str, tuple[tuple[Node, int], ...]]:
        """The users of each node by name: nodes in schedule order, with the operand slots that they use."""
        found: dict[str, list[tuple[Node, int]]] = {name: [] for name in self._nodes}
        for node in self.nodes:
            for slot, value in enumerate(node.operands):
                found[value.node].append((node, slot))
        return FrozenDict((name, tuple(each)) for name, each in found.items())

    @cached_property
    def nx(self) -> FrozenGraph:
        """The graph for networkx, built on first access."""

        from .frozen_graph import FrozenGraph  # the import of networkx takes a third of the start-up time

        return FrozenGraph.of(self.name, self._nodes)

    @cached_property
    def sources(self) -> tuple[Node, ...]:
        """The nodes whose values no op computes."""
        return tuple(n for n in self.nodes if n.op.source)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The sources other than weights and caches; a `repeat` of this graph passes them as operands."""
        return tuple(n for n in self.sources if n.op.role == "activation")

    @cached_property
    def loops(self) -> Mapping[str, Loop]:
        """The loop of each node that runs a graph."""
        return FrozenDict((n.name, loop) for n in self.nodes if (loop := n.op.loop))

    def __getitem__(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except (KeyError, TypeError):  # unhashable values
            shown = plain(name) if isinstance(name, str) else arguments.show_value(name)
            raise VerifyError(f"graph @{self.name} has no op %{shown}") from None

    def type(self, value: Value) -> Tensor:
        """The type of a value; `VerifyError` if there is no such value."""
        if not isinstance(value, Value) or type(value.result) is not int:
            arguments.refuse(
                f"graph @{self.name}", value, "a value, such as an operand of a node", VerifyError
            )
        if not (isinstance(value.node, str) and (known := self._types.get(value))):
            count = len(self[value.node].results)
            raise VerifyError(f"graph @{self.name}: %{value.node} has {count} results, not {value}")
        return known

    @cached_property
    def _types(self) -> dict[Value, Tensor]:
        return {v: t for node in self.nodes for v, t in zip(node.values, node.results, strict=True)}

    def operand_types(self, node: Node) -> tuple[Tensor, ...]:
        """The types of the operands of `node`."""
        if not isinstance(node, Node):
            arguments.refuse(f"graph @{self.name}", node, "a node", VerifyError)
        types = self._types
        return tuple([types.get(v) or self.type(v) for v in node.operands])

    def origin(self, value: Value) -> Node:
        """The node that allocated the memory of a value; an in-place result shares its operand's memory."""
        self.type(value)
        return self._origins.get(value) or self._nodes[value.node]

    @cached_property
    def _origins(self) -> dict[Value, Node]:
        """The value that allocated the memory of each in-place result."""
        found: dict[Value, Node] = {}
        for node in self.nodes:
            for result, slot in node.op.aliases.items():
                found[Value(node.name, result)] = found.get(v := node.operands[slot]) or self[v.node]
        return found

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Graph):
            return self is other
        return (self.name, self.nodes, self.outputs) == (other.name, other.nodes, other.outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.name, self.nodes, self.outputs)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, tuple(n.results for n in self.nodes)))

    def __hash__(self) -> int:
        return self._hash
