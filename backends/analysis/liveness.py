"""Peak memory: what must be held at once, over a schedule.

Weights and caches are *resident*; everything else is *transient*, from the op that makes it to the last
op that needs it. The peak is taken at each op, with its operands and results both alive, and its
workspace. An op that writes in place (`Op.aliases`) reuses an operand's memory if nothing else needs that
operand later.
The first iteration of a `repeat`, those between and the last differ in which inputs of the body may be let
go inside; its body is walked once for all that are alike in that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from llmir.backends.analysis.caches import CachePolicy, State, policy
from llmir.dataclass import dataclass
from llmir.dim import Binding, Number, Size, at_most, grown, maximum
from llmir.graph import Graph, Instance, Node, Program, Value
from llmir.op import Loop
from llmir.tensor import Tensor


class Held(NamedTuple):
    """A piece of transient memory, and the value that it was made for."""

    name: str
    bytes: Size


class Moment(NamedTuple):
    """The transient memory while one op runs; `inside` is the moment of a body, under its `repeat`'s name."""

    op: str
    bytes: Size
    outside: tuple[Held, ...]
    inside: tuple[str, Moment] | None = None

    @property
    def held(self) -> tuple[Held, ...]:
        """All that is alive."""
        if self.inside is None:
            return self.outside
        name, moment = self.inside
        return (*self.outside, *(Held(f"{name}.{h.name}", h.bytes) for h in moment.held))


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
        return _largest(tuple(dict.fromkeys(m.bytes for m in self.moments)))

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


@lru_cache(maxsize=1024)
def _largest(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    kept: list[Size] = []
    for size in sizes:
        if not any(at_most(size, k) for k in kept):
            kept = [k for k in kept if not at_most(k, size)] + [size]
    return tuple(kept)


def memories(program: Program, cache_policy: str = "exact") -> tuple[Memory, ...]:
    """The memory of one rank of each stage; caches are those of all micro-batches, activations of one.

    Weights are those of all phases: what each has in a form of its own lies beside the others.
    """
    return _memories(program, policy(cache_policy))


@lru_cache(maxsize=256)
def _memories(program: Program, by: CachePolicy) -> tuple[Memory, ...]:
    weights: list[Size] = [0] * len(program.entries)
    for at in (*program.held(), *(at for at in beside(program) if at.node.op.role == "weight")):
        weights[at.stage] += at.node.results[0].local(program.mesh).bytes * at.repeat
    bodies = Bodies(program, by)
    return tuple(
        Memory(held, caches, _moments(program, entry, bodies))
        for held, caches, entry in zip(weights, reserved(program, by), program.entries, strict=True)
    )


@lru_cache(maxsize=256)
def reserved(program: Program, by: CachePolicy) -> tuple[Size, ...]:
    """Bytes that a policy reserves for the caches of one rank of each stage, of all micro-batches."""
    states: list[list[State]] = [[] for _ in program.entries]
    for at in (*program.instances(), *beside(program)):
        if at.node.op.role == "cache":
            states[at.stage].append(state(program, at.graph, at.node, at.path, at.repeat))
    return tuple(map(by.reserved, states))


def state(program: Program, graph: Graph, node: Node, path: str, repeat: int) -> State:
    """What a cache of a graph keeps, where that runs under a path and so often."""
    type, layer = node.results[0].local(program.mesh), path.rpartition(".")[0]
    written = not program.patches and node.name in _written(graph)  # images are before all tokens
    return State(type, written, layer, repeat * program.micro_batches, "series" in node.op.axes)


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


def _moments(program: Program, entry: str, bodies: Bodies) -> tuple[Moment, ...]:
    prefix, found = program.prefix(entry), moments(bodies, program[entry])
    return tuple(m._replace(op=prefix + m.op) for m in found) if prefix else found


def moments(bodies: Bodies, graph: Graph) -> tuple[Moment, ...]:
    """What an entry holds while each of its ops runs."""
    return tuple(_Walk(bodies, graph, None, graph.outputs).moments)


@lru_cache(maxsize=256)
def _written(graph: Graph) -> frozenset[str]:
    """The sources of `graph` that the step writes to."""
    return frozenset(graph.origin(v).name for n in graph.nodes if n.operands for v in n.values)


def _iterations(times: int) -> list[tuple[bool, bool]]:
    """The iterations that differ in memory, as (is the first, is the last)."""
    between, end = [(False, False)] * (times > 2), [(False, True)] * (times > 1)
    return [(True, times == 1), *between, *end]


class _Given(NamedTuple):
    """An input that may be let go inside a body, the first that lies in its piece, and the bytes of that."""

    name: str
    piece: str
    bytes: Size


class Bodies:
    """The bodies of a program: which of its inputs each reads, and its walks, one for those alike."""

    def __init__(self, program: Program, by: CachePolicy) -> None:
        self.program, self.by = program, by
        self._reads: dict[str, list[bool]] = {}
        self._walks: dict[tuple[object, ...], _Walk] = {}

    def local(self, type: Tensor) -> Size:
        """The bytes of a value on one rank."""
        return type.local(self.program.mesh).bytes

    def reads(self, name: str) -> list[bool]:
        """Whether a body reads each of its inputs."""
        if name not in self._reads:
            body = self.program[name]
            used = {*body.outputs, *(v for node in body.nodes for v in self.needs(node))}
            self._reads[name] = [node.values[0] in used for node in body.inputs]
        return self._reads[name]

    def needs(self, node: Node) -> Sequence[Value]:
        """The operands that a node needs: of a `repeat`, those that its body reads."""
        if not (loop := node.op.loop):
            return node.operands
        return [v for v, read in zip(node.operands, self.reads(loop.body), strict=True) if read]

    def walk(self, body: Graph, owned: Mapping[str, Held | None], wanted: Sequence[Value]) -> _Walk:
        """The walk of a body: `owned` are inputs that may be let go, each with the piece that it lies in.

        None is a piece of its own.
        """
        first: dict[Held, str] = {}
        given = []
        for node in body.inputs:
            if node.name in owned:
                held = owned[node.name]
                size = self.local(node.results[0]) if held is None else held.bytes
                piece = node.name if held is None else first.setdefault(held, node.name)
                given.append(_Given(node.name, piece, size))
        key = body.name, tuple(given), tuple(wanted)
        if key not in self._walks:
            self._walks[key] = _Walk(self, body, given, wanted)
        return self._walks[key]


class _Walk:
    """One pass over a graph's schedule.

    `given` are the inputs that may be let go inside (None: all, each in a piece of its own), and `wanted` the
    outputs that are needed.
    """

    def __init__(
        self, bodies: Bodies, graph: Graph, given: Sequence[_Given] | None, wanted: Sequence[Value]
    ) -> None:
        self.bodies, self.graph, self.wanted = bodies, graph, wanted
        self.moments: list[Moment] = []
        self.live: dict[Value, Held] = {}  # by the value that a piece was made for
        self.total: Size = 0
        self.home: dict[Value, Value] = {}  # value -> the value whose piece it lies in
        self.last: dict[Value, int] = {}  # piece -> position of its last use; outputs are never let go
        self.uses = self._uses()
        if given is None:
            given = [_Given(n.name, n.name, bodies.local(n.results[0])) for n in graph.inputs]
        ours = {each.name: each for each in given}
        first: dict[str, Value] = {}  # the input that a piece was first met as
        for position, node in enumerate(graph.nodes):
            if node.op.loop:
                self._repeat(position, node, node.op.loop)
            elif not node.op.source:
                self._compute(position, node)
            elif node.name in ours and (value := node.values[0]) in self.uses:
                met = first.setdefault(ours[node.name].piece, value)
                if met == value:
                    self._hold(met, node.name, ours[node.name].bytes)
                else:
                    self._share(value, met)
        self.outputs = [self.home.get(v, v) for v in graph.outputs]

    def _uses(self) -> dict[Value, int]:
        uses: dict[Value, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for value in self.bodies.needs(node):
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
        dying = self._dying(node, position)
        for value, type in zip(node.values, node.results, strict=True):
            size, slot = self.bodies.local(type), node.op.aliases.get(value.result)
            piece = None if slot is None else self.home.get(node.operands[slot])
            if piece is not None and piece in dying and self.live[piece].bytes == size:
                self._share(value, piece)
                continue
            origin = self.graph.origin(value)
            if origin.op.role == "cache":  # rows that are read now and that it does not keep
                size = self.bodies.by.spilled(size, grown(self.bodies.local(origin.results[0])))
            if size:
                self._hold(value, str(value)[1:], size)
        types, mesh = (self.graph.operand_types(node), node.results), self.bodies.program.mesh
        ours = ([type.local(mesh) for type in side] for side in types)
        beside = Held(f"{node.name}.workspace", node.op.workspace(*ours))
        held = (*self.live.values(), *([beside] if beside.bytes else []))
        self.moments.append(Moment(node.name, self.total + beside.bytes, held))
        self._let_go(position, dying, node)

    def _let_go(self, position: int, dying: list[Value], node: Node) -> None:
        for piece in [*dying, *(v for v in node.values if v in self.live)]:
            if self.last[piece] <= position:
                self._free(piece)

    def _repeat(self, position: int, node: Node, loop: Loop) -> None:
        body = self.bodies.program[loop.body]
        dying = self._dying(node, position)
        carried = {i.name for i in body.inputs[: loop.carried]}
        taken = zip(body.inputs, node.operands, self.bodies.reads(loop.body), strict=True)
        pieces = {i.name: p for i, v, read in taken if read and (p := self.home.get(v)) in dying}
        kept = {p for n, p in pieces.items() if n not in carried}  # until the last iteration
        given = {n: p for n, p in pieces.items() if p not in kept}  # let go in the first
        pairs = list(zip(body.outputs, node.values, strict=True))
        back = [v for v, _ in pairs[: loop.carried]]
        handed = [v for v, ours in pairs[loop.carried :] if ours in self.uses]  # by the last
        for first, last in _iterations(loop.times):
            ours = pieces if last else given if first else {}
            fresh = {} if first else dict.fromkeys(carried)  # the last iteration's
            owned = {**{n: self.live[p] for n, p in ours.items()}, **fresh}
            walk = self.bodies.walk(body, owned, [*back, *handed] if last else back)
            away = {*given.values(), *ours.values()}
            outer = tuple(h for p, h in self.live.items() if p not in away)
            base = self.total - sum((self.live[p].bytes for p in away), start=0)
            for moment in walk.moments:
                inside = node.name, moment
                self.moments.append(Moment(f"{node.name}.{moment.op}", base + moment.bytes, outer, inside))
        made: dict[Value, Value] = {}  # body's piece -> our value
        for value, piece in zip(node.values, walk.outputs, strict=True):
            if piece in made:
                self._share(value, made[piece])
            elif piece in walk.live:  # what is handed out of a cache lies there
                self._hold(value, str(value)[1:], walk.live[piece].bytes)
                made[piece] = value
        self._let_go(position, dying, node)
