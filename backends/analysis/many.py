"""Steps of many programs as one array: a price is evaluated once for all of them, a stage is a row of counts.

Programs of a search differ in few of their prices. Those are columns, what each stage runs of them is a
matrix, and the seconds of all stages are its product with what the prices are at the points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.plan import Plan, late
from llmir.backends.cost import Price
from llmir.backends.cost.kernels import Host
from llmir.backends.cost.stacked import Several, Stack
from llmir.dim import Binding, Dim, Size, monomials
from llmir.namespace import ARRAYS

Array = Any  # of float64


class Sizes(NamedTuple):
    """What decides at which sizes a price is evaluated."""

    micro_batches: int
    padded: tuple[int, ...] = ()  # to the graphs of such a plan; none for sizes as they are asked for


def launching(of: Plan) -> tuple[int, ...]:
    """What decides which steps of a plan are launched as a graph, and of how many sequences that is."""
    degrees = of.program.parallelism
    return of.program.micro_batches, degrees.dp, degrees.tp, id(of.model)


class Stage(NamedTuple):
    """Stages of a plan that are alike: so many `kernels`, and lateness of others; whether it is the first."""

    plan: int
    kernels: int
    late: float
    first: bool


class Stages:
    """All stages of some plans, those of a plan that are alike once, and how often they run each price."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = plans
        self.sizes: dict[Sizes, tuple[int, Plan]] = {}  # with their numbers, and a plan that has them
        self.distinct: dict[Price, int] = {}
        self._known: dict[int, tuple[Price, int]] = {}  # by identity, held so that it stays theirs
        # What stages run: sizes and prices by their numbers, each with its own, by what a graph hides.
        self.prices: dict[float, dict[tuple[int, int], int]] = {}
        found = [kind for number, of in enumerate(plans) for kind in self._alike(number, of)]
        self.each = [stage for stage, _, _ in found]
        self.of = np.array([stage.plan for stage in self.each])
        self.starts = np.flatnonzero(np.diff(self.of, prepend=-1))
        columns = [times for *_, times in found], [s.kernels for s in self.each], [s.late for s in self.each]
        self.times, self.kernels, self.late = (np.array(column, dtype=np.float64) for column in columns)
        self.runs = {hidden: np.zeros((len(found), len(known))) for hidden, known in self.prices.items()}
        for i, (stage, counts, _) in enumerate(found):
            self.runs[_hidden(plans[stage.plan])][i, [*counts]] = [*counts.values()]
        self._stacks: dict[int, dict[float, Stack]] = {}

    def _alike(self, number: int, of: Plan) -> Iterator[tuple[Stage, dict[int, int], int]]:
        """The stages of a plan, those alike once: how often they run each price, and how many there are."""
        known = self.prices.setdefault(_hidden(of), {})
        parts = of.program.micro_batches
        usual, padded = (
            self.sizes.setdefault(Sizes(parts, key), (len(self.sizes), of))[0] for key in ((), launching(of))
        )
        for kind in of.kinds_of_stages():
            counts: dict[int, int] = {}
            kernels, lateness = 0, 0.0
            for row, price in kind.priced:
                key = padded if of.padding(row) else usual, self._one(price)
                place = known.setdefault(key, len(known))
                counts[place] = counts.get(place, 0) + row.repeat
                kernels += row.repeat
                lateness += row.repeat * late(row)
            yield Stage(number, kernels, lateness, kind.first), counts, kind.times

    def _one(self, price: Price) -> int:
        """The number of a price, which equal ones share."""
        if id(price) not in self._known:
            self._known[id(price)] = price, self.distinct.setdefault(price, len(self.distinct))
        return self._known[id(price)][1]

    def stacks(self, axes: int) -> Mapping[float, Stack]:
        """The prices as columns, for points of so many axes, by what a graph hides."""
        if axes not in self._stacks:
            prices = [*self.distinct]
            self._stacks[axes] = {
                hidden: Stack([(sizes, prices[i]) for sizes, i in known], axes)
                for hidden, known in self.prices.items()
            }
        return self._stacks[axes]

    @cached_property
    def hosts(self) -> Sequence[tuple[Host, Array, Sequence[Array]]]:
        """Each host, the stages whose kernels it launches, and those of them that are first of as many."""
        groups: dict[Host, list[int]] = {}
        for i, stage in enumerate(self.each):
            if host := self.plans[stage.plan].host:
                groups.setdefault(host, []).append(i)
        found = []
        for host, some in groups.items():
            first: dict[tuple[int, ...], list[int]] = {}
            for i in some:
                if self.each[i].first:
                    first.setdefault(launching(self.plans[self.of[i]]), []).append(i)
            found.append((host, np.array(some), [*map(np.array, first.values())]))
        return found


def _hidden(of: Plan) -> float:
    """What a graph of kernels hides of their launches."""
    return of.host.hidden if of.host else 0.0


def _in_graph(at: Binding, hidden: float, price: Price) -> tuple[Any, Any]:
    return price.in_graph(at, hidden)


class Points:
    """Points at which all plans are priced: the sizes of a micro-batch, by how many of them there are."""

    def __init__(self, stages: Stages, at: Mapping[int, Binding]) -> None:
        self.stages, self.at = stages, at
        self.shape = next(iter(at.values())).shape
        self.column = (-1, *(1,) * len(self.shape))
        parts = [of.program.micro_batches for of in stages.plans]
        self.parts = np.array(parts, dtype=np.float64).reshape(self.column)

    def timing(self) -> tuple[Array, Array]:
        """Of each plan the seconds of all its stages for a micro-batch, and of the slowest of them."""
        alone, together = self._sums(lambda values: values)
        seconds = np.where(self._captured, together, alone)
        for host, some, _ in self.stages.hosts:
            seconds[some] = host.launched(seconds[some], self._kernels[some], ARRAYS)
        seconds += self._beside
        whole = np.add.reduceat(seconds * self.stages.times.reshape(self.column), self.stages.starts)
        return whole, np.maximum.reduceat(seconds, self.stages.starts)

    def whole(self) -> Array:
        """The first of these, summed along the last axis, such as that of the contexts of a decode.

        Most stages take longer than their launches at all points, and are summed price by price.
        """
        count, stages = self.shape[-1], self.stages
        if self._captured.shape[-1] != 1 or self._beside.shape[-1] != 1:
            return self.timing()[0].sum(axis=-1)
        found = []
        for figure in (np.sum, np.min, np.max):
            alone, together = self._sums(partial(_along, figure, count))
            found.append(np.where(self._captured, together, alone)[..., 0])
        seconds, least, most = found
        for host, some, _ in stages.hosts:
            if type(host).launched is not Host.launched:
                return self.timing()[0].sum(axis=-1)
            launches = np.broadcast_to(
                host.launched(0.0, self._kernels[some], ARRAYS)[..., 0], least[some].shape
            )
            seconds[some] = np.where(most[some] <= launches, count * launches, seconds[some])
            now_and_then = (least[some] < launches) & (most[some] > launches)
            for place in np.argwhere(now_and_then):
                i, at = int(some[place[0]]), tuple(map(int, place[1:]))
                whole = i, *at
                seconds[whole] = np.maximum(self._along(i, at), launches[tuple(place)]).sum()
        seconds = (seconds + count * self._beside[..., 0]) * stages.times.reshape(self.column[:-1])
        return np.add.reduceat(seconds, stages.starts)

    def _along(self, stage: int, at: tuple[int, ...]) -> Array:
        """Seconds of a stage's kernels along the last axis, at a place on the others."""
        captured = np.broadcast_to(self._captured, (len(self.stages.each), *self.shape[:-1], 1))
        here = stage, *at, 0
        which = int(captured[here])
        total = np.zeros(self.shape[-1])
        for runs, both in self._priced:
            values = np.broadcast_to(both[which], (len(both[which]), *self.shape[:-1], both[which].shape[-1]))
            place: Any = (slice(None), *at)
            total += runs[stage] @ values[place]
        return total

    @cached_property
    def _kernels(self) -> Array:
        """How many kernels the host launches for each stage; a graph of them goes at once."""
        return np.where(self._captured, 0.0, self.stages.kernels.reshape(self.column))

    @cached_property
    def _beside(self) -> Array:
        """Seconds of each stage in which it waits for other ranks, or for the host before it begins."""
        found: Any = np.zeros((len(self.stages.each), *(1,) * len(self.shape)))
        for host, some, first in self.stages.hosts:
            found[some] += host.waited(self.stages.late[some].reshape(self.column))
            for those in first:
                of = self.stages.plans[self.stages.of[those[0]]]
                beside = np.asarray(host.beside(of.sequences(self.at[of.program.micro_batches])))
                more = np.zeros((len(found), *beside.shape))
                more[those] = beside
                found = found + more
        return found

    @cached_property
    def _captured(self) -> Array:
        """Whether a step of each stage is launched as a graph."""
        known: dict[tuple[int, ...], Any] = {}
        found = []
        for of in self.stages.plans:
            key = launching(of) if of.host else ()
            if key not in known:
                known[key] = of.captured(self.at[of.program.micro_batches]) if key else False
            found.append(known[key])
        _, *each = np.broadcast_arrays(np.empty((1,) * len(self.shape)), *found)
        return np.stack(each)[self.stages.of]

    @cached_property
    def _priced(self) -> Sequence[tuple[Array, list[Array]]]:
        """How often stages run some prices, and these: alone, and in a graph."""
        pairs = ((sizes, of, self.at[sizes.micro_batches]) for sizes, (_, of) in self.stages.sizes.items())
        at = Several([of.runs(at) if sizes.padded else at for sizes, of, at in pairs])
        return [
            (self.stages.runs[hidden][:, places], both)
            for hidden, stack in self.stages.stacks(len(self.shape)).items()
            for places, both in stack.each(partial(_in_graph, at, hidden))
        ]

    def _sums(self, figure: Callable[[Array], Array]) -> tuple[Any, Any]:
        """Seconds of the ops of each stage, alone and in a graph: where any stage runs so, else 0."""
        needed = not self._captured.all(), self._captured.any()
        alone, together = (self._sum(which, figure) if is_ else 0.0 for which, is_ in enumerate(needed))
        return alone, together

    def _sum(self, which: int, figure: Callable[[Array], Array]) -> Array:
        """What each stage runs of each price, those of one shape together."""
        alike: dict[tuple[int, ...], list[tuple[Array, Array]]] = {}
        for runs, both in self._priced:
            values = figure(both[which])
            alike.setdefault(values.shape[1:], []).append((runs, values.reshape(len(values), -1)))
        total: Any = 0.0
        for shape, pairs in alike.items():
            runs = np.concatenate([runs for runs, _ in pairs], axis=1)
            total = total + (runs @ np.concatenate([values for _, values in pairs])).reshape(-1, *shape)
        return total


def _along(figure: Any, count: int, values: Array) -> Array:
    """A figure of so many values along the last axis, of which there may be one for all."""
    scale = count if figure is np.sum and values.shape[-1] == 1 else 1
    return scale * figure(values, axis=-1, keepdims=True)


class Room:
    """The memory of all stages of some plans: what each holds as coefficients of what its sizes read."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        sizes: dict[Size, int] = {}
        known: dict[tuple[int, ...], int] = {}
        held = []
        for of in plans:
            own: dict[int, None] = {}
            for memory in of.memories:
                most = dict.fromkeys([0, *(moment.bytes for moment in memory.moments)])
                each = memory.weights, memory.caches, *most
                places = tuple(sizes.setdefault(size, len(sizes)) for size in each)
                own[known.setdefault(places, len(known))] = None
            held.append([*own])
        self.reads = monomials(sizes)
        columns = {size.terms[0][0]: i for i, size in enumerate(self.reads, 1)} | {(): 0}
        self.coefficients = np.zeros((len(sizes), len(columns)))
        for size, i in sizes.items():
            for monomial, coefficient in size.terms if isinstance(size, Dim) else (((), size),):
                self.coefficients[i, columns[monomial]] = coefficient
        self.resident = np.array([places[:2] for places in known]).T
        self.moments = np.array([place for places in known for place in places[2:]])
        self.starts = np.cumsum([0, *(len(places) - 2 for places in known)])[:-1]
        self.held = np.array([i for each in held for i in each])
        self.of = np.cumsum([0, *map(len, held)])[:-1]
        self.parts = [of.program.micro_batches for of in plans]

    def peaks(self, points: Points) -> Array:
        """Bytes of the fullest stage of each plan, at its fullest moment."""
        found = {parts: self._peaks(at) for parts, at in points.at.items()}
        one, *others = found.values()
        return np.stack([found[parts][i] for i, parts in enumerate(self.parts)]) if others else one

    def _peaks(self, at: Binding) -> Array:
        """The same for so many sequences in a micro-batch."""
        values = np.stack(np.broadcast_arrays(np.ones(at.shape), *map(at, self.reads)))
        bytes = np.tensordot(self.coefficients, values, 1)
        weights, caches = (bytes[part] for part in self.resident)
        most = weights + caches + np.maximum.reduceat(bytes[self.moments], self.starts)
        return np.maximum.reduceat(most[self.held], self.of)
