"""The calls that rows of a table make, with numbers put in: what any kernels take for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmir.backends.cost.calibration import own
from llmir.backends.cost.ideal import Ideal
from llmir.backends.cost.stand_in import stand_in, within
from llmir.backends.kernels.base import KERNELS, Kernel, stacked
from llmir.backends.kernels.call import Call, calls
from llmir.backends.kernels.network import across
from llmir.backends.silicon.rows import Array
from llmir.backends.silicon.tables.table import Points
from llmir.backends.work.nodes import boxed
from llmir.backends.work.rows import Row, rows
from llmir.base.array_namespace import ARRAYS
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device


@dataclass(frozen=True, eq=False)
class Term:
    """One call of many rows: the family that prices it, its shape, the roofline, and the rows."""

    family: str
    call: Call
    least: Array
    rows: Array

    def seconds(self, kernel: Kernel, device: Device) -> Array:
        """As a report has them."""
        return np.maximum(self.call.of(kernel, device, self.call.shape, ARRAYS), self.least)

    def take(self, place: Array) -> Term:
        """Of some rows: `place` has the new number of each, below 0 for those that are left out."""
        at = place[self.rows] >= 0
        call = replace(self.call, shape=self.call.shape.take(at))
        return Term(self.family, call, self.least[at], place[self.rows[at]])


Timed = Callable[[Term, Kernel, Device], Array]


@dataclass(frozen=True, eq=False)
class Clock:
    """What `count` rows take on a device, by kernels of each family, and `known` seconds beside them."""

    device: Device
    terms: tuple[Term, ...]
    count: int
    known: Array | float = 0.0

    def seconds(self, kernels: Mapping[str, Kernel], of: Timed = Term.seconds) -> Array:
        """The calls of each row, added up; of a family without a kernel the roofline.

        `of` says what a term takes.
        """
        total = np.zeros(self.count) + self.known
        for term in self.terms:
            kernel = kernels.get(term.family)
            seconds = of(term, kernel, self.device) if kernel else term.least
            total += np.bincount(term.rows, seconds, self.count)  # a row may make a call twice
        return total

    def take(self, some: Array) -> Clock:
        """Of some rows."""
        place = np.full(self.count, -1)
        place[some] = np.arange(len(some))
        kept = (t.take(place) for t in self.terms)
        known = self.known[some] if isinstance(self.known, np.ndarray) else self.known
        return Clock(self.device, tuple(t for t in kept if len(t.rows)), len(some), known)

    def holding(self, kernels: Mapping[str, Kernel], families: Sequence[str]) -> Clock:
        """With the calls of all but these families by kernels that no longer change."""
        rest = tuple(term for term in self.terms if term.family not in families)
        terms = tuple(term for term in self.terms if term.family in families)
        return replace(self, terms=terms, known=replace(self, terms=rest).seconds(kernels))


def clock(points: Sequence[Points], device: Device) -> Clock:
    """The calls of all rows of these points, one after another; those alike as one."""
    made: dict[Any, list[Term]] = {}
    count = 0
    for group in points:
        many = len(group.rows)
        numbers = np.arange(count, count := count + many)
        for row, call in _calls(group, device):
            least = np.broadcast_to(Ideal(device).price(row).time(group.at) if row else 0.0, many)
            whole = replace(call, shape=call.shape.spread(many))
            words = tuple(v for v in vars(whole.shape).values() if isinstance(v, str))
            family = own(call.families[0], device)
            key = family, call.part, type(call.shape), words
            made.setdefault(key, []).append(Term(family, whole, least, numbers))
    harness = [np.broadcast_to(group.harness, len(group.rows)) for group in points]
    return Clock(device, tuple(map(_joined, made.values())), count, np.concatenate(harness))


def _joined(terms: Sequence[Term]) -> Term:
    call = replace(terms[0].call, shape=stacked([term.call.shape for term in terms]))
    least, numbers = (np.concatenate([getattr(t, name) for t in terms]) for name in ("least", "rows"))
    return Term(terms[0].family, call, least, numbers)


def families_of(points: Points, device: Device) -> tuple[str, ...]:
    """The families that price the rows, in the order of the ops."""
    return tuple(dict.fromkeys(own(call.families[0], device) for _, call in _calls(points, device)))


def _calls(points: Points, device: Device) -> Iterator[tuple[Row | None, Call]]:
    """Each timed op with its call, in numbers: of the first kernel that takes all shapes, or a stand-in.

    What crosses nodes makes one inside, which has no row, and then that of the network, in a ring.
    """
    for row in rows(points.program):
        if row.name in points.untimed:
            continue
        bound = (replace(call, shape=call.at(points.at)) for call in (*calls(row), stand_in(row)))
        call = next(c for c in bound if np.all(KERNELS[c.families[0]].takes(c.shape)))
        if over := across(row, device):
            yield None, within(call, boxed(device, row.work.ranks)[1])
            call = replace(over[0], shape=over[0].at(points.at))
        yield row, call
