"""A step that mixes two phases: what both run alike is one op of all sequences, the rest is of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache

from llmir.backends.cost.op_time import Model, Price
from llmir.backends.memory.lifetimes import Held, Lifetimes, Moment
from llmir.backends.memory.liveness import Memory, memories
from llmir.backends.work.basis import Basis
from llmir.backends.work.rows import Row, rows
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.ir.core.program import Program
from llmir.ir.sizes.atoms import Max, OfDecode, OfPrefill
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import Size

from .evaluate import Plan
from .placement import placed

_OF: dict[str, Callable[[Size], Size]] = {"prefill": OfPrefill.of, "decode": OfDecode.of}
Phased = tuple[Row, str]


@dataclass(frozen=True)
class PhasePrice(Price):
    """The price of an op that runs in one phase, at the sequences that are in it."""

    price: Price
    phase: str

    @property
    def basis(self) -> Basis:
        """That of the price."""
        return self.price.basis

    @property
    def lent(self) -> float:
        """The price's own."""
        return self.price.lent

    @property
    def beyond(self) -> float:
        """The price's own."""
        return self.price.beyond

    @property
    def error(self) -> float | None:
        """That of the price."""
        return self.price.error

    def which(self, at: Binding) -> Number:
        """The place of the price that holds there."""
        return self.price.which(self._within(at))

    def held(self, which: Number) -> Price:
        """The price that holds there."""
        return self.price.held(which)

    def time(self, at: Binding) -> Number:
        """Seconds of one execution."""
        return self.price.time(self._within(at))

    def due(self, at: Binding) -> tuple[Number, Number]:
        """Seconds, and what they are due to."""
        return self.price.due(self._within(at))

    def in_graph(self, at: Binding, hidden: float) -> tuple[Number, Number]:
        """Seconds alone, and in a graph of kernels."""
        return self.price.in_graph(self._within(at), hidden)

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.price.least(self._within(at))

    def _within(self, at: Binding) -> Binding:
        return at.within(self.phase) if isinstance(at, Mixed) else at


@dataclass(frozen=True, eq=False)
class Together(Plan):
    """The plan of a step whose sequences are of two phases: that of `program`, and of one of its phases."""

    @cached_property
    def _apart(self) -> tuple[Phased, ...]:
        """Each op with the phase that it runs in, "" for both: in the order of the phases."""
        others = {_alike(row): row for row in rows(self.program.phases["decode"])}
        found: list[Phased] = []
        waiting = list(others)
        for row in rows(self.program):
            key = _alike(row)
            if key not in others:
                found.append((row, "prefill"))
                continue
            place = waiting.index(key)
            found += [(others[other], "decode") for other in waiting[:place]]
            found.append((row, ""))
            waiting = waiting[place + 1 :]
        return (*found, *((others[other], "decode") for other in waiting))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops; those of one phase count its sequences alone."""
        taken = {row.name for row, phase in self._apart if phase != "decode"}
        return tuple(
            _within(
                row, phase, f"{row.name} (decode)" if phase == "decode" and row.name in taken else row.name
            )
            for row, phase in self._apart
        )

    @cached_property
    def prices(self) -> tuple[Price, ...]:
        """The price of each row."""
        prices = ((self.model.price(row), phase) for row, phase in self._apart)
        return tuple(PhasePrice(price, phase) if phase else price for price, phase in prices)

    def _decodes(self, at: Binding) -> bool:
        """It reads prompts too."""
        return False

    def _reads(self, at: Binding) -> bool:
        """However short their rest is."""
        return True

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """What each stage must hold: of either phase what it holds at its fullest moment, and no less."""
        programs = self.program, self.program.phases["decode"]
        pairs = zip(*(memories(program, self.cache_policy) for program in programs), strict=True)
        return tuple(Memory(m.weights, m.caches, _lifetimes(m, beside)) for m, beside in pairs)


def _alike(row: Row) -> tuple[object, ...]:
    """What makes two ops of two phases one."""
    return row.name, row.stage, row.node.op, row.repeat, row.operands, row.shape


def _within(row: Row, phase: str, name: str) -> Row:
    if not phase:
        return row
    of, work = _OF[phase], row.work
    own = replace(
        work, matrix=of(work.matrix), vector=of(work.vector), wire=of(work.wire), payload=of(work.payload)
    )
    reads = tuple((role, of(n)) for role, n in row.reads)
    writes = tuple((role, of(n)) for role, n in row.writes)
    return replace(row, name=name, work=own, reads=reads, writes=writes)


def _lifetimes(memory: Memory, beside: Memory) -> Lifetimes:
    moments = tuple(_moments(memory, beside))
    return Lifetimes(moments, tuple(dict.fromkeys(moment.bytes for moment in moments)))


def _moments(memory: Memory, beside: Memory) -> Iterator[Moment]:
    most: Size = 0
    for size in beside.lifetimes.sizes:
        most = Max.of(most, size)
    most = OfDecode.of(most)
    for moment in memory.moments:
        held = (Held(h.name, OfPrefill.of(h.bytes)) for h in moment.held)
        yield Moment(moment.op, OfPrefill.of(moment.bytes) + most, (*held, Held("decode", most)))


@lru_cache(maxsize=256)
def together(program: Program, model: Model, cache_policy: str = "exact") -> Together:
    """The plan of a step of both phases of `program`, which is that of prefill."""
    return Together(program, placed(program, model), cache_policy)
