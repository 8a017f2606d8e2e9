"""Steps of many programs as one array: a price is evaluated once for all of them, a stage is a row of counts.

Programs of a search differ in few of their prices. Those are columns, what each stage runs of them is a
matrix, and the seconds of all stages are its product with what the prices are at the points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.batch import Several, Stack
from llmir.backends.cost.op_time import Price
from llmir.backends.kernels.engine_cpu import Host
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Size, monomials

from .evaluate import Plan, late
from .timing import Part

Array = Any  # of float64
_SELECTIONS = 8  # of columns, that are kept: a step's, and those of a decode by what they read


class Sizes(NamedTuple):
    """What decides at which sizes a price is evaluated."""

    micro_batches: int
    padded: tuple[int, ...] = ()  # to the graphs of such a plan; none for sizes as they are asked for


def launching(of: Plan) -> tuple[int, ...]:
    """What decides which steps of a plan are launched as a graph, and of how many sequences that is."""
    degrees = of.program.parallelism
    return of.program.micro_batches, degrees.dp, degrees.tp, id(of.model)


Runs = tuple[dict[int, int], int, float]  # of each price, by number; of all kernels; seconds of waiting


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
        self._places: dict[tuple[object, ...], tuple[Row, int, float]] = {}  # with rows, which are held so
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
        self._columns: dict[tuple[int, tuple[int, ...]], Array] = {}

    def _alike(self, number: int, of: Plan) -> Iterator[tuple[Stage, dict[int, int], int]]:
        """The stages of a plan, those alike once: how often they run each price, and how many there are."""
        known = self.prices.setdefault(_hidden(of), {})
        parts = of.program.micro_batches
        usual, padded = (
            self.sizes.setdefault(Sizes(parts, key), (len(self.sizes), of))[0] for key in ((), launching(of))
        )
        own: dict[Part, Runs] = {}
        for kind in of.kinds_of_stages():
            counts: dict[int, int] = {}
            kernels, lateness = 0, 0.0
            for part, times in kind.parts:
                if part not in own:
                    own[part] = self._runs(of, part, (usual, padded), known)
                places, launches, waits = own[part]
                for place, often in places.items():
                    counts[place] = counts.get(place, 0) + times * often
                kernels += times * launches
                lateness += times * waits
            yield Stage(number, kernels, lateness, kind.first), counts, kind.times

    def _runs(self, of: Plan, part: Part, sizes: tuple[int, int], known: dict[tuple[int, int], int]) -> Runs:
        """How often a part of a plan runs each price, how many kernels it has, and their lateness."""
        counts: dict[int, int] = {}
        kernels, lateness = 0, 0.0
        for row, price in part.priced:
            key = row.op, id(price), sizes, _hidden(of)
            if key not in self._places:
                number = sizes[of.padding(row)], self._one(price)
                self._places[key] = row, known.setdefault(number, len(known)), late(row)
            _, place, waits = self._places[key]
            counts[place] = counts.get(place, 0) + row.repeat
            kernels += row.repeat
            lateness += row.repeat * waits
        return counts, kernels, lateness

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

    def groups(self, axes: int) -> list[tuple[float, list[int]]]:
        """Of each group of the stacks what a graph hides, and the numbers of its prices."""
        stacks = self.stacks(axes).items()
        return [(hidden, places) for hidden, stack in stacks for places, _ in stack.groups]

    def columns(self, axes: int, groups: tuple[int, ...]) -> Array:
        """How often each stage runs the prices of some groups of the stacks, which are numbered."""
        key = axes, groups
        if key not in self._columns:
            known = self.groups(axes)
            each = [self.runs[hidden][:, places] for hidden, places in (known[group] for group in groups)]
            if len(self._columns) >= _SELECTIONS:
                self._columns.clear()
            self._columns[key] = np.concatenate(each, axis=1)
        return self._columns[key]

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
        seconds = self._served(seconds)
        whole = np.add.reduceat(seconds * self.stages.times.reshape(self.column), self.stages.starts)
        return whole, np.maximum.reduceat(seconds, self.stages.starts)

    def whole(self) -> Array:
        """The first of these, summed along the last axis, such as that of the contexts of a decode.

        Most stages take longer than their launches at all points, and are summed price by price.
        """
        count, stages = self.shape[-1], self.stages
        if self._captured.shape[-1] != 1 or self._beside.shape[-1] != 1:
            return self.timing()[0].sum(axis=-1)
        captured = self._captured[..., 0]

        def sums(figure: Callable[[Array], Array | None]) -> Array:
            alone, together = (np.asarray(each) for each in self._sums(figure))
            return np.where(captured, together, alone)

        same = sums(_same)
        seconds, least, most = (sums(partial(_varied, figure)) for figure in (np.sum, np.min, np.max))
        seconds, least, most = seconds + count * same, least + same, most + same
        for host, some, _ in stages.hosts:
            if (type(host).launched, type(host).exposed) != (Host.launched, Host.exposed):
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
        for (hidden, places), both in zip(self.stages.groups(len(self.shape)), self._priced, strict=True):
            values = np.broadcast_to(both[which], (len(both[which]), *self.shape[:-1], both[which].shape[-1]))
            place: Any = (slice(None), *at)
            total += self.stages.runs[hidden][stage, places] @ values[place]
        return total

    @cached_property
    def _kernels(self) -> Array:
        """How many kernels the host launches for each stage; a graph of them goes at once."""
        return np.where(self._captured, 0.0, self.stages.kernels.reshape(self.column))

    @cached_property
    def _beside(self) -> Array:
        """What `_served` adds where hosts wait for nothing."""
        return self._served(np.zeros((len(self.stages.each), *(1,) * len(self.shape))))

    def _served(self, seconds: Array) -> Array:
        """Each stage with what it waits for other ranks, or for the host."""
        found: Any = seconds.copy()
        for host, some, first in self.stages.hosts:
            found[some] += host.waited(self.stages.late[some].reshape(self.column))
            for those in first:
                of = self.stages.plans[self.stages.of[those[0]]]
                sequences = of.sequences(self.at[of.program.micro_batches])
                exposed = np.asarray(host.exposed(found[those], sequences, ARRAYS))
                more = np.zeros((len(found), *exposed.shape[exposed.ndim - len(self.shape) :]))
                more[those] = exposed
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
    def _priced(self) -> Sequence[list[Array]]:
        """The prices of each group of the stacks: alone, and in a graph."""
        pairs = ((sizes, of, self.at[sizes.micro_batches]) for sizes, (_, of) in self.stages.sizes.items())
        at = Several([of.runs(at) if sizes.padded else at for sizes, of, at in pairs])
        return [
            both
            for hidden, stack in self.stages.stacks(len(self.shape)).items()
            for _, both in stack.each(partial(_in_graph, at, hidden))
        ]

    def _sums(self, figure: Callable[[Array], Array | None]) -> tuple[Any, Any]:
        """Seconds of the ops of each stage, alone and in a graph: where any stage runs so, else 0."""
        needed = not self._captured.all(), self._captured.any()
        alone, together = (self._sum(which, figure) if is_ else 0.0 for which, is_ in enumerate(needed))
        return alone, together

    def _sum(self, which: int, figure: Callable[[Array], Array | None]) -> Array:
        """What each stage runs of each price that has this figure, those of one shape together."""
        alike: dict[tuple[int, ...], dict[int, Array]] = {}
        for group, both in enumerate(self._priced):
            if (values := figure(both[which])) is not None:
                alike.setdefault(values.shape[1:], {})[group] = values.reshape(len(values), -1)
        total: Any = 0.0
        for shape, values in alike.items():
            runs = self.stages.columns(len(self.shape), tuple(values))
            total = total + (runs @ np.concatenate([*values.values()])).reshape(-1, *shape)
        return total


def _same(values: Array) -> Array | None:
    """Values that are the same along the last axis, once; None of others."""
    return values[..., 0] if values.shape[-1] == 1 else None


def _varied(figure: Any, values: Array) -> Array | None:
    """A figure of others along that axis."""
    return figure(values, axis=-1) if values.shape[-1] > 1 else None


class Room:
    """The memory of all stages of some plans: what each holds as coefficients of what its sizes read."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        sizes: dict[Size, int] = {}
        known: dict[tuple[int, ...], int] = {}
        held = []
        for of in plans:
            own: dict[int, None] = {}
            for memory in of.memories:
                each = memory.weights, memory.caches, 0, *memory.lifetimes.sizes
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
