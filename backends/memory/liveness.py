"""Peak memory of a step: the live values while each op runs, and their bytes on one rank.

Weights and caches are resident. Every other value lives from its producer to its last user. The peak is taken
at each op with its operands, results and workspace alive. An op that writes in place (`Op.aliases`) reuses
the memory of an operand without later users. The first, middle and last iterations of a `repeat` differ in
the inputs of the body that may be freed inside; equal iterations are evaluated once.

Liveness depends on the ops and on which sizes are equal, not on their values: a schedule is evaluated once
with symbols for sizes (`Lifetimes`), for all meshes and dtypes. `stage_memories` returns the memory of each
stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Loop
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Size, after_step, at_most, weighted_sum

from .caches import CachePolicy, CacheState, policy

# Liveness over a schedule


class Allocation(NamedTuple):
    """A piece of transient memory, and the value for which it was allocated."""

    name: str
    bytes: Size


class LivenessPoint(NamedTuple):
    """The transient memory while one op runs; `inside` is the moment of a body, under its `repeat`'s name."""

    op: str
    bytes: Size
    outside: tuple[Allocation, ...]
    inside: tuple[str, LivenessPoint] | None = None

    @property
    def held(self) -> tuple[Allocation, ...]:
        """All live pieces."""
        if self.inside is None:
            return self.outside
        name, moment = self.inside
        return (*self.outside, *(Allocation(f"{name}.{h.name}", h.bytes) for h in moment.held))


class BodyLiveness(NamedTuple):
    """The points of a `repeat`'s body, with the bytes that are live `outside`."""

    op: str
    base: Size
    outside: tuple[Allocation, ...]
    walk: _ScheduleWalk


Step = LivenessPoint | BodyLiveness


def _expanded(steps: Iterable[Step]) -> Iterator[LivenessPoint]:
    """Each point, with bodies expanded."""
    for step in steps:
        if isinstance(step, LivenessPoint):
            yield step
            continue
        for inner in _expanded(step.walk.steps):
            inside = step.op, inner
            yield LivenessPoint(f"{step.op}.{inner.op}", step.base + inner.bytes, step.outside, inside)


@lru_cache(maxsize=1024)
def _largest(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Sizes without those that are never above another one."""
    kept: list[Size] = []
    for size in sizes:
        if not any(at_most(size, k) for k in kept):
            kept = [k for k in kept if not at_most(k, size)] + [size]
    return tuple(kept)


class _Sizes(NamedTuple):
    """The bytes of a graph's values on one rank, the retained part of them, and workspaces of ops.

    A cache policy does not retain all rows of a cache that this step reads.
    """

    values: dict[Value, Size]
    kept: dict[Value, Size]
    beside: dict[str, Size]


class _Bytes(NamedTuple):
    """The structure of a graph's ops without sizes, and the sizes."""

    ops: tuple[object, ...]
    sizes: _Sizes


@lru_cache(maxsize=256)
def _bytes(graph: Graph, mesh: Mesh, by: CachePolicy) -> _Bytes:
    sizes = _Sizes({}, {}, {})
    ops: list[object] = [graph.outputs]
    for node in graph.nodes:
        op = node.op
        ops += (node.name, op.opcode, node.operands, *op.aliases.items())
        if loop := op.loop:
            ops += (loop.body, min(loop.times, 3), loop.carried)
            continue
        if op.source and op.role != "activation":
            continue
        for value, type in zip(node.values, node.results, strict=True):
            size = sizes.values[value] = type.local(mesh).bytes
            origin = graph.origin(value)
            if origin.op.role == "cache":
                sizes.kept[value] = by.spilled(size, after_step(origin.results[0].local(mesh).bytes))
        if op.roomy:
            types = graph.operand_types(node), node.results
            ours = ([type.local(mesh) for type in side] for side in types)
            sizes.beside[node.name] = op.workspace(*ours)
    return _Bytes(tuple(ops), sizes)


class _Schedule:
    """A graph with its bodies, with symbols for sizes; equal for all schedules with equal structure."""

    def __init__(self, program: Program, graph: Graph, by: CachePolicy) -> None:
        self.program, self.graph, self.by = program, graph, by
        self.numbers: dict[Size, int] = {}  # sizes by number of the symbol
        self.sizes: dict[Graph, _Sizes] = {}
        key: list[object] = []
        self._add(graph, key)
        self.key = tuple(key)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Schedule) and self.key == other.key

    def _symbol(self, size: Size, key: list[object]) -> Size:
        """The symbol of a size; 0 for size 0."""
        number = self.numbers.setdefault(size, len(self.numbers)) if size else -1
        key.append(number)
        return _symbol(number) if size else 0

    def _add(self, graph: Graph, key: list[object]) -> None:
        """Add a graph's ops and sizes, and those of its bodies."""
        found = _bytes(graph, self.program.mesh, self.by)
        sizes = self.sizes[graph] = _Sizes({}, {}, {})
        key.append(found.ops)
        for value, size in found.sizes.values.items():
            sizes.values[value] = self._symbol(size, key)
        for value, size in found.sizes.kept.items():
            sizes.kept[value] = self._symbol(size, key)
        for name, size in found.sizes.beside.items():
            sizes.beside[name] = self._symbol(size, key)
        for name in dict.fromkeys(loop.body for loop in graph.loops.values()):
            if (body := self.program[name]) not in self.sizes:
                self._add(body, key)

    def reads(self, name: str) -> list[bool]:
        """Whether a body reads each of its inputs."""
        body = self.program[name]
        used = {*body.outputs, *(v for node in body.nodes for v in self.needs(node))}
        return [node.values[0] in used for node in body.inputs]

    def needs(self, node: Node) -> Sequence[Value]:
        """The operands that a node needs; for a `repeat`, those that its body reads."""
        if not (loop := node.op.loop):
            return node.operands
        return [v for v, read in zip(node.operands, self.reads(loop.body), strict=True) if read]


@lru_cache(maxsize=4096)
def _symbol(number: int) -> Dim:
    return Dim.symbol(str(number))


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """The moments of a schedule and their peaks, in symbols for some values; names begin with a prefix."""

    _steps: tuple[Step, ...]
    _peaks: tuple[Size, ...]
    _values: tuple[Size, ...] = ()
    _prefix: str = ""

    @cached_property
    def moments(self) -> tuple[LivenessPoint, ...]:
        """The live values while each op runs."""
        return tuple(
            moment._replace(op=self._prefix + moment.op) for moment in map(self._real, _expanded(self._steps))
        )

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of moments, without most of those that are never above another one."""
        return tuple(dict.fromkeys(map(self._size, self._peaks)))

    def _real(self, moment: LivenessPoint) -> LivenessPoint:
        outside = tuple(Allocation(held.name, self._size(held.bytes)) for held in moment.outside)
        inside = moment.inside and (moment.inside[0], self._real(moment.inside[1]))
        return LivenessPoint(moment.op, self._size(moment.bytes), outside, inside)

    def _size(self, size: Size) -> Size:
        """The size of a sum of symbols."""
        if not self._values or not isinstance(size, Dim):
            return size
        return weighted_sum((self._values[int(str(name))], count) for (name,), count in size.terms)


def _sizes(steps: Iterable[Step]) -> tuple[Size, ...]:
    """The sizes of moments, without those that are never above another one."""
    found: dict[Size, None] = {}
    for step in steps:
        if isinstance(step, LivenessPoint):
            found[step.bytes] = None
        else:
            found.update(dict.fromkeys(step.base + size for size in step.walk.peaks))
    return _largest(tuple(found))


def lifetimes(program: Program, graph: Graph, by: CachePolicy, prefix: str = "") -> Lifetimes:
    """The live values of an entry while each of its ops runs."""
    schedule = _Schedule(program, graph, by)
    walk = _walked(schedule)
    return Lifetimes(tuple(walk.steps), walk.peaks, tuple(schedule.numbers), prefix)


@lru_cache(maxsize=1024)
def _walked(schedule: _Schedule) -> _ScheduleWalk:
    return _ScheduleWalk(_Bodies(schedule), schedule.graph, None, schedule.graph.outputs)


def _iterations(times: int) -> list[tuple[bool, bool]]:
    """The iterations that differ in memory, as (is the first, is the last)."""
    between, end = [(False, False)] * (times > 2), [(False, True)] * (times > 1)
    return [(True, times == 1), *between, *end]


class _ReleasableInput(NamedTuple):
    """An input that may be freed inside a body, the first one in its piece, and the bytes of the piece."""

    name: str
    piece: str
    bytes: Size


class _Bodies:
    """The evaluations of the bodies of a schedule, shared by equal bodies."""

    def __init__(self, schedule: _Schedule) -> None:
        self.schedule = schedule
        self._walks: dict[tuple[object, ...], _ScheduleWalk] = {}

    def walk(
        self, body: Graph, owned: Mapping[str, Allocation | None], wanted: Sequence[Value]
    ) -> _ScheduleWalk:
        """The evaluation of a body; `owned` are inputs that may be freed, each with its piece.

        None means a separate piece.
        """
        first: dict[Allocation, str] = {}
        given = []
        for node in body.inputs:
            if node.name in owned:
                held = owned[node.name]
                sizes = self.schedule.sizes[body].values
                size = sizes[node.values[0]] if held is None else held.bytes
                piece = node.name if held is None else first.setdefault(held, node.name)
                given.append(_ReleasableInput(node.name, piece, size))
        key = body.name, tuple(given), tuple(wanted)
        if key not in self._walks:
            self._walks[key] = _ScheduleWalk(self, body, given, wanted)
        return self._walks[key]


class _ScheduleWalk:
    """One pass over a graph's schedule.

    `given` are the inputs that may be freed inside (None: all, each in a separate piece), and `wanted` the
    needed outputs.
    """

    def __init__(
        self, bodies: _Bodies, graph: Graph, given: Sequence[_ReleasableInput] | None, wanted: Sequence[Value]
    ) -> None:
        self.bodies, self.graph, self.wanted = bodies, graph, wanted
        self.schedule, self.sizes = bodies.schedule, bodies.schedule.sizes[graph]
        self.steps: list[Step] = []
        self.live: dict[Value, Allocation] = {}  # by the value for which a piece was allocated
        self.total: Size = 0
        self.home: dict[Value, Value] = {}  # value -> the value with its piece
        self.last: dict[Value, int] = {}  # piece -> position of its last use; outputs are never freed
        self.uses = self._uses()
        if given is None:
            given = [_ReleasableInput(n.name, n.name, self.sizes.values[n.values[0]]) for n in graph.inputs]
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

    @cached_property
    def peaks(self) -> tuple[Size, ...]:
        """The sizes of its moments, without those that are never above another one."""
        return _sizes(self.steps)

    def _uses(self) -> dict[Value, int]:
        uses: dict[Value, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for value in self.schedule.needs(node):
                uses[value] = position
        uses.update(dict.fromkeys(self.wanted, len(self.graph.nodes)))
        return uses

    def _hold(self, value: Value, name: str, bytes: Size) -> None:
        self.home[value] = value
        self.last[value] = self.uses.get(value, -1)
        self.live[value] = Allocation(name, bytes)
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
        for value in node.values:
            size, slot = self.sizes.values[value], node.op.aliases.get(value.result)
            piece = None if slot is None else self.home.get(node.operands[slot])
            if piece is not None and piece in dying and self.live[piece].bytes == size:
                self._share(value, piece)
            elif kept := self.sizes.kept.get(value, size):
                self._hold(value, str(value)[1:], kept)
        beside = Allocation(f"{node.name}.workspace", self.sizes.beside.get(node.name, 0))
        held = (*self.live.values(), *([beside] if beside.bytes else []))
        self.steps.append(LivenessPoint(node.name, self.total + beside.bytes, held))
        self._let_go(position, dying, node)

    def _let_go(self, position: int, dying: list[Value], node: Node) -> None:
        for piece in [*dying, *(v for v in node.values if v in self.live)]:
            if self.last[piece] <= position:
                self._free(piece)

    def _repeat(self, position: int, node: Node, loop: Loop) -> None:
        body = self.schedule.program[loop.body]
        dying = self._dying(node, position)
        carried = {i.name for i in body.inputs[: loop.carried]}
        taken = zip(body.inputs, node.operands, self.schedule.reads(loop.body), strict=True)
        pieces = {i.name: p for i, v, read in taken if read and (p := self.home.get(v)) in dying}
        kept = {p for n, p in pieces.items() if n not in carried}  # until the last iteration
        given = {n: p for n, p in pieces.items() if p not in kept}  # freed in the first iteration
        pairs = list(zip(body.outputs, node.values, strict=True))
        back = [v for v, _ in pairs[: loop.carried]]
        handed = [v for v, ours in pairs[loop.carried :] if ours in self.uses]  # freed by the last iteration
        for first, last in _iterations(loop.times):
            ours = pieces if last else given if first else {}
            fresh = {} if first else dict.fromkeys(carried)  # the last iteration's
            owned = {**{n: self.live[p] for n, p in ours.items()}, **fresh}
            walk = self.bodies.walk(body, owned, [*back, *handed] if last else back)
            away = {*given.values(), *ours.values()}
            outer = tuple(h for p, h in self.live.items() if p not in away)
            base = self.total - sum((self.live[p].bytes for p in away), start=0)
            self.steps.append(BodyLiveness(node.name, base, outer, walk))
        made: dict[Value, Value] = {}  # body's piece -> our value
        for value, piece in zip(node.values, walk.outputs, strict=True):
            if piece in made:
                self._share(value, made[piece])
            elif piece in walk.live:  # additional results of a cache are in its memory
                self._hold(value, str(value)[1:], walk.live[piece].bytes)
                made[piece] = value
        self._let_go(position, dying, node)


# Memory of a rank


class Peak(NamedTuple):
    """The peak memory: the op, the transient bytes, and their values, largest first."""

    op: str
    bytes: Number
    held: tuple[tuple[str, Number], ...]


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank over one step, before numbers enter."""

    weights: Size
    caches: Size
    lifetimes: Lifetimes

    @property
    def moments(self) -> tuple[LivenessPoint, ...]:
        """The live values while each op runs."""
        return self.lifetimes.moments

    @cached_property
    def distinct(self) -> tuple[LivenessPoint, ...]:
        """The first moment of each size."""
        found: dict[Size, LivenessPoint] = {}
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
        sizes = [at(size) for size in self.lifetimes.sizes]
        return reduce(at.xp.maximum, sizes) if sizes else 0

    def peak(self, at: Binding) -> Number:
        """Bytes of everything at the fullest moment."""
        return at(self.weights) + at(self.caches) + self.transient(at)

    def fullest(self, at: Binding) -> Peak:
        """The fullest moment at one point."""
        moment = max(self.distinct, key=lambda m: at(m.bytes), default=LivenessPoint("", 0, ()))
        held = sorted(((h.name, at(h.bytes)) for h in moment.held), key=lambda h: -h[1])
        return Peak(moment.op, at(moment.bytes), tuple(held))


def stage_memories(program: Program, cache_policy: str = "exact") -> tuple[RankMemory, ...]:
    """The memory of one rank of each stage; caches are those of all micro-batches, activations of one.

    Weights are those of all phases; weights in different forms count separately.
    """
    return _memories(program, policy(cache_policy))


@lru_cache(maxsize=256)
def _memories(program: Program, by: CachePolicy) -> tuple[RankMemory, ...]:
    weights: list[Size] = [0] * len(program.entries)
    for at in (*program.held(), *(at for at in other_phase_tensors(program) if at.node.op.role == "weight")):
        weights[at.stage] += at.node.results[0].local(program.mesh).bytes * at.repeat
    return tuple(
        RankMemory(held, caches, lifetimes(program, program[entry], by, program.prefix(entry)))
        for held, caches, entry in zip(weights, reserved_bytes(program, by), program.entries, strict=True)
    )


@lru_cache(maxsize=256)
def reserved_bytes(program: Program, by: CachePolicy) -> tuple[Size, ...]:
    """Bytes that a policy reserves for the caches of one rank of each stage, of all micro-batches."""
    return tuple(map(by.reserved, cache_states(program)))


def cache_states(program: Program) -> list[list[CacheState]]:
    """The caches of one rank of each stage, of all phases and micro-batches."""
    states: list[list[CacheState]] = [[] for _ in program.entries]
    for at in (*program.instances(), *other_phase_tensors(program)):
        if at.node.op.role == "cache":
            states[at.stage].append(cache_state(program, at.graph, at.node, at.path, at.repeat))
    return states


def cache_state(program: Program, graph: Graph, node: Node, path: str, repeat: int) -> CacheState:
    """The state of a cache in a graph that runs under a path, `repeat` times."""
    type, layer = node.results[0].local(program.mesh), path.rpartition(".")[0]
    written = not program.patches and node.name in _written(graph)  # images are before all tokens
    return CacheState(type, written, layer, repeat * program.micro_batches, "series" in node.op.axes)


def other_phase_tensors(program: Program) -> Iterator[Instance]:
    """The weights and caches that other phases have and this one has not, or has in another type."""
    seen = {_identity(at) for at in program.instances()} if program.phases else set()
    for phase in program.phases.values():
        for at in phase.instances():
            here = at.stage < len(program.entries)  # the encoder of images is on the first stage only
            if here and at.node.op.role in ("weight", "cache") and _identity(at) not in seen:
                seen.add(_identity(at))
                yield at


def _identity(at: Instance) -> tuple[object, ...]:
    """The key by which two phases share a weight."""
    return at.stage, at.node.op.param or at.path, at.layers, at.node.results[0]


@lru_cache(maxsize=256)
def _written(graph: Graph) -> frozenset[str]:
    """The sources of `graph` that the step writes to."""
    return frozenset(graph.origin(v).name for n in graph.nodes if n.operands for v in n.values)
