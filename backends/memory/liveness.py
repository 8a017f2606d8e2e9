"""Peak memory: what must be held at once, over a schedule.

Weights and caches are *resident*; everything else is *transient*, from the op that makes it to the last
op that needs it (`lifetimes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .caches import CachePolicy, State, policy
from .lifetimes import Lifetimes, Moment, lifetimes


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
    lifetimes: Lifetimes

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What is held while each op runs."""
        return self.lifetimes.moments

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
        sizes = [at(size) for size in self.lifetimes.sizes]
        return reduce(at.xp.maximum, sizes) if sizes else 0

    def peak(self, at: Binding) -> Number:
        """Bytes of everything at the fullest moment."""
        return at(self.weights) + at(self.caches) + self.transient(at)

    def fullest(self, at: Binding) -> Peak:
        """The fullest moment at one point."""
        moment = max(self.distinct, key=lambda m: at(m.bytes), default=Moment("", 0, ()))
        held = sorted(((h.name, at(h.bytes)) for h in moment.held), key=lambda h: -h[1])
        return Peak(moment.op, at(moment.bytes), tuple(held))


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
    return tuple(
        Memory(held, caches, lifetimes(program, program[entry], by, program.prefix(entry)))
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


@lru_cache(maxsize=256)
def _written(graph: Graph) -> frozenset[str]:
    """The sources of `graph` that the step writes to."""
    return frozenset(graph.origin(v).name for n in graph.nodes if n.operands for v in n.values)
