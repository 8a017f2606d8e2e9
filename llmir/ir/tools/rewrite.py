"""Rewrite rules: a pattern of ops and its replacement.

A pattern and its replacement are ordinary functions of a builder. The parameters of the pattern are its input
values. `...` as the last operand matches any remaining operands. Omitted attributes match any value, and
`label=` names an op for the replacement. An op with `optional=True` may be missing; its first operand then
takes its place. A pattern may return several values.

>>> def pattern(p, gate, up):
...     return p.mul(p.silu(gate), up)
>>> def replacement(b, match, gate, up):
...     return b.silu_mul(gate, up)
>>> silu_mul = Rule("silu-mul", pattern, replacement)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import count, islice
from typing import Any, TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.op import OPS, Op
from llmir.ir.core.tensor import Tensor

from .build import Builder

OpT = TypeVar("OpT", bound=Op)
Place = tuple[int, ...]
_WAYS = 32  # matches of a pattern that are tried per op, because a value may have any number of users


@dataclass(frozen=True, eq=False)
class _Variable:
    name: str


@dataclass(frozen=True, eq=False)
class _Pattern:
    """One result of an op in a pattern: result number `index`."""

    opcode: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    label: str
    results: int = 1
    optional: bool = False

    def __iter__(self) -> Iterator[_Result]:
        # `a, b = p.add_rms_norm(...)` in a pattern unpacks the requested number of results.
        return (_Result(self, i) for i in range(self.results))


@dataclass(frozen=True, eq=False)
class _Result:
    of: _Pattern
    index: int


class _PatternBuilder:
    def __getattr__(self, opcode: str) -> Callable[..., _Pattern]:
        if opcode not in OPS:
            raise AttributeError(f"no op {opcode!r}")

        def build(
            *operands: Any, label: str = "", results: int = 1, optional: bool = False, **attributes: Any
        ) -> _Pattern:
            return _Pattern(opcode, operands, attributes, label, results, optional)

        return build


@dataclass
class Match:
    """A match of a pattern: `match["label"]` is the node of a labeled op."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)  # by `id` of the op in the pattern
    labels: dict[str, Node] = field(default_factory=dict)
    casts: list[Node] = field(default_factory=list)  # casts that the pattern ignores

    def __getitem__(self, label: str) -> Node:
        return self.labels[label]

    def op(self, label: str, kind: type[OpT]) -> OpT:
        """The labeled op, typed as the class that the pattern requires."""
        return self.labels[label].op_as(kind)

    def copy(self) -> Match:
        """A copy of the match, to try one of several ways to continue."""
        return Match(dict(self.values), dict(self.nodes), dict(self.labels), list(self.casts))


@dataclass(frozen=True)
class Rule:
    """Replace `pattern(p, *values)` by `replacement(b, match, *values)`.

    The replacement returns values of equal number and types as the pattern, or None to reject the match.
    """

    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The names of the operands of the pattern."""
        return tuple(inspect.signature(self.pattern).parameters)[1:]

    @cached_property
    def roots(self) -> tuple[_Pattern | _Result, ...]:
        """The results of the traced pattern."""
        traced = self.pattern(_PatternBuilder(), *map(_Variable, self.variables))
        return traced if isinstance(traced, tuple) else (traced,)


class _Draft:
    """A graph during rewriting: its nodes with their places in the schedule, types and users.

    Places are compared as tuples. A new node after a place comes before all older nodes after that place. No
    older node moves, so the time of a replacement does not depend on the size of the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.name = graph.name
        self.nodes: dict[str, Node] = {}
        self.place: dict[str, Place] = {}
        self.types: dict[Value, Tensor] = {}
        self.users: dict[Value, set[str]] = {}
        self.turns = count(0, -1)
        self.numbers: dict[str, int] = {}  # the next number of each name, for builders
        self.put(graph.nodes, ())
        self.returns(graph.outputs)

    def returns(self, outputs: Iterable[Value]) -> None:
        self.outputs = tuple(outputs)
        self.returned = {*self.outputs}

    def put(self, nodes: Iterable[Node], after: Place) -> None:
        turn = next(self.turns)
        for i, node in enumerate(nodes):
            self.place[node.name] = (*after, turn, i)
            self.types.update(zip(node.values, node.results, strict=True))
            self.set(node)

    def set(self, node: Node) -> None:
        self.nodes[node.name] = node
        for value in node.operands:
            self.users.setdefault(value, set()).add(node.name)

    def remove(self, name: str) -> None:
        node = self.unset(name)
        for value in node.values:
            del self.types[value]

    def unset(self, name: str) -> Node:
        node = self.nodes.pop(name)
        for value in node.operands:
            self.users[value].discard(name)
        return node

    def ordered(self, names: Iterable[str]) -> list[Node]:
        return [self.nodes[name] for name in sorted(names, key=self.place.__getitem__)]

    def graph(self) -> Graph:
        return Graph(self.name, self.ordered(self.nodes), self.outputs)


class _Piece(Builder):
    """Builder of a replacement in a draft, which knows the types and names of all other nodes."""

    def __init__(self, draft: _Draft, gone: set[str]) -> None:
        super().__init__(draft.name)
        self._draft, self._gone, self._numbers = draft, gone, draft.numbers

    def type(self, value: Value) -> Tensor:
        """The type of a value in the draft or in the replacement."""
        if isinstance(value, Value) and value.node not in self._gone and value in self._draft.types:
            return self._draft.types[value]
        return super().type(value)

    def node(self, name: str) -> Node:
        return self._draft.nodes[name] if name in self._draft.nodes else super().node(name)

    def _taken(self, name: str) -> bool:
        return super()._taken(name) or (name in self._draft.nodes and name not in self._gone)


def rewrite(graph: Graph, rules: Iterable[Rule]) -> Graph:
    """Apply rules to a graph, in the given order, wherever they match.

    Args:
        graph: The graph.
        rules: The rules.

    Returns:
        The new graph; `graph` itself if no rule matches.

    >>> from llmir.api.load import load
    >>> graph = load("gpt2").graphs["main"]
    >>> rewrite(graph, ()) is graph
    True
    """
    rules, opcodes = tuple(rules), {node.op.opcode for node in graph.nodes}
    if not any(_op(rule.roots[0]).opcode in opcodes for rule in rules):
        return graph
    draft, changed = _Draft(graph), False
    for rule in rules:
        opcode = _op(rule.roots[0]).opcode
        for node in draft.ordered(name for name, n in draft.nodes.items() if n.op.opcode == opcode):
            if node.name in draft.nodes:  # an earlier match may have removed this node
                matches = _matches(draft, rule, draft.nodes[node.name])
                changed |= any(_apply(draft, rule, m) for m in matches)
    return draft.graph() if changed else graph


def _op(root: _Pattern | _Result) -> _Pattern:
    return root.of if isinstance(root, _Result) else root


def _index(root: _Pattern | _Result) -> int:
    return root.index if isinstance(root, _Result) else 0


def _matches(draft: _Draft, rule: Rule, node: Node) -> Iterator[Match]:
    first, *others = rule.roots
    start = _value_match(draft, first, Value(node.name, _index(first)), Match())
    if start:
        yield from islice(_ways(draft, others, start), _WAYS)


def _ways(draft: _Draft, roots: Sequence[_Pattern | _Result], match: Match) -> Iterator[Match]:
    """Yield the ways to match the remaining roots of the pattern."""
    if not roots:
        yield match
        return
    for met in _other_root(draft, roots[0], match):
        yield from _ways(draft, roots[1:], met)


def _other_root(draft: _Draft, root: _Pattern | _Result, match: Match) -> Iterator[Match]:
    """Yield the matches of a further root: the existing match, or matches of users of bound values."""
    pattern = _op(root)
    if id(pattern) in match.nodes:
        yield match
        return
    bound = [v for o in pattern.operands if (v := _bound(o, match))]
    taken = {n.name for n in match.nodes.values()}
    # A match uses all bound values, so only the users of the value with the fewest users are candidates.
    users = min((draft.users.get(v, set()) for v in bound), key=len, default=set())
    for user in draft.ordered(users):
        if user.op.opcode == pattern.opcode and user.name not in taken:
            found = _value_match(draft, root, Value(user.name, _index(root)), match.copy())
            if found:
                yield found


def _keeps(draft: _Draft, cast: Node) -> bool:
    """Whether a cast keeps values unchanged: the cast increases precision, or reverses such a cast."""
    value = cast.operands[0]
    node = draft.nodes[value.node]
    before, after = draft.types[value].dtype, cast.results[0].dtype
    if before.bits <= after.bits:
        return True
    # For an fp32 region inside a bf16 block, the cast back to bf16 ends the region, whatever ops it contains.
    while node.operands and draft.types[node.values[0]].dtype == before:
        value = node.operands[0]
        node = draft.nodes[value.node]
        if draft.types[value].dtype == after:
            return True
    return False


def _bound(operand: Any, match: Match) -> Value | None:
    """The value that an operand of a pattern is bound to, if any."""
    if isinstance(operand, _Variable):
        return match.values.get(operand.name)
    if isinstance(operand, (_Pattern, _Result)) and id(_op(operand)) in match.nodes:
        return Value(match.nodes[id(_op(operand))].name, _index(operand))
    return None


def _value_match(draft: _Draft, pattern: Any, value: Value, match: Match) -> Match | None:
    if isinstance(pattern, _Variable):
        return match if match.values.setdefault(pattern.name, value) == value else None
    wanted, index = _op(pattern), _index(pattern)
    node = draft.nodes[value.node]
    while node.op.transparent and not OPS[wanted.opcode].transparent and _keeps(draft, node):
        match.casts.append(node)
        value = node.operands[0]
        node = draft.nodes[value.node]
    if id(wanted) in match.nodes:
        return match if match.nodes[id(wanted)] is node and value.result == index else None
    if wanted.optional and node.op.opcode != wanted.opcode:
        return _value_match(draft, wanted.operands[0], value, match)
    open_ended = bool(wanted.operands) and wanted.operands[-1] is ...
    operands = wanted.operands[:-1] if open_ended else wanted.operands
    if (
        node.op.opcode != wanted.opcode
        or value.result != index
        or (len(node.operands) < len(operands) if open_ended else len(node.operands) != len(operands))
        or any(getattr(node.op, k) != v for k, v in wanted.attributes.items())
    ):
        return None
    match.nodes[id(wanted)] = node
    if wanted.label:
        match.labels[wanted.label] = node
    for part, operand in zip(operands, node.operands, strict=False):
        if _value_match(draft, part, operand, match) is None:
            return None
    return match


def _apply(draft: _Draft, rule: Rule, match: Match) -> bool:
    """Insert the replacement if no other op needs a removed value, and if operands are computed in time."""
    old = [Value(match.nodes[id(_op(r))].name, _index(r)) for r in rule.roots]
    gone = {n.name for n in (*match.nodes.values(), *match.casts)}
    inner = [v for n in gone for v in draft.nodes[n].values if v not in old]
    if any(v in draft.returned or draft.users.get(v, set()) - gone for v in inner):
        return False

    builder = _Piece(draft, gone)
    try:
        built = rule.replacement(builder, match, *(match.values[v] for v in rule.variables))
    except VerifyError:  # the replacement is invalid here, so this is not a match
        return False
    if built is None:
        return False
    new = (built,) if isinstance(built, Value) else tuple(built)
    given, due = [builder.type(v) for v in new], [draft.types[v] for v in old]
    if given != due:
        raise VerifyError(f"rule {rule.name}: returns {given}, must return {due}")
    return _splice(draft, gone, builder.nodes, dict(zip(old, new, strict=True)))


def _splice(draft: _Draft, gone: set[str], fresh: list[Node], renamed: dict[Value, Value]) -> bool:
    """Replace the nodes `gone` by the nodes `fresh`, placed after their operands and before their users."""
    names = {n.name for n in fresh}
    needs = [draft.place[v.node] for n in fresh for v in n.operands if v.node not in names]
    after = max([*needs, min(draft.place[n] for n in gone)])
    users = {u for v in renamed for u in draft.users.get(v, set()) if u not in gone}
    if any(draft.place[u] <= after for u in users):
        return False
    for name in gone:
        draft.remove(name)
    draft.put((n for n in fresh if n.op.source), ())
    draft.put((n for n in fresh if not n.op.source), after)
    for name in users:
        user = draft.unset(name)
        operands = tuple(renamed.get(v, v) for v in user.operands)
        draft.set(Node(user.name, user.op, operands, user.results))
    if not draft.returned.isdisjoint(renamed):
        draft.returns(renamed.get(v, v) for v in draft.outputs)
    return True
