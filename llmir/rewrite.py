"""Rewrite rules: a pattern of ops, and what to build in its place.

Both halves are ordinary functions on a builder. The pattern's parameters are the values it takes;
`...` as a last operand stands for any further operands, attributes left out match anything, and
`label=` names an op for the replacement to ask about. A pattern may return several values.

>>> def pattern(p, gate, up):
...     return p.mul(p.silu(gate), up)
>>> def replacement(b, match, gate, up):
...     return b.silu_mul(gate, up)
>>> silu_mul = Rule("silu-mul", pattern, replacement)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .build import Builder
from .errors import VerifyError
from .graph import Graph, Node, Value
from .ops import OPS


@dataclass(frozen=True, eq=False)
class _Variable:
    name: str


@dataclass(frozen=True, eq=False)
class _Pattern:
    """An op of a pattern; the value it stands for is result `index`."""

    opcode: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    label: str
    results: int = 1

    def __iter__(self) -> Iterator[_Result]:
        # `a, b = p.add_rms_norm(...)` in a pattern: as many results as are asked for.
        return (_Result(self, i) for i in range(self.results))


@dataclass(frozen=True, eq=False)
class _Result:
    of: _Pattern
    index: int


class _PatternBuilder:
    def __getattr__(self, opcode: str) -> Callable[..., _Pattern]:
        if opcode not in OPS:
            raise AttributeError(f"no op {opcode!r}")

        def build(*operands: Any, label: str = "", results: int = 1, **attributes: Any) -> _Pattern:
            return _Pattern(opcode, operands, attributes, label, results)

        return build


@dataclass
class Match:
    """What a pattern met: `match["label"]` is the node behind a labelled op."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)  # by id of the pattern op
    labels: dict[str, Node] = field(default_factory=dict)
    casts: list[Node] = field(default_factory=list)  # seen through

    def __getitem__(self, label: str) -> Node:
        return self.labels[label]

    def copy(self) -> Match:
        """A copy, to go on with in one of several ways."""
        return Match(dict(self.values), dict(self.nodes), dict(self.labels), list(self.casts))


@dataclass(frozen=True)
class Rule:
    """`pattern(p, *values)` is replaced by `replacement(b, match, *values)`.

    The replacement returns as many values, of the same types; None declines the match.
    """

    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The names of the values that the pattern takes."""
        return tuple(inspect.signature(self.pattern).parameters)[1:]

    @cached_property
    def roots(self) -> tuple[_Pattern | _Result, ...]:
        """The traced pattern: what it returns."""
        traced = self.pattern(_PatternBuilder(), *map(_Variable, self.variables))
        return traced if isinstance(traced, tuple) else (traced,)


class _Draft:
    """A graph while it is rewritten: nodes in order, their types, and who uses what."""

    def __init__(self, graph: Graph) -> None:
        self.name, self.outputs = graph.name, graph.outputs
        self.put(list(graph.nodes))

    def put(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.by_name = {n.name: n for n in nodes}
        self.position = {n.name: i for i, n in enumerate(nodes)}
        self.types = {v: t for n in nodes for v, t in zip(n.values, n.results, strict=True)}
        self.users: dict[Value, list[Node]] = {}
        for node in nodes:
            for value in node.operands:
                self.users.setdefault(value, []).append(node)


def rewrite(graph: Graph, rules: Iterable[Rule]) -> Graph:
    """`graph` with each rule applied, in order, wherever it matches; the same object if none does."""
    draft, changed = _Draft(graph), False
    for rule in rules:
        opcode = _op(rule.roots[0]).opcode
        for name in [n.name for n in draft.nodes if n.op.opcode == opcode]:
            if name in draft.by_name:  # an earlier match may have taken it
                matches = _matches(draft, rule, draft.by_name[name])
                changed |= any(_apply(draft, rule, m) for m in matches)
    return Graph(graph.name, draft.nodes, draft.outputs) if changed else graph


def _op(root: _Pattern | _Result) -> _Pattern:
    return root.of if isinstance(root, _Result) else root


def _index(root: _Pattern | _Result) -> int:
    return root.index if isinstance(root, _Result) else 0


def _matches(draft: _Draft, rule: Rule, node: Node) -> Iterator[Match]:
    first, *others = rule.roots
    start = _value_match(draft, first, Value(node.name, _index(first)), Match())
    partial = [start] if start else []
    for root in others:
        partial = [m for p in partial for m in _other_root(draft, root, p)][:1]
    yield from partial


def _other_root(draft: _Draft, root: _Pattern | _Result, match: Match) -> Iterator[Match]:
    """Ways to meet a further root: met already, or found among the users of what is bound."""
    pattern = _op(root)
    if id(pattern) in match.nodes:
        yield match
        return
    bound = [v for o in pattern.operands if (v := _bound(o, match))]
    taken = {n.name for n in match.nodes.values()}
    for user in draft.users.get(bound[0], []) if bound else []:
        if user.op.opcode == pattern.opcode and user.name not in taken:
            found = _value_match(draft, root, Value(user.name, _index(root)), match.copy())
            if found:
                yield found


def _keeps(draft: _Draft, cast: Node) -> bool:
    """Whether values survive a cast: it widens, or only undoes what another cast widened."""
    value = cast.operands[0]
    node = draft.by_name[value.node]
    before, after = draft.types[value].dtype, cast.results[0].dtype
    if before.bits <= after.bits:
        return True
    # fp32 inside a bf16 block: the way back, through whatever computes in between, ends where it began.
    while node.operands and draft.types[node.values[0]].dtype == before:
        value = node.operands[0]
        node = draft.by_name[value.node]
        if draft.types[value].dtype == after:
            return True
    return False


def _bound(operand: Any, match: Match) -> Value | None:
    """The value that an operand of a pattern has met, if it has met one."""
    if isinstance(operand, _Variable):
        return match.values.get(operand.name)
    if isinstance(operand, (_Pattern, _Result)) and id(_op(operand)) in match.nodes:
        return Value(match.nodes[id(_op(operand))].name, _index(operand))
    return None


def _value_match(draft: _Draft, pattern: Any, value: Value, match: Match) -> Match | None:
    if isinstance(pattern, _Variable):
        return match if match.values.setdefault(pattern.name, value) == value else None
    wanted, index = _op(pattern), _index(pattern)
    node = draft.by_name[value.node]
    while node.op.transparent and not OPS[wanted.opcode].transparent and _keeps(draft, node):
        match.casts.append(node)
        value = node.operands[0]
        node = draft.by_name[value.node]
    if id(wanted) in match.nodes:
        return match if match.nodes[id(wanted)] is node and value.result == index else None
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
    """Put the replacement in, if nothing outside needs what would go and its operands are ready in time."""
    old = [Value(match.nodes[id(_op(r))].name, _index(r)) for r in rule.roots]
    gone = {n.name for n in (*match.nodes.values(), *match.casts)}
    inner = [v for n in gone for v in draft.by_name[n].values if v not in old]
    if any(v in draft.outputs or any(u.name not in gone for u in draft.users.get(v, [])) for v in inner):
        return False

    builder = Builder(draft.name, {v: t for v, t in draft.types.items() if v.node not in gone})
    try:
        built = rule.replacement(builder, match, *(match.values[v] for v in rule.variables))
    except VerifyError:  # the ops do not fit together, so this is no match
        return False
    if built is None:
        return False
    new = (built,) if isinstance(built, Value) else tuple(built)
    given, due = [builder.type(v) for v in new], [draft.types[v] for v in old]
    if given != due:
        raise VerifyError(f"rule {rule.name}: gives {given}, must give {due}")
    return _splice(draft, gone, builder.nodes, dict(zip(old, new, strict=True)))


def _splice(draft: _Draft, gone: set[str], fresh: list[Node], renamed: dict[Value, Value]) -> bool:
    """Put `fresh` where `gone` was: after its operands, before whatever uses it."""
    names = {n.name for n in fresh}
    needs = [draft.position[v.node] + 1 for n in fresh for v in n.operands if v.node not in names]
    at = max([*needs, min(draft.position[n] for n in gone)])
    users = [u for v in renamed for u in draft.users.get(v, []) if u.name not in gone]
    if any(draft.position[u.name] < at for u in users):
        return False
    for user in users:
        operands = tuple(renamed.get(v, v) for v in draft.by_name[user.name].operands)
        draft.by_name[user.name] = Node(user.name, user.op, operands, user.results)
    sources = [n for n in fresh if n.op.source]
    computed = [n for n in fresh if not n.op.source]
    head = [draft.by_name[n.name] for n in draft.nodes[:at] if n.name not in gone]
    tail = [draft.by_name[n.name] for n in draft.nodes[at:] if n.name not in gone]
    draft.outputs = tuple(renamed.get(v, v) for v in draft.outputs)
    draft.put([*sources, *head, *computed, *tail])
    return True
