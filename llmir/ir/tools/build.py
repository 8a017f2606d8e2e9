"""The builder: builds a graph by calling ops as methods.

>>> b = Builder()
>>> x = b.input("bf16[B, T, 8]", name="x")
>>> y = b.linear(x, b.weight("bf16[8, 32]", name="w"), einsum="b t h, h f -> b t f")
>>> b.output(b.silu(y))
>>> print([str(n.results[0]) for n in b.graph().nodes])
['bf16[B, T, 8]', 'bf16[8, 32]', 'bf16[B, T, 32]', 'bf16[B, T, 32]']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from llmir.base.arguments import refuse, show_value, text
from llmir.base.errors import VerifyError
from llmir.ir.core.graph import Graph, Node, Value, check_name
from llmir.ir.core.op import OPS, Op, infer
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops import make
from llmir.ir.ops.index import MODULES

if TYPE_CHECKING:
    from .op_methods import OpMethods  # a stub: `Builder.__getattr__` creates the methods
else:
    OpMethods = object

# The replacement of a value in a copy of a graph: a value, or a function that builds this value on first use.
Replacement: TypeAlias = Value | Callable[[], Value]


class Operands(Sequence[Value]):
    """The operands of a node in a copy of its graph. A deferred replacement is built on first use."""

    def __init__(self, old: Sequence[Value], copies: dict[Value, Replacement]) -> None:
        self._old, self._copies = old, copies

    def __len__(self) -> int:
        return len(self._old)

    @overload
    def __getitem__(self, slot: int) -> Value: ...

    @overload
    def __getitem__(self, slot: slice) -> tuple[Value, ...]: ...

    def __getitem__(self, slot: int | slice) -> Value | tuple[Value, ...]:
        if isinstance(slot, slice):
            return tuple(map(self.copy_of, self._old[slot]))
        return self.copy_of(self._old[slot])

    def __iter__(self) -> Iterator[Value]:
        return map(self.copy_of, self._old)

    def copy_of(self, value: Value) -> Value:
        """The replacement of an earlier value; the value itself if it has no replacement."""
        copy = self._copies.get(value, value)
        if not isinstance(copy, Value):
            self._copies[value] = copy = copy()
        return copy


class Builder(OpMethods):
    """Builds a graph; each op is a method, such as `builder.rms_norm(x, w, eps=1e-5, name="norm")`.

    Ops are added in schedule order, except that sources come first in the finished graph. A builder of a part
    of a graph receives the types of outside values as `known`.
    """

    def __init__(self, name: str = "main", known: Mapping[Value, Tensor] | None = None) -> None:
        self.name = check_name(name)
        pairs = known.items() if isinstance(known, Mapping) else [(known, None)] if known is not None else []
        if not all(isinstance(v, Value) and isinstance(t, Tensor) for v, t in pairs):
            refuse("known", known, "a mapping of values to their types", VerifyError)
        self._sources: list[Node] = []
        self._nodes: list[Node] = []
        self._made: dict[str, Node] = {}
        self._types: dict[Value, Tensor] = dict(known or {})
        self._numbers: dict[str, int] = {}  # last used suffix by name
        self._outputs: tuple[Value, ...] = ()
        self._block = ""

    def __getattr__(self, opcode: str) -> Callable[..., Any]:
        if opcode.startswith("_") or opcode not in OPS:
            raise AttributeError(f"no op or method {opcode!r}")

        def build(*operands: Value, name: str = "", block: str | None = None, **attributes: Any) -> Any:
            """Add the op; return its result, or a tuple if the op has several results."""
            attributes["block"] = self._block if block is None else block
            values = self.apply(make(opcode, **attributes), *operands, name=name)
            return values[0] if len(values) == 1 else values

        build.__name__, build.__doc__ = opcode, OPS[opcode].__doc__
        return build

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *MODULES]

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """A context in which added ops belong to this block of the model."""
        outer, self._block = self._block, text("block", name, error=VerifyError)
        try:
            yield
        finally:
            self._block = outer

    def input(self, type: Tensor | str, *, name: str, axes: tuple[str, ...] = ()) -> Value:
        """A value that the caller passes."""
        return self._source("input", type, name, axes=axes)

    def weight(
        self, type: Tensor | str, *, name: str, axes: tuple[str, ...] = (), param: str = "", turns: int = 0
    ) -> Value:
        """A parameter, called `param` in an HF checkpoint; a benchmark uses `turns` copies in rotation."""
        return self._source("weight", type, name, axes=axes, param=param, turns=turns)

    def buffer(self, type: Tensor | str, *, name: str, axes: tuple[str, ...] = (), param: str = "") -> Value:
        """A tensor of a checkpoint that is not a parameter, stored under the name `param`."""
        return self._source("buffer", type, name, axes=axes, param=param)

    def cache(self, type: Tensor | str, *, name: str, axes: tuple[str, ...] = ()) -> Value:
        """A tensor that earlier steps wrote, such as keys and values."""
        return self._source("cache", type, name, axes=axes)

    def _source(self, opcode: str, type: Tensor | str, name: str, **attributes: Any) -> Value:
        stated = parse_tensor(type) if isinstance(type, str) else type
        if not isinstance(stated, Tensor):
            refuse(f"%{show_value(name)}", type, "a type such as bf16[B, T, 8]", VerifyError)
        return self.apply(make(opcode, type=stated, block=self._block, **attributes), name=name)[0]

    def apply(self, op: Op, *operands: Value, name: str = "") -> tuple[Value, ...]:
        """Add an op of any class with inferred types, and return its results."""
        if not isinstance(op, Op):
            refuse("op", op, "an op", VerifyError)
        name = self._unique(check_name(op.opcode if isinstance(name, str) and not name else name))
        return self.insert(Node(name, op, operands, self._infer(name, op, operands)))

    def _infer(self, name: str, op: Op, operands: tuple[Value, ...]) -> tuple[Tensor, ...]:
        try:
            return infer(op, tuple(map(self.type, operands)))
        except VerifyError as error:
            raise VerifyError(f"%{name} ({op.opcode}): {error}") from None

    @classmethod
    def rebuild(
        cls,
        graph: Graph,
        visit: Visit,
        outputs: Callable[[Builder, Operands], Iterable[Value]] | None = None,
        into: Builder | None = None,
    ) -> Graph:
        """Copy a graph, with nodes replaced by `visit`.

        Args:
            graph: The graph, copied in schedule order. The body of a `repeat` is a separate graph.
            visit: Called for each node with the builder of the copy, the node, and its operands in the copy.
                It builds the replacement and returns a value for each result of the node, or a function that
                builds the value on first use. None copies the node.
            outputs: Called with the builder and the copies of the graph's outputs; returns the outputs of the
                new graph. The default is these copies.
            into: The builder of the new graph. The default is a new builder with the name of `graph`.

        Returns:
            The new graph.

        >>> b = Builder()
        >>> b.output(b.silu(b.input("bf16[B, T, 8]", name="x")))
        >>> def gelu(b, node, operands):
        ...     return (b.gelu(*operands),) if node.name == "silu" else None
        >>> print([node.name for node in Builder.rebuild(b.graph(), gelu).nodes])
        ['x', 'gelu']
        """
        b = cls(graph.name) if into is None else into
        copies: dict[Value, Replacement] = {}
        b.copy_nodes(graph.nodes, visit, copies)
        ends = Operands(graph.outputs, copies)
        b.output(*(outputs(b, ends) if outputs else ends))
        return b.graph()

    def copy_nodes(self, nodes: Iterable[Node], visit: Visit, copies: dict[Value, Replacement]) -> None:
        """Copy nodes in order, as `rebuild` does, and record their replacements in `copies`."""
        for node in nodes:
            operands = Operands(node.operands, copies)
            replacements = visit(self, node, operands)
            if replacements is None:
                replacements = self.keep(node, *operands)
            copies.update(zip(node.values, replacements, strict=True))

    def keep(self, node: Node, *operands: Value) -> tuple[Value, ...]:
        """Copy a node of another graph with these operands, under its name if the name is free."""
        if node.op.source:
            return self.insert(node)
        if node.name in self._made:
            return self.apply(node.op, *operands, name=node.name)
        results = self._infer(node.name, node.op, operands)
        same = operands == node.operands and results == node.results
        return self.insert(node if same else Node(node.name, node.op, operands, results))

    def insert(self, node: Node) -> tuple[Value, ...]:
        """Add a node unchanged."""
        if not isinstance(node, Node):
            refuse("node", node, "a node", VerifyError)
        (self._sources if node.op.source else self._nodes).append(node)
        self._made[node.name] = node
        values = node.values
        self._types.update(zip(values, node.results, strict=True))
        return values

    def node(self, name: str) -> Node:
        """The node with this name."""
        if not isinstance(name, str) or name not in self._made:
            raise VerifyError(f"%{show_value(name)} was not added to graph @{self.name}")
        return self._made[name]

    def type(self, value: Value) -> Tensor:
        """The type of a value built so far."""
        if not isinstance(value, Value):
            refuse(f"graph @{self.name}", value, "a value that its builder gave", VerifyError)
        if not (type := self._types.get(value)):
            raise VerifyError(f"{value} is not a value of graph @{self.name}")
        return type

    def output(self, *values: Value) -> None:
        """Set the outputs of the graph."""
        for value in values:
            self.type(value)
        self._outputs = values

    @property
    def nodes(self) -> list[Node]:
        """The nodes that have been added so far, sources first."""
        return [*self._sources, *self._nodes]

    def graph(self) -> Graph:
        """The finished graph."""
        return Graph(self.name, self.nodes, self._outputs)

    def _unique(self, name: str) -> str:
        if not self._taken(name):
            return name
        number = self._numbers.get(name, 2)
        while self._taken(unique := f"{name}_{number}"):
            number += 1
        self._numbers[name] = number
        return unique

    def _taken(self, name: str) -> bool:
        return name in self._made or Value(name) in self._types


Visit: TypeAlias = Callable[[Builder, Node, Operands], Sequence[Replacement] | None]
