"""The search for plans: structures that fit in memory are ranked by closed form, and simulations decide.

`search` is the entry point; `Search` simulates replicas of the structures that fit in memory. `PoolSearch`
searches prefill and decode servers with caches sent over a link. A prefill server serves 1 / r requests per
second, where r is the time of prompts prefilled together over their number. A decode server serves B / ((G −
1) · d(B)). The number of servers of both kinds follows from the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import ceil, gcd, inf
from typing import NamedTuple

import numpy as np

from llmir.backends.cost.models import faster_ops
from llmir.backends.simulate.engine import Pools, Profile
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.result import saturation_rate
from llmir.backends.simulate.router import ROUTERS, Random
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.budget import Pace
from llmir.base.errors import LlmirError, WorkError
from llmir.hw.device import Device

from .front import front, minimize
from .plan import Candidate, LosingReason, Plans, PoolCandidate, Rank, plan_rank
from .rejections import losing_reason
from .structures import PlanPoints, Rejection, Structure, device_rejection, feasible_structures
from .traffic import Traffic
from .trial import (
    MEETS,
    MISSES,
    SATURATION,
    UNDECIDED,
    UNIT,
    Latencies,
    Replica,
    Room,
    SeedRun,
    Trial,
    as_it_is,
    decide,
    pool_latencies,
    rate_verdict,
)

# Replicas

SLACK = 1.1  # error of the closed form: simulated rates are 0.90 to 1.08 times its rates (docs/search.md)
STAYS = 10  # smallest number of requests of a run, relative to concurrent requests
ROWS = 6  # smallest number of simulated structures, so that a screen shows the first and its competitors


def expected_runs(devices: int) -> int:
    """The approximate number of runs of a search; six searches of one to three devices took 30 to 105."""
    return 50 + 20 * devices


Progress = Callable[[int, str], None]  # called with the number of each run that starts, and its plan


class TrialSetting(NamedTuple):
    """A structure with a chunk and a batch, the used share of a limit, and the run that shows it."""

    over: float
    number: int
    chunk: int
    batch: int
    requests: int
    run: SeedRun


class Search:
    """The search for replicas of structures that serve given traffic, on at most `most` devices if set.

    A structure is identified by its `number` among those that fit. `points` are its plans from the closed
    form, each with a chunk and a batch; `refused` contains the reasons of other structures by name.
    """

    def __init__(
        self,
        structures: Sequence[Structure],
        traffic: Traffic,
        most: int | None,
        chunks: Sequence[int] | None,
        batches: Sequence[int] | None,
        progress: Progress | None = None,
    ) -> None:
        self.traffic, self.most = traffic, most
        self._progress, self._simulated_runs = progress, 0
        self._sizes = chunks, batches
        found = feasible_structures(structures, traffic, chunks, batches)
        self.structures, self.times, points, self.refused, self._first = found
        self.points = points and points.stretched(traffic.stretch)
        self.undecided: dict[int, Candidate] = {}  # the fewest replicas of a structure without a verdict
        self._best: dict[str, Rank] = {}  # the best plan of each device that meets the limits
        self._patient = False  # whether all plans are simulated to the budget, not only those that can win
        self._rows = ROWS
        self._room: Room = as_it_is
        self._replicas: dict[int, Replica] = {}
        self._steps: dict[int, StepTimes] = {}  # by the first structure of its settings
        # Largest rates of a replica by its setting, with step times as estimated.
        self._rates: dict[tuple[int, int, int], float] = {}
        # The best by the first seed, by number and replicas.
        self._tries: dict[tuple[int, float], TrialSetting] = {}
        self._promising = self._within(self.points)
        self._settings_of: dict[int, list[int]] = {}  # numbers by the engine's own setting
        for number, first in enumerate(self._first):
            self._settings_of.setdefault(first, []).append(number)
        expected = expected_runs(len({s.device.name for s in self.structures}))
        self._pace = Pace("a search for plans", "ask for fewer requests, chunks or devices", expected)

    def relaxed(self, traffic: Traffic, room: Room = as_it_is) -> Search:
        """The search with other limits, headroom or margin of the traffic, and other `room` on each replica.

        `room` is the space in memory. All plans are simulated with the full budget of runs. Searches with
        equal times and room share runs.
        """
        assert self.points is not None
        other = copy(self)
        other.traffic, other._room = traffic, room
        other.points = self.points.stretched(traffic.stretch / self.traffic.stretch)
        other._promising = other._within(other.points)
        if room is not self._room:
            other._rates = {}
        if room is not self._room or traffic.margin != self.traffic.margin:
            other._replicas = {}
        other._tries, other.undecided, other.refused = {}, {}, {}
        other._best, other._patient, other._progress = {}, True, None
        return other

    def cheapest(self, device: Device) -> Candidate | None:
        """The cheapest plan of one device that meets the limits."""
        own = [n for n, s in enumerate(self.structures) if s.device is device]
        assert self._promising is not None
        self._promising = self._promising.only(np.isin(self._promising.structure, own))
        self._rows, self._best, self._patient = 1, {}, False
        met, _ = self.candidates()
        return met[0] if met else None

    def losing_reason(self, plans: Plans, candidate: Candidate) -> LosingReason | None:
        """The reason why a plan is not the first; None for the first plan."""
        return losing_reason(plans, candidate)

    def longer(self, error: float) -> Search:
        """The search with all times multiplied by 1 + `error`."""
        margin = self.traffic.stretch * (1 + error) - 1
        return self.relaxed(replace(self.traffic, margin=margin), self._room)

    def faster(self, number: int, opcode: str, share: float) -> Search:
        """The search with faster ops of one structure; other structures are excluded."""
        structure = self.structures[number]
        model = faster_ops(structure.model, opcode, share)
        other = Search([structure._replace(model=model)], self.traffic, self.most, *self._sizes)
        other._patient = True
        return other

    def sturdy(self, met: Sequence[Candidate]) -> Candidate | None:
        """The cheapest plan if times are longer by their error; None if no plan meets the limits then.

        The devices are those of plans that meet the limits; each is searched again with the larger error of
        its first plan.
        """
        firsts = {each.structure.device.name: each for each in reversed(met)}.values()
        found = [self.longer(max(each.errors)).cheapest(each.structure.device) for each in firsts]
        return min((each for each in found if each), key=lambda each: each.rank, default=None)

    def _within(self, of: PlanPoints | None) -> PlanPoints | None:
        """The points that meet the limits by closed form; simulated times are hardly ever shorter."""
        if of is None:
            return None
        traffic, kept = self.traffic, np.ones(of.rate.shape, dtype=bool)
        if traffic.ttft:
            kept &= of.ttft_s <= traffic.ttft.seconds
        if traffic.tpot:
            kept &= of.tpot_s <= traffic.tpot.seconds
        return of.only(kept)

    def _cost(self, number: int, replicas: float) -> Rank:
        structure = self.structures[number]
        return plan_rank(structure.device, replicas * structure.split.devices)

    def _most_replicas(self, number: int) -> float:
        return inf if self.most is None else self.most // self.structures[number].split.devices

    def _first_guesses(self) -> Iterator[tuple[int, int]]:
        """The structures to simulate, each with a first guess of its replicas.

        They are on the Pareto front of tokens/s per user and per device, among those with equal devices per
        replica.
        """
        if self._promising is None:
            return
        kept = self._promising
        groups: dict[object, list[int]] = {}
        for i, number in enumerate(kept.structure.tolist()):
            s = self.structures[number]
            groups.setdefault((s.device.name, s.types, s.split.devices), []).append(i)
        for rows in groups.values():
            of = kept.only(np.array(rows))
            best = of.only(front(1 / of.tpot_s, of.rate))
            for number in dict.fromkeys(self._first[row] for row in best.structure.tolist()):
                s, most = self.structures[number], self._most_replicas(number)
                rate = self._promised_rate(number, kept)
                least = self._fewest_by_rate(rate)
                if least > most:
                    self._refuse_for_devices(number, rate * SLACK)
                else:
                    yield number, int(min(self._guess(number), most))

    def _promised_rate(self, number: int, of: PlanPoints) -> float:
        """The requests per second of a replica in the closed form, with its best settings."""
        return float(of.rate[np.isin(of.structure, self._settings_of[number])].max())

    def _refuse_for_devices(self, number: int, rate: float) -> None:
        """Reject a structure that needs too many devices at this rate per replica."""
        s, each = self.structures[number], self.traffic.stable_rate / rate
        assert self.most is not None
        devices = ceil(each) * s.split.devices
        self.refused[s.name] = device_rejection(
            devices, self.most, each / max(self._most_replicas(number), 1)
        )

    def _fewest_by_rate(self, rate: float) -> int:
        """The smallest number of replicas that may serve the rate, given the closed-form rate of each."""
        return max(1, ceil(self.traffic.stable_rate / (rate * SLACK)))

    def _surely_enough(self, rate: float) -> int:
        """The number of replicas that can serve the rate even if the closed form is too high by the factor
        `SLACK`².
        """
        return max(1, ceil(self.traffic.stable_rate * SLACK**2 / rate))

    def _guess(self, number: int) -> int:
        """The number of replicas that serve the rate within the limits if the closed form is right
        (docs/plans.md).
        """
        assert self._promising is not None
        return max(1, ceil(self.traffic.stable_rate / self._promised_rate(number, self._promising)))

    def candidates(self) -> tuple[list[Candidate], list[Candidate]]:
        """The plans that meet the limits, the cheapest first; and the plans that do not, even with all
        devices.

        Structures are tried in the order of their guessed costs. After `ROWS` plans, a structure is skipped
        if it costs more than the best plan of its device, so that each device has its best plan.
        """
        met: list[Candidate] = []
        missed: list[Candidate] = []
        for number, guess in sorted(self._first_guesses(), key=lambda start: self._cost(*start)):
            name = self.structures[number].device.name
            below = self._best.get(name) if len(met) + len(missed) >= self._rows else None
            if below and self._cost(number, guess) > below:
                continue
            try:
                found = self._fewest_that_meet(number, guess, below)
            except WorkError:
                raise
            except LlmirError as error:  # a request of `traffic.every` does not fit
                self.refused[self.structures[number].name] = Rejection(str(error))
                continue
            if found:
                (met if found.meets else missed).append(found)
            if found and found.meets:
                self._best[name] = min(found.rank, self._best.get(name, found.rank))
        open_ = (each for each in self.undecided.values() if self._can_win(each.rank, each.structure.device))
        missed += [each for each in open_ if each not in missed]
        self.sort(met, missed)
        return met, missed

    def _can_win(self, rank: Rank, device: Device) -> bool:
        """Whether no plan of the device with a better rank meets the limits."""
        return rank <= self._best.get(device.name, rank)

    def sort(self, met: list[Candidate], missed: list[Candidate]) -> None:
        """The plans that meet the limits, the cheapest first; and the other plans, the closest first."""
        met.sort(key=lambda c: (c.rank, -c.tokens_per_s_user))
        missed.sort(key=lambda c: (c.verdict == MISSES, c.trial.over))

    def _fewest_that_meet(self, number: int, guess: int, below: Rank | None) -> Candidate | None:
        """The plan with the fewest replicas that meet the limits, or with the largest allowed number.

        The search starts at a guess. None if the plan costs more than `below` or needs too many devices; also
        None if fewer replicas are undecided and more cost too much.
        """
        tried: dict[int, Candidate] = {}
        open_: list[int] = []  # replicas that could win, and that the budget does not decide

        def is_enough(replicas: int) -> bool:
            tried[replicas] = found = self.simulated(number, replicas)
            if found.verdict == UNDECIDED and found.replicas <= self.undecided.get(number, found).replicas:
                self.undecided[number] = found
            wins = self._can_win(found.rank, found.structure.device)
            if found.verdict == UNDECIDED and wins:
                open_.append(replicas)
            return found.meets or (bool(open_) and not wins)

        def may(replicas: int) -> bool:
            return self._setting(number, replicas).over <= 1

        most = int(min(self._most_replicas(number), self._most_useful(number)))
        last = minimize(lambda n: self._cost(number, n) > below, 0, most, most) if below else None
        most = most if last is None else last - 1
        stable = self._stable_replicas(number, min(guess, most))
        if stable > most:
            if stable > self._most_replicas(number):
                self._refuse_for_devices(number, self._largest_rate(number))
            return None
        first = minimize(may, stable - 1, min(max(guess, stable), most), most)
        found = None if first is None else minimize(is_enough, stable - 1, first, most)
        if found is not None:
            return tried[found] if tried[found].meets else None
        if last is not None:
            return None
        if not tried:
            return self.simulated(number, most if self.most else guess, patient=True)
        largest = tried[max(tried)]
        if largest.verdict != UNDECIDED or self._can_win(largest.rank, largest.structure.device):
            return largest
        return self.simulated(number, largest.replicas, patient=True)

    def _most_useful(self, number: int) -> int:
        """Number of replicas beyond which more do not help, because 99 of 100 requests are alone on their
        replica.
        """
        assert self.points is not None
        of = self.points.only(np.isin(self.points.structure, self._settings_of[number]))
        one = of.only(of.batch == of.batch.min())
        alone = float((one.ttft_s + (self.traffic.answer - 1) * one.tpot_s).max())
        return max(1, ceil(100 * self.traffic.rate * alone))

    def _stable_replicas(self, number: int, guess: int) -> int:
        """The smallest number of replicas whose queues are stable; short runs cannot show this.

        If the guess is clearly large enough, the closed form decides; otherwise the simulated largest rate
        does.
        """
        assert self.points is not None
        if (surely := self._surely_enough(self._promised_rate(number, self.points))) <= guess:
            return surely
        return max(1, ceil(self.traffic.stable_rate / self._largest_rate(number)))

    def _stable(self, number: int, replicas: float) -> bool:
        """Whether `replicas` replicas, possibly a fractional number, serve the rate in the long run."""
        assert self.points is not None
        if self._surely_enough(self._promised_rate(number, self.points)) <= replicas:
            return True
        return replicas * self._largest_rate(number) >= self.traffic.stable_rate

    def _largest_rate(self, number: int) -> float:
        """The largest stable rate of a replica in requests per second, simulated with the best of its
        settings.
        """
        numbers = self._settings_of[number]
        return max(self._replica_rate(each, *self._roomiest_setting(each)) for each in numbers)

    def _roomiest_setting(self, number: int) -> tuple[int, int]:
        """The largest chunk, with the largest batch that fits with it."""
        assert self.points is not None
        of = self.points.only(self.points.structure == number)
        chunk = of.chunk.max()
        return int(chunk), int(of.batch[of.chunk == chunk].max())

    def _replica_rate(self, number: int, chunk: int, batch: int) -> float:
        """The largest number of requests per second that a replica can serve, by simulation."""
        key = number, chunk, batch
        if key not in self._rates:
            self._rates[key] = self.replica(number).largest_rate(chunk, batch)
        return self._rates[key] / self.traffic.stretch

    def _total_rate(self, number: int, chunk: int, batch: int, replicas: float) -> float | None:
        """The largest stable rate of all replicas in requests per second; None if it is certainly above the
        requested rate.
        """
        assert self.points is not None
        of = self.points
        rate = of.rate[(of.structure == number) & (of.chunk == chunk) & (of.batch == batch)]
        if rate.size and self._surely_enough(float(rate.max())) <= replicas:
            return None
        return replicas * self._replica_rate(number, chunk, batch)

    def _number_of(self, candidate: Candidate) -> int:
        return next(i for i, s in enumerate(self.structures) if s is candidate.structure)

    def number_of(self, candidate: Candidate) -> int:
        """The number of a plan's structure, with the engine's own settings."""
        return self._first[self._number_of(candidate)]

    def usage(self, number: int, replicas: float) -> float:
        """The used share of the limits with `replicas` replicas, from one run with the first seed.

        It is infinite if the closed form exceeds the limits or, with the engine's own room, if queues grow
        without end.
        """
        promising = self._promising
        if promising is None or not np.isin(promising.structure, self._settings_of[number]).any():
            return inf
        # With relaxed room the largest rate takes longer to simulate than the runs.
        if self._room is as_it_is and not self._stable(number, replicas):
            return inf
        return self._setting(number, replicas).over

    def server(self, candidate: Candidate) -> Profile:
        """A replica of a plan, as a server that can simulate loads."""
        return self.replica(self._number_of(candidate)).profile(candidate.chunk, candidate.batch)

    def replica(self, number: int) -> Replica:
        """The server of a structure."""
        if number not in self._replicas:
            first = self._first[number]
            replica = Replica(self.structures[number], self.traffic, self._steps.get(first), self._room)
            self._replicas[number], self._steps[first] = replica, replica.steps
        return self._replicas[number]

    def simulated(self, number: int, replicas: int, *, patient: bool = False) -> Candidate:
        """The best setting of a structure with `replicas` replicas, with its verdict.

        With `patient`, the full budget of runs is used even for a plan that costs too much.
        """
        _, own, chunk, batch, *_ = self._setting(number, replicas)
        return self._candidate(own, chunk, batch, replicas, self._trial(number, replicas, patient))

    def meets(self, number: int, replicas: float) -> bool:
        """Whether `replicas` replicas, possibly a fractional number, meet all limits and the rate with
        certainty.
        """
        if self.usage(number, replicas) > 1:
            return False
        _, own, chunk, batch, *_ = self._setting(number, replicas)
        if self._trial(number, replicas).verdict != MEETS:
            return False
        answers = self._total_rate(own, chunk, batch, replicas)
        return rate_verdict(answers, self.traffic) == MEETS

    def _trial(self, number: int, replicas: float, patient: bool = False) -> Trial:
        """The runs of a structure with its best setting; all runs of the budget if the plan could still
        win.
        """
        _, own, chunk, batch, requests, first = self._setting(number, replicas)
        cost, device = self._cost(number, replicas), self.structures[number].device
        patient = patient or self._patient or self._can_win(cost, device)

        def run(seed: int, length: int) -> SeedRun:
            return self._run(own, chunk, batch, replicas, seed, length)

        return decide(run, first, self.traffic, requests, patient=patient)

    def _setting(self, number: int, replicas: float) -> TrialSetting:
        """The best setting of a structure with `replicas` replicas, from a run with the first seed.

        Other settings than the engine's are tried if the default settings miss a limit.
        """
        key = number, replicas
        if key not in self._tries:
            tries: list[TrialSetting] = []
            for own in self._settings_of[number]:
                tries += self._tried(own, replicas)
                if tries and min(tries).over <= 1:
                    break
            self._tries[key] = min(tries)
        return self._tries[key]

    def _tried(self, number: int, replicas: float) -> list[TrialSetting]:
        """Chunks and batches of a structure, up to the first that meets the limits in a run with the first
        seed.
        """
        tries: list[TrialSetting] = []
        for chunk, batch in self._settings(number):
            # If a run does not reach the batch limit, its result is equal for a smaller batch.
            if not tries or tries[-1].chunk != chunk or tries[-1].run.most > batch:
                requests = self._requests(number, chunk, batch, replicas)
                run = self._run(number, chunk, batch, replicas, self.traffic.seed, requests)
            over = Trial((run,), self.traffic.limits).over
            if over <= 1 and (answers := self._total_rate(number, chunk, batch, replicas)):
                over = max(over, self.traffic.stable_rate / answers)
            tries.append(TrialSetting(over, number, chunk, batch, requests, run))
            late = self.traffic.ttft and run.limited[0] > self.traffic.ttft.seconds
            if over <= 1 or late:  # with a smaller batch, prefill does not start earlier
                break
        return tries

    def _requests(self, number: int, chunk: int, batch: int, replicas: float) -> int:
        """The number of requests of a run: that of the traffic, or `STAYS` times the number in flight.

        A tenth of them then takes as long to arrive as a request stays in the server, so the rest shows the
        steady state.
        """
        assert self.points is not None
        tpot = self._closed_form_tpot(number, chunk, self.traffic.rate / replicas)
        inside = self.traffic.rate / replicas * (self.traffic.answer - 1) * tpot
        return max(self.traffic.requests, ceil(STAYS * min(inside, batch)))

    def _run(self, number: int, chunk: int, batch: int, replicas: float, seed: int, requests: int) -> SeedRun:
        self.tell(f"{replicas:g} × {self.structures[number].name}")
        return SeedRun.of(self.replica(number).run(chunk, batch, replicas, seed, requests), self.traffic)

    def tell(self, plan: str) -> None:
        """Report the start of a run and its plan."""
        self._simulated_runs += 1
        self._pace.step()
        if self._progress:
            self._progress(self._simulated_runs, plan)

    def _settings(self, number: int) -> Iterator[tuple[int, int]]:
        """Chunks and batches to try: from the largest batch down to a batch that meets the limit of TPOT."""
        assert self.points is not None and self._promising is not None
        for chunk in sorted(set(self.points.chunk[self.points.structure == number].tolist()), reverse=True):
            every = self.points.batch[(self.points.structure == number) & (self.points.chunk == chunk)]
            kept = self._promising.batch[
                (self._promising.structure == number) & (self._promising.chunk == chunk)
            ]
            if not kept.size:
                continue
            above = every[every > kept.max()]
            if self.structures[number].sequences is not None:  # a stated limit, which the caches may lower
                yield int(chunk), int(every.max())
                continue
            some = [every.max(), *([above.min()] if above.size else []), kept.max()]
            yield from ((int(chunk), int(batch)) for batch in dict.fromkeys(map(int, some)))

    def _candidate(self, number: int, chunk: int, batch: int, replicas: int, trial: Trial) -> Candidate:
        """A plan with its runs, and with TTFT and TPOT by closed form at the rate of one replica."""
        assert self.points is not None
        rate = self.traffic.rate / replicas
        of = self.points.only((self.points.structure == number) & (self.points.chunk == chunk))
        tpot, structure = self._closed_form_tpot(number, chunk, rate), self.structures[number]
        read, split = float(of.ttft_s[0]), structure.split
        each = read / split.pp  # seconds for which a prompt occupies the first stage of a rank
        busy = rate / split.dp * each
        ttft = read + busy * each / (2 * (1 - busy)) if busy < 1 else inf  # wait of an M/D/1 queue
        answers = None if trial.verdict == MISSES else self._total_rate(number, chunk, batch, replicas)
        return Candidate(structure, chunk, batch, replicas, ttft, tpot, self.traffic, trial, answers)

    def _closed_form_tpot(self, number: int, chunk: int, rate: float) -> float:
        """The TPOT of a replica at a request rate; infinite if it is unstable."""
        assert self.points is not None
        of = self.points.only((self.points.structure == number) & (self.points.chunk == chunk))
        rates = np.maximum.accumulate(of.rate)
        return float(np.interp(rate, rates, of.tpot_s)) if rate <= rates[-1] else inf


def search(
    structures: Sequence[Structure],
    traffic: Traffic,
    most: int | None,
    chunks: Sequence[int] | None,
    batches: Sequence[int] | None,
    refused: Mapping[str, Rejection],
    link: str | None = None,
    progress: Progress | None = None,
    devices: Sequence[Device] = (),
) -> Plans:
    """Find plans of structures for given traffic; `refused` contains the reasons for impossible structures.

    `devices` are the requested devices; some may have no structure.
    """
    found = Search(structures, traffic, most, chunks, batches, progress)
    met, missed = found.candidates()
    refused = {**refused, **found.refused}
    if link is not None:
        pooling = PoolSearch(found, link)
        for candidate in pooling.candidates():
            (met if candidate.meets else missed).append(candidate)
        found.sort(met, missed)
        refused |= pooling.refused
    largest, server, sturdy, one = None, None, None, structures[0]
    drafts = (one.drafts.note(one.program),) if one.drafts else ()
    if met:
        best = met[0]
        largest = best.largest_rate
        if largest is None:
            largest = best.replicas * found._replica_rate(found._number_of(best), best.chunk, best.batch)
        server = best.pools if isinstance(best, PoolCandidate) else found.server(best)
        if not isinstance(best, PoolCandidate) and any(best.within_error(i) for i in range(2)):
            sturdy = found.sturdy([each for each in met if not isinstance(each, PoolCandidate)])
    found._progress = None  # later runs are not reported
    return Plans(
        traffic=traffic,
        most_devices=most,
        devices=tuple(dict.fromkeys(each.name for each in (*devices, *(s.device for s in structures)))),
        structures=found.structures,
        points=found.points or PlanPoints(*(np.zeros(0, dtype=int),) * 7),
        ranked=tuple(met),
        missed=tuple(missed),
        refused=dict(sorted(refused.items(), key=lambda item: item[1].far)),
        seeds=traffic.seeds,
        largest_rate=largest,
        notes=(*drafts, *traffic.notes),
        server=server,
        sturdy=sturdy,
        search=found,
    )


# Prefill and decode servers

LONE = 100  # more servers than the closed form's by this factor do not help: each request is alone
PAIRS = 3  # largest number of pairs of structures that are simulated until one meets the limits
NAMED = 20  # number of pairs with too many devices whose rejection is stored


class PoolSide(NamedTuple):
    """A structure that only prefills, or that only decodes.

    Its setting, the `seconds` per prompt or per token, and the requests per second that one server can serve.
    """

    number: int
    chunk: int
    batch: int
    seconds: float
    rate: float


class PoolPlan(NamedTuple):
    """A prefill and a decode structure, with the numbers of servers that the closed form needs."""

    prefill: PoolSide
    decode: PoolSide
    servers: tuple[int, int]


class PoolSearch:
    """The search for pools among the structures of a `search`."""

    def __init__(self, search: Search, link: str) -> None:
        self.search, self.link = search, link
        self.refused: dict[str, Rejection] = {}
        self._profiles: dict[PoolSide, Profile] = {}

    def candidates(self) -> list[PoolCandidate]:
        """Simulated plans: the cheapest one by closed form, and the next ones if it misses a limit."""
        found: list[PoolCandidate] = []
        for plan in sorted(self._pool_plans(), key=self._cost):
            if len(found) == PAIRS:
                break
            most = self.search.most
            if most is not None and (devices := self._devices(plan, plan.servers)) > most:
                if len(self.refused) < NAMED:
                    self.refused.setdefault(self._name(plan), device_rejection(devices, most, devices / most))
                continue
            try:
                found.append(self._fewest_that_meet(plan, self.pools(plan)))
            except LlmirError as error:  # the engine refuses it, or a request does not fit
                self.refused[self._name(plan)] = Rejection(str(error))
                continue
            if found[-1].meets:
                break
        return found

    def pools(self, plan: PoolPlan) -> Pools:
        """The pools of a plan; InputError if the engine does not support them."""
        return Pools(self._profile(plan.prefill), self._profile(plan.decode), self.link)

    def _profile(self, side: PoolSide) -> Profile:
        if side not in self._profiles:
            structure = self.search.structures[side.number]
            self._profiles[side] = Profile(
                structure.job(1, 1, None, side.chunk, side.batch), structure.chunked, structure.drafts
            )
        return self._profiles[side]

    def _pool_plans(self) -> Iterator[PoolPlan]:
        """All pairs of structures with the same device and dtype of weights, and the numbers of servers that
        the rate needs.
        """
        rate = self.search.traffic.stable_rate
        prefills, decodes = self.sides()
        for one in prefills:
            least = ceil(rate / (one.rate * self._largest_busy_share(one)))
            for two in decodes:
                first, second = (self.search.structures[side.number] for side in (one, two))
                if first.model is second.model and first.types == second.types:
                    yield PoolPlan(one, two, (least, ceil(rate / two.rate)))

    def sides(self) -> tuple[list[PoolSide], list[PoolSide]]:
        """For each structure, the fastest setting for prefill, and for decode, within the limits by closed
        form.
        """
        search, traffic = self.search, self.search.traffic
        stretch = traffic.stretch
        prefills: list[PoolSide] = []
        decodes: list[PoolSide] = []
        for number, times in enumerate(search.times):
            drafts, sequences = search.structures[number].drafts, search.structures[number].sequences
            yielded, most = drafts.yielded if drafts else 1.0, max(times.decodes)
            reads = [
                PoolSide(number, chunk, most, latency * stretch, times.alone[chunk] / stretch)
                for chunk, (latency, *_) in times.reads.items()
                if not traffic.ttft or latency * stretch <= traffic.ttft.seconds
            ]
            steps = [
                PoolSide(
                    number,
                    max(times.reads),
                    batch if sequences is None else most,
                    token_s,
                    batch / ((traffic.answer - 1) * token_s),
                )
                for batch, token_s in ((n, step_s * stretch / yielded) for n, step_s in times.decodes.items())
                if not traffic.tpot or token_s <= traffic.tpot.seconds
            ]
            prefills += [max(reads, key=lambda side: side.rate)] if reads else []
            decodes += [max(steps, key=lambda side: side.rate)] if steps else []
        return prefills, decodes

    def _largest_busy_share(self, side: PoolSide) -> float:
        """The largest utilization of a prefill server with which TTFT stays within its limit.

        Waits of an M/D/1 queue have an exponential tail: P(W > t) ≈ ρ · exp(−2 (1 − ρ) t / (ρ s)), exact as ρ
        goes to 1 (Kingman 1962).
        """
        limit = self.search.traffic.ttft
        if limit is None:
            return 1.0
        late = 0.5 if limit.of == "mean" else 1 - float(limit.of[1:]) / 100
        shares = np.linspace(0.01, 0.99, 99)
        wait = shares / (2 * (1 - shares) * side.rate) * np.maximum(np.log(shares / max(late, 1e-9)), 0)
        fits = shares[side.seconds + wait <= limit.seconds]
        return float(fits.max(initial=0.01))

    def _devices(self, plan: PoolPlan, servers: Sequence[int]) -> int:
        each = (self.search.structures[side.number].split.devices for side in plan[:2])
        return sum(n * of for n, of in zip(servers, each, strict=True))

    def _cost(self, plan: PoolPlan) -> Rank:
        device = self.search.structures[plan.decode.number].device
        return plan_rank(device, self._devices(plan, plan.servers))

    def _name(self, plan: PoolPlan) -> str:
        one, two = (self.search.structures[side.number] for side in plan[:2])
        return f"pools {one.name} → {two.split}"

    def _fewest_that_meet(self, plan: PoolPlan, pools: Pools) -> PoolCandidate:
        """The plan with the fewest servers that meet the limits, starting from the closed form."""
        tried: dict[tuple[int, int], PoolCandidate] = {}

        def at(servers: tuple[int, int]) -> PoolCandidate:
            if servers not in tried:
                tried[servers] = self._simulated(plan, pools, servers)
            return tried[servers]

        def more(candidate: PoolCandidate) -> tuple[int, int] | None:
            """One twentieth more servers of the slower kind; None if they do not help or are too many."""
            trial = candidate.trial
            late = [trial.usage(i) > 1 for i in range(2)] if trial.over > 1 else [True, True]  # not stable
            first, second = (n + here * max(1, n // 20) for n, here in zip(now, late, strict=True))
            most = self.search.most
            alone = max(first, second) > LONE * max(plan.servers)
            short = most is not None and self._devices(plan, (first, second)) > most
            return None if alone or short else (first, second)

        now, least = plan.servers, self._stable_servers(plan, pools)
        while not (found := at(now)).meets:
            if (next_ := more(found)) is None:
                return found
            now = next_
        for side in (0, 1):
            while now[side] > least[side]:
                fewer = now[0] - (side == 0), now[1] - (side == 1)
                if not at(fewer).meets:
                    break
                now = fewer
        while True:
            found = replace(at(now), largest_rate=self._total_rate(plan, pools, now))
            if found.meets or found.trial.over > 1 or (next_ := more(found)) is None:
                return found
            now = next_

    def _stable_servers(self, plan: PoolPlan, pools: Pools) -> tuple[int, int]:
        """The smallest number of servers of each kind that may serve the rate, if they are faster than the
        closed form by `SLACK`.

        A transfer uses a link at both ends, so the number of links is the number of the rarer kind of
        servers.
        """
        rate = self.search.traffic.stable_rate * self.search.traffic.stretch
        links = ceil(rate * float(pools.seconds(np.array([self.search.traffic.read]))[0]))
        sides = (plan.prefill, plan.decode)
        first, second = (max(links, ceil(rate / (side.rate * SLACK)), 1) for side in sides)
        return first, second

    def _simulated(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> PoolCandidate:
        """The plan with these numbers of servers; all seeds run if the first one meets the limits.

        If there are many servers, one unit is simulated with its share of the requests. A unit has up to
        `UNIT` servers of a kind, and fewer with a random router if the number of units divides both numbers.
        """
        search = self.search
        units = gcd(*servers) if search.traffic.router == Random.name else 1
        units = max(units, ceil(max(servers) / UNIT))
        unit = -(-servers[0] // units), -(-servers[1] // units)
        traffic = self._traffic(plan, units)

        def run(seed: int, length: int) -> SeedRun:
            search.tell(self._name(plan))
            return self._run(pools, unit, replace(traffic, requests=length).alone(units, seed))

        first = run(traffic.seed, traffic.requests)
        patient = Trial((first,), traffic.limits).over <= 1
        trial = decide(run, first, traffic, traffic.requests, patient=patient)
        one, two = (search.structures[side.number] for side in plan[:2])
        means = self._closed_form(plan, pools, servers)
        return PoolCandidate(
            two,
            plan.prefill.chunk,
            plan.decode.batch,
            units,
            *means,
            search.traffic,
            trial,
            prefill=one,
            servers=unit,
            link=self.link,
            pools=pools,
        )

    def _traffic(self, plan: PoolPlan, units: int) -> Traffic:
        """The traffic with so many requests that a tenth of them takes as long to arrive as a request
        stays.
        """
        traffic = self.search.traffic
        lasts = plan.prefill.seconds + (traffic.answer - 1) * plan.decode.seconds
        return replace(traffic, requests=max(traffic.requests, ceil(10 * lasts * traffic.rate / units)))

    def _run(self, pools: Pools, unit: tuple[int, int], load: Load) -> SeedRun:
        router = self.search.traffic.router
        if ROUTERS[router].blind:
            ttft_s, tpot_s = pool_latencies(pools, load, unit, router)
        else:
            many = {"prefill_replicas": unit[0], "decode_replicas": unit[1]}
            found = pools.run(load, **many, router=router if max(unit) > 1 else None)
            ttft_s, tpot_s = found.ttft_s, found.tpot_s
        traffic = self.search.traffic
        return SeedRun.of(Latencies(traffic.steady(ttft_s), traffic.steady(tpot_s)), traffic)

    def _total_rate(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> float:
        """The largest request rate per second: the minimum over prefill servers, links and decode servers."""
        traffic, stretch = self.search.traffic, self.search.traffic.stretch
        load = pools.decode.short(traffic.spread(SATURATION))
        rates = []
        for profile, of in zip((pools.prefill, pools.decode), pools.halves(load), strict=True):
            room = profile.capacity(of.longest)
            rates.append(saturation_rate(profile.prices(), profile.policy, room, of))
        sent = float(pools.seconds(load.prompt).mean())
        least = min(servers[0] * rates[0], servers[1] * rates[1], min(servers) / sent if sent else inf)
        return least / stretch

    def _closed_form(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> tuple[float, float]:
        """Mean TTFT, including the wait of an M/D/1 queue; and TPOT, including a part of the transfer of the
        cache.
        """
        traffic, one = self.search.traffic, plan.prefill
        busy = traffic.rate / (servers[0] * one.rate)
        wait = busy / (2 * (1 - busy) * one.rate) if busy < 1 else inf
        sent = float(pools.seconds(np.array([traffic.read]))[0])
        return one.seconds + wait, plan.decode.seconds + sent / (traffic.answer - 1)
