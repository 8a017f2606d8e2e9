"""Peak memory: what must be held at once, over a schedule.

Weights and caches are *resident*; everything else is *transient*, from the op that makes it to the last
op that needs it. The peak is taken at each op, with its operands and results both alive, and its
workspace. An op that writes in place (`Op.aliases`) reuses an operand's memory if nothing else needs that
operand later.
The body of a `repeat` is walked once for the first iteration, once for those between and once for the
last: they differ in which of its inputs may be let go inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from llmir.backends.analysis.caches import CachePolicy, State, policy
from llmir.dim import Binding, Number, Size, at_most, grown, maximum
from llmir.graph import Graph, Instance, Node, Program, Value
from llmir.op import Loop
from llmir.tensor import Tensor


class Held(NamedTuple):
    """A piece of transient memory, and the value that it was made for."""

    name: str
    bytes: Size


class Moment(NamedTuple):
    """The transient memory while one op runs."""

    op: str
    bytes: Size
    held: tuple[Held, ...]


class Peak(NamedTuple):
    """Where memory is fullest: the op, the transient bytes, and what they hold, largest first."""

    op: str
    bytes: Number
    held: tuple[tuple[str, Number], ...]


@dataclass(frozen=True)
class Memory:
    """The memory of one rank over one step, before numbers enter."""

    weights: Size
    caches: Size
    moments: tuple[Moment, ...]

    @cached_property
    def _candidates(self) -> tuple[Size, ...]:
        """The moments' sizes, without those that another is never below."""
        sizes = list(dict.fromkeys(m.bytes for m in self.moments))
        kept: list[Size] = []
        for size in sizes:
            if not any(at_most(size, k) for k in kept):
                kept = [k for k in kept if not at_most(k, size)] + [size]
        return tuple(kept)

    @cached_property
    def distinct(self) -> tuple[Moment, ...]:
        """The first moment of each size."""
        found: dict[Size, Moment] = {}
        for moment in self.moments:
            found.setdefault(moment.bytes, moment)
        return tuple(found.values())

    def fullest_index(self, at: Binding) -> Number:
        """Which of `distinct` is the fullest, on a grid."""
        peak, index = np.zeros(at.shape), np.zeros(at.shape)
        for i, moment in enumerate(self.distinct):
            size = at(moment.bytes)
            index = np.where(size > peak, i, index)
            peak = np.maximum(peak, size)
        return index

    def transient(self, at: Binding) -> Number:
        """Bytes of activations at the fullest moment."""
        peak: Number = 0
        for size in self._candidates:
            peak = maximum(peak, at(size))
        return peak

    def peak(self, at: Binding) -> Number:
        """Bytes of everything at the fullest moment."""
        return at(self.weights) + at(self.caches) + self.transient(at)

    def fullest(self, at: Binding) -> Peak:
        """The fullest moment at one point."""
        moment = max(self.moments, key=lambda m: at(m.bytes), default=Moment("", 0, ()))
        held = sorted(((h.name, at(h.bytes)) for h in moment.held), key=lambda h: -h[1])
        return Peak(moment.op, at(moment.bytes), tuple(held))


@lru_cache(maxsize=256)
def memories(program: Program, cache_policy: str = "exact") -> tuple[Memory, ...]:
    """The memory of one rank of each stage; caches are those of all micro-batches, activations of one.

    Weights are those of all phases: what each has in a form of its own lies beside the others.
    """
    by = policy(cache_policy)
    weights: list[Size] = [0] * len(program.entries)
    for at in (*program.held(), *(at for at in beside(program) if at.node.op.role == "weight")):
        weights[at.stage] += at.node.results[0].local(program.mesh).bytes * at.repeat
    return tuple(
        Memory(held, caches, _moments(program, entry, by))
        for held, caches, entry in zip(weights, reserved(program, by), program.entries, strict=True)
    )


@lru_cache(maxsize=256)
def reserved(program: Program, by: CachePolicy) -> tuple[Size, ...]:
    """Bytes that a policy reserves for the caches of one rank of each stage, of all micro-batches."""
    states: list[list[State]] = [[] for _ in program.entries]
    for at in (*program.instances(), *beside(program)):
        if at.node.op.role == "cache":
            states[at.stage].append(_state(at, program))
    return tuple(map(by.reserved, states))


def _state(at: Instance, program: Program) -> State:
    type, layer = at.node.results[0].local(program.mesh), at.path.rpartition(".")[0]
    written = not program.patches and at.node.name in _written(at.graph)  # images are before all tokens
    ring = "series" in at.node.op.axes
    return State(type, written, layer, at.repeat * program.micro_batches, ring)


def beside(program: Program) -> Iterator[Instance]:
    """The weights and caches that other phases have and this one has not, or has in another type."""
    seen = {_identity(at) for at in program.instances()} if program.phases else set()
    for phase in program.phases.values():
        for at in phase.instances():
            here = at.stage < len(program.entries)  # what encodes images lies on the first stage alone
            if here and at.node.op.role in ("weight", "cache") and _identity(at) not in seen:
                seen.add(_identity(at))
                yield at


def _identity(at: Instance) -> tuple[object, ...]:
    """What makes a weight the same in two phases."""
    return at.stage, at.node.op.param or at.path, at.layers, at.node.results[0]


def _moments(program: Program, entry: str, by: CachePolicy) -> tuple[Moment, ...]:
    prefix = program.prefix(entry)
    found = _Walk(program, program[entry], None, by, program[entry].outputs, {}).moments
    return tuple(m._replace(op=prefix + m.op) for m in found) if prefix else tuple(found)


@lru_cache(maxsize=256)
def _written(graph: Graph) -> frozenset[str]:
    """The sources of `graph` that the step writes to."""
    return frozenset(graph.origin(v).name for n in graph.nodes if n.operands for v in n.values)


def _needed(program: Program, node: Node) -> dict[str, Value]:
    """The operands that `node` needs, by slot: of a `repeat`, by those inputs that its body reads."""
    if not node.op.loop:
        return {str(slot): v for slot, v in enumerate(node.operands)}
    body = program[node.op.loop.body]
    used = {*body.outputs, *(v for inner in body.nodes for v in _needed(program, inner).values())}
    taken = zip(body.inputs, node.operands, strict=True)
    return {i.name: v for i, v in taken if i.values[0] in used}


def _iterations(times: int) -> list[tuple[bool, bool]]:
    """The iterations that differ in memory, as (is the first, is the last)."""
    between, end = [(False, False)] * (times > 2), [(False, True)] * (times > 1)
    return [(True, times == 1), *between, *end]


class _Walk:
    """One pass over a graph's schedule.

    `owned` are the inputs that may be let go inside, each with the piece that it lies in (None: all inputs,
    each in one of its own), of `sizes` where not its type says it, and `wanted` the outputs that are needed.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        owned: Mapping[str, Value | None] | None,
        by: CachePolicy,
        wanted: Sequence[Value],
        sizes: Mapping[Value | None, Size],
    ) -> None:
        self.program, self.graph, self.by, self.wanted = program, graph, by, wanted
        self.moments: list[Moment] = []
        self.live: dict[Value, Held] = {}  # by the value that a piece was made for
        self.total: Size = 0
        self.home: dict[Value, Value] = {}  # value -> the value whose piece it lies in
        self.last: dict[Value, int] = {}  # piece -> position of its last use; outputs are never let go
        self.uses = self._uses()
        ours = {n.name: n.values[0] for n in graph.inputs} if owned is None else owned
        first: dict[Value | None, Value] = {}  # the input that a piece was first met as
        for position, node in enumerate(graph.nodes):
            if node.op.loop:
                self._repeat(position, node, node.op.loop)
            elif not node.op.source:
                self._compute(position, node)
            elif node.name in ours and node.values[0] in self.uses:
                met = first.setdefault(ours[node.name], node.values[0])
                if met == node.values[0]:
                    whole = node.results[0].local(program.mesh).bytes
                    self._hold(met, node.name, sizes.get(ours[node.name], whole))
                else:
                    self._share(node.values[0], met)
        self.outputs = [self.home.get(v, v) for v in graph.outputs]

    def _uses(self) -> dict[Value, int]:
        uses: dict[Value, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for value in _needed(self.program, node).values():
                uses[value] = position
        uses.update(dict.fromkeys(self.wanted, len(self.graph.nodes)))
        return uses

    def _hold(self, value: Value, name: str, bytes: Size) -> None:
        self.home[value] = value
        self.last[value] = self.uses.get(value, -1)
        self.live[value] = Held(name, bytes)
        self.total = self.total + bytes

    def _share(self, value: Value, piece: Value) -> None:
        self.home[value] = piece
        self.last[piece] = max(self.last[piece], self.uses.get(value, -1))

    def _free(self, piece: Value) -> None:
        self.total = self.total - self.live.pop(piece).bytes

    def _dying(self, node: Node, position: int) -> list[Value]:
        """The pieces that `node` is the last to use."""
        pieces = dict.fromkeys(self.home[v] for v in node.operands if v in self.home)
        return [p for p in pieces if p in self.live and self.last[p] <= position]

    def _compute(self, position: int, node: Node) -> None:
        def local(type: Tensor) -> Size:
            return type.local(self.program.mesh).bytes

        dying = self._dying(node, position)
        for value, type in zip(node.values, node.results, strict=True):
            slot = node.op.aliases.get(value.result)
            piece = None if slot is None else self.home.get(node.operands[slot])
            if piece is not None and piece in dying and self.live[piece].bytes == local(type):
                self._share(value, piece)
                continue
            origin = self.graph.origin(value)
            size = local(type)
            if origin.op.role == "cache":  # rows that are read now and that it does not keep
                size = self.by.spilled(size, grown(local(origin.results[0])))
            if size:
                self._hold(value, str(value)[1:], size)
        types = self.graph.operand_types(node), node.results
        ours = ([type.local(self.program.mesh) for type in side] for side in types)
        beside = Held(f"{node.name}.workspace", node.op.workspace(*ours))
        held = (*self.live.values(), *([beside] if beside.bytes else []))
        self.moments.append(Moment(node.name, self.total + beside.bytes, held))
        for piece in [*dying, *(v for v in node.values if v in self.live)]:
            if self.last[piece] <= position:
                self._free(piece)

    def _repeat(self, position: int, node: Node, loop: Loop) -> None:
        body = self.program[loop.body]
        dying = self._dying(node, position)
        carried = {i.name for i in body.inputs[: loop.carried]}
        pieces = {n: p for n, v in _needed(self.program, node).items() if (p := self.home.get(v)) in dying}
        kept = {p for n, p in pieces.items() if n not in carried}  # until the last iteration
        given = {n: p for n, p in pieces.items() if p not in kept}  # let go in the first
        sizes: dict[Value | None, Size] = {piece: self.live[piece].bytes for piece in pieces.values()}
        pairs = list(zip(body.outputs, node.values, strict=True))
        back = [v for v, _ in pairs[: loop.carried]]
        handed = [v for v, ours in pairs[loop.carried :] if ours in self.uses]  # by the last
        for first, last in _iterations(loop.times):
            ours = pieces if last else given if first else {}
            fresh = {} if first else {n: Value(n, -1) for n in carried}  # the last iteration's
            needed = [*back, *handed] if last else back
            walk = _Walk(self.program, body, {**ours, **fresh}, self.by, needed, sizes)
            away = {*given.values(), *ours.values()}
            outer = [h for p, h in self.live.items() if p not in away]
            base = self.total - sum((self.live[p].bytes for p in away), start=0)
            for moment in walk.moments:
                inner = (Held(f"{node.name}.{h.name}", h.bytes) for h in moment.held)
                self.moments.append(Moment(f"{node.name}.{moment.op}", base + moment.bytes, (*outer, *inner)))
        made: dict[Value, Value] = {}  # body's piece -> our value
        for value, piece in zip(node.values, walk.outputs, strict=True):
            if piece in made:
                self._share(value, made[piece])
            elif piece in walk.live:  # what is handed out of a cache lies there
                self._hold(value, str(value)[1:], walk.live[piece].bytes)
                made[piece] = value
        for piece in [*dying, *(v for v in node.values if v in self.live)]:
            if self.last[piece] <= position:
                self._free(piece)
