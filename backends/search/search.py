"""The search: memory first, closed forms rank, and simulated traffic decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from llmir.backends.simulation.profile import Profile
from llmir.errors import LlmirError
from llmir.garbage import uncollected

from .closed import BATCHES, Points, Times, joined, points, times
from .fewest import fewest
from .front import front
from .plan import Candidate, Plans, PooledCandidate
from .refusal import Refusal, crowded, too_long, too_many, unfit
from .structure import Structure, room
from .traffic import SEEDS, Traffic
from .trial import Replica, Run, Trial

SLACK = 1.1  # by which closed forms may be off: measured 0.90 to 1.08 of saturated servers, docs/plans.md
ROWS = 6  # structures that are simulated at least: the losers beside the first, as many as a screen shows
CHUNKS = (2048,)  # tokens of a step that are tried beside the engine's own


class Setting(NamedTuple):
    """A chunk and a batch that were tried, the part of a limit that they use, and the run."""

    over: float
    chunk: int
    batch: int
    run: Run


class Search:
    """What is known of structures that fit some traffic, on `most` devices if stated."""

    def __init__(
        self,
        structures: Sequence[Structure],
        traffic: Traffic,
        most: int | None,
        chunks: Sequence[int] | None,
        batches: Sequence[int] | None,
    ) -> None:
        self.traffic, self.most = traffic, most
        self.refused: dict[str, Refusal] = {}
        self.times: list[Times] = []  # of each structure
        self.structures, self.points = self._fitting(structures, chunks, batches)
        priced = {s.device.price_per_hour_usd for s in structures}
        self.priced = None not in priced
        self._replicas: dict[int, Replica] = {}
        self._rates: dict[tuple[int, int, int], float] = {}  # of a replica, at most
        self._tries: dict[tuple[int, int], Setting] = {}  # the best by the first seed
        self._kept = self._within(self.points)

    @uncollected()
    def _fitting(
        self,
        structures: Sequence[Structure],
        chunks: Sequence[int] | None,
        batches: Sequence[int] | None,
    ) -> tuple[tuple[Structure, ...], Points | None]:
        """Structures with room for a request, and their plans."""
        traffic, rooms = self.traffic, []
        kept: list[Structure] = []
        for structure in structures:
            sizes: dict[int, tuple[int, ...]] = {}
            refusals: list[Refusal] = []
            for chunk in dict.fromkeys(chunks or (None, *CHUNKS)):
                try:
                    found = room(structure.job(*traffic.tokens, chunk, None), structure.drafts)
                except LlmirError as error:
                    refusals.append(unfit(structure, traffic, str(error)))
                    continue
                if longer := too_long(structure, traffic, found):
                    refusals.append(longer)
                    continue
                dp = structure.split.dp
                asked = batches or sorted({*BATCHES, found.requests // dp * dp})
                sizes[found.tokens] = tuple(n for n in asked if 0 < n <= found.requests and n % dp == 0)
            sizes = {chunk: of for chunk, of in sizes.items() if of}
            if sizes:
                kept.append(structure)
                rooms.append(sizes)
            else:
                refusals = refusals or [crowded(structure, traffic, batches)]
                self.refused[structure.name] = min(refusals, key=lambda each: each.far)
        parts: list[Points] = []
        priced: list[Structure] = []
        for device in dict.fromkeys(id(s.model) for s in kept):
            own = [i for i, s in enumerate(kept) if id(s.model) == device]
            of = times(
                [kept[i] for i in own],
                traffic.read,
                traffic.answer,
                [tuple(rooms[i]) for i in own],
                [sorted({n for each in rooms[i].values() for n in each}) for i in own],
                traffic.cached,
            )
            for i, found_times in zip(own, of, strict=True):
                if isinstance(found_times, str):
                    self.refused[kept[i].name] = Refusal(found_times)
                    continue
                parts.append(points(len(priced), kept[i], found_times, traffic.answer, rooms[i]))
                priced.append(kept[i])
                self.times.append(found_times)
        return tuple(priced), joined(parts) if parts else None

    def _within(self, of: Points | None) -> Points | None:
        """Points whose closed forms are within the limits, which simulated ones are hardly below."""
        if of is None:
            return None
        traffic, kept = self.traffic, np.ones(of.rate.shape, dtype=bool)
        if traffic.ttft:
            kept &= of.ttft_s <= traffic.ttft.seconds
        if traffic.tpot:
            kept &= of.tpot_s <= traffic.tpot.seconds
        return of.only(kept)

    def _cost(self, number: int, replicas: int) -> tuple[float, int]:
        structure = self.structures[number]
        count = replicas * structure.split.devices
        return (count * (structure.device.price_per_hour_usd or 0.0) if self.priced else count, count)

    def _most(self, number: int) -> float:
        return inf if self.most is None else self.most // self.structures[number].split.devices

    def _starts(self) -> Iterator[tuple[int, int]]:
        """Structures on the front of those of their size, and the fewest replicas that may do."""
        if self._kept is None:
            return
        kept = self._kept
        groups: dict[object, list[int]] = {}
        for i, number in enumerate(kept.structure.tolist()):
            s = self.structures[number]
            groups.setdefault((s.device.name, s.weights, s.split.devices), []).append(i)
        for rows in groups.values():
            of = kept.only(np.array(rows))
            best = of.only(front(1 / of.tpot_s, of.rate))
            for number in dict.fromkeys(best.structure.tolist()):
                s, most = self.structures[number], self._most(number)
                least = self._replicas_of(float(of.rate[of.structure == number].max()))
                if least > most:
                    self._too_many(number, float(of.rate[of.structure == number].max()) * SLACK)
                else:
                    yield number, int(min(self._guess(number), most))

    def _too_many(self, number: int, rate: float) -> None:
        """There may be too few, if a replica answers so many requests a second."""
        s, each = self.structures[number], self.traffic.rate / rate
        assert self.most is not None
        devices = ceil(each) * s.split.devices
        self.refused[s.name] = too_many(devices, self.most, each / max(self._most(number), 1))

    def _replicas_of(self, rate: float) -> int:
        """How many answer what comes, if each answers so many requests a second."""
        return max(1, ceil(self.traffic.rate / (rate * SLACK)))

    def _surely(self, rate: float) -> int:
        """How many answer what comes whatever closed forms are off by, if each answers so many by them."""
        return max(1, ceil(self.traffic.rate * SLACK**2 / rate))

    def _guess(self, number: int) -> int:
        """Replicas that answer what comes, if closed forms within the limits are right: see docs/plans.md."""
        assert self._kept is not None
        rate = float(self._kept.rate[self._kept.structure == number].max())
        return max(1, ceil(self.traffic.rate / rate))

    def candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """Those that meet the limits, the cheapest first, and those that do not with all devices.

        Structures are tried until no other may cost less than the first plan, and `ROWS` are known.
        """
        met: list[Candidate] = []
        missed: list[Candidate] = []
        for number, guess in sorted(self._starts(), key=lambda start: self._cost(*start)):
            enough = len(met) + len(missed) >= ROWS
            best = min(map(self._costs, met), default=(inf, 0))
            if enough and self._cost(number, guess) >= best:
                break
            try:
                found = self._least(number, guess, best if enough else (inf, 0))
            except LlmirError as error:  # a request has no room, of more than `traffic.every` has
                self.refused[self.structures[number].name] = Refusal(str(error))
                continue
            if found:
                (met if found.meets else missed).append(found)
        self.sort(met, missed)
        return met, missed

    def sort(self, met: list[Candidate], missed: list[Candidate]) -> None:
        """The cheapest first of those that meet the limits, the closest of the others."""
        met.sort(key=lambda c: (*self._costs(c), -c.tokens_per_s_user))
        missed.sort(key=lambda c: c.trial.over(self.traffic))

    def _costs(self, candidate: Candidate) -> tuple[float, int]:
        hourly = candidate.cost_per_hour_usd or 0.0
        return (hourly if self.priced else candidate.devices, candidate.devices)

    def _least(self, number: int, guess: int, below: tuple[float, int]) -> Candidate | None:
        """The fewest replicas that meet the limits, from a guess on; as many as there may be if none do.

        None where that costs as much as `below`, or takes more devices than there may be.
        """
        tried: dict[int, Candidate] = {}

        def meets(replicas: int) -> bool:
            tried[replicas] = self._try(number, replicas)
            return tried[replicas].meets

        def may(replicas: int) -> bool:
            return self._try(number, replicas, 1).meets

        most = int(min(self._most(number), self._lone(number)))
        last = fewest(lambda n: self._cost(number, n) >= below, 0, most, most) if below[0] < inf else None
        most = most if last is None else last - 1
        stable = self._stable(number, min(guess, most))
        if stable > most:
            if stable > self._most(number):
                self._too_many(number, self._largest(number, *self._widest(number)))
            return None
        first = fewest(may, stable - 1, min(max(guess, stable), most), most)
        if first is None:
            return self._try(number, most if self.most else guess) if last is None else None
        found = fewest(meets, first - 1, first, most, near=True)
        if found is None:
            return tried[max(tried)] if last is None else None
        return tried[found]

    def _lone(self, number: int) -> int:
        """Replicas with which 99 of 100 requests find nobody before them, so that more do not help."""
        assert self.points is not None
        of = self.points.only(self.points.structure == number)
        one = of.only(of.batch == of.batch.min())
        alone = float((one.ttft_s + (self.traffic.answer - 1) * one.tpot_s).max())
        return max(1, ceil(100 * self.traffic.rate * alone))

    def _stable(self, number: int, guess: int) -> int:
        """Replicas with which a queue does not grow for ever, however short the simulated runs are.

        By closed form where a guess is far beyond; else by the saturation rule.
        """
        assert self.points is not None
        of = self.points.only(self.points.structure == number)
        if (surely := self._surely(float(of.rate.max()))) <= guess:
            return surely
        return max(1, ceil(self.traffic.rate / self._largest(number, *self._widest(number))))

    def _widest(self, number: int) -> tuple[int, int]:
        """The largest chunk, with as many requests at once as have room."""
        assert self.points is not None
        of = self.points.only(self.points.structure == number)
        chunk = of.chunk.max()
        return int(chunk), int(of.batch[of.chunk == chunk].max())

    def _largest(self, number: int, chunk: int, batch: int) -> float:
        """Requests a second that a replica answers at most, simulated."""
        key = number, chunk, batch
        if key not in self._rates:
            self._rates[key] = self.replica(number).largest_rate(chunk, batch)
        return self._rates[key]

    def _answers(self, number: int, chunk: int, batch: int, replicas: int) -> float | None:
        """The same of all replicas; None where by closed form they answer far more than comes."""
        assert self.points is not None
        of = self.points
        rate = of.rate[(of.structure == number) & (of.chunk == chunk) & (of.batch == batch)]
        if rate.size and self._surely(float(rate.max())) <= replicas:
            return None
        return replicas * self._largest(number, chunk, batch)

    def _number(self, candidate: Candidate) -> int:
        return next(i for i, s in enumerate(self.structures) if s is candidate.structure)

    def server(self, candidate: Candidate) -> Profile:
        """A replica of a plan, as `llmir.server` gives it."""
        return self.replica(self._number(candidate)).profile(candidate.chunk, candidate.batch)

    def replica(self, number: int) -> Replica:
        """The server of a structure."""
        if number not in self._replicas:
            self._replicas[number] = Replica(self.structures[number], self.traffic)
        return self._replicas[number]

    def _try(self, number: int, replicas: int, seeds: int = SEEDS) -> Candidate:
        """The best of a structure's chunks and batches with so many replicas, by all seeds if one may do."""
        key = number, replicas
        if key not in self._tries:
            tries: list[Setting] = []
            for chunk, batch in self._settings(number):
                # Who finds a place among fewer goes on as before.
                if not tries or tries[-1].chunk != chunk or tries[-1].run.most > batch:
                    run = self.replica(number).run(chunk, batch, replicas, self.traffic.seed)
                over = Trial((run,)).over(self.traffic)
                if over <= 1 and (answers := self._answers(number, chunk, batch, replicas)):
                    over = max(over, self.traffic.rate / answers)
                tries.append(Setting(over, chunk, batch, run))
                late = self.traffic.ttft and run.limited[0] > self.traffic.ttft.seconds
                if over <= 1 or late:  # fewer at once are no sooner read
                    break
            self._tries[key] = min(tries)
        over, chunk, batch, run = self._tries[key]
        runs = self._runs(number, chunk, batch, replicas, run) if over <= 1 < seeds else (run,)
        return self._candidate(number, chunk, batch, replicas, runs)

    def _runs(self, number: int, chunk: int, batch: int, replicas: int, first: Run) -> tuple[Run, ...]:
        """Those by all seeds, of which the first is known; fewer where these say that a limit is missed."""
        runs = [first]
        for seed in self.traffic.seeds[1:]:
            runs.append(self.replica(number).run(chunk, batch, replicas, seed))
            if Trial((runs[-1],)).over(self.traffic) > 1:
                break
        return tuple(runs)

    def _settings(self, number: int) -> Iterator[tuple[int, int]]:
        """Chunks and batches to try: as many requests as have room; then as few as keep the limit of TPOT."""
        assert self.points is not None and self._kept is not None
        for chunk in sorted(set(self.points.chunk[self.points.structure == number].tolist()), reverse=True):
            every = self.points.batch[(self.points.structure == number) & (self.points.chunk == chunk)]
            kept = self._kept.batch[(self._kept.structure == number) & (self._kept.chunk == chunk)]
            if not kept.size:
                continue
            above = every[every > kept.max()]
            some = [every.max(), *([above.min()] if above.size else []), kept.max()]
            yield from ((int(chunk), int(batch)) for batch in dict.fromkeys(map(int, some)))

    def _candidate(
        self, number: int, chunk: int, batch: int, replicas: int, runs: tuple[Run, ...]
    ) -> Candidate:
        """With its closed form at the rate of one replica."""
        assert self.points is not None
        rate = self.traffic.rate / replicas
        of = self.points.only((self.points.structure == number) & (self.points.chunk == chunk))
        rates = np.maximum.accumulate(of.rate)
        tpot = float(np.interp(rate, rates, of.tpot_s)) if rate <= rates[-1] else inf
        structure, trial = self.structures[number], Trial(runs)
        read, split = float(of.ttft_s[0]), structure.split
        each = read / split.pp  # that a rank's first stage is busy
        busy = rate / split.dp * each
        ttft = read + busy * each / (2 * (1 - busy)) if busy < 1 else inf  # Pollaczek and Khinchine
        answers = self._answers(number, chunk, batch, replicas) if trial.over(self.traffic) <= 1 else None
        return Candidate(structure, chunk, batch, replicas, ttft, tpot, self.traffic, trial, answers)


def search(
    structures: Sequence[Structure],
    traffic: Traffic,
    most: int | None,
    chunks: Sequence[int] | None,
    batches: Sequence[int] | None,
    refused: Mapping[str, Refusal],
    link: str | None = None,
) -> Plans:
    """Plans of some structures for some traffic; `refused` says why others cannot be."""
    found = Search(structures, traffic, most, chunks, batches)
    met, missed = found.candidates()
    refused = {**refused, **found.refused}
    if link is not None:
        from .pool_search import PoolSearch

        pooling = PoolSearch(found, link)
        for candidate in pooling.candidates():
            (met if candidate.meets and candidate.carried else missed).append(candidate)
        found.sort(met, missed)
        refused |= pooling.refused
    largest, server, one = None, None, structures[0]
    drafts = (one.drafts.note(one.program),) if one.drafts else ()
    if met:
        best = met[0]
        largest = best.largest_rate
        if largest is None:
            largest = best.replicas * found._largest(found._number(best), best.chunk, best.batch)
        server = best.pools if isinstance(best, PooledCandidate) else found.server(best)
    return Plans(
        traffic=traffic,
        most_devices=most,
        priced=found.priced,
        structures=found.structures,
        points=found.points or Points(*(np.zeros(0, dtype=int),) * 7),
        ranked=tuple(met),
        missed=tuple(missed),
        refused=dict(sorted(refused.items(), key=lambda item: item[1].far)),
        seeds=traffic.seeds,
        largest_rate=largest,
        notes=(*drafts, *traffic.notes),
        server=server,
    )
