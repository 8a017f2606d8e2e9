"""`make invariants`: random loads on small servers, and what holds after each step of each of them.

    python -m tests.backends.simulate.invariants 100000

A load is of one of the kinds of `systems`: one server or several behind a router, prefill and decode
servers, ranks, pipeline stages, drafts, windows, states, shared prefixes, sessions, closed loops and clients
who leave. Most have so few KV blocks that requests are preempted. `AuditedServer` checks each step against a
ledger of its own; `audit` runs a load and checks the whole run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from llmir.backends.memory.caches import pages
from llmir.backends.simulate.cluster import RunningReplicas, run_pools, run_replicas, serve
from llmir.backends.simulate.load import Array, Load
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.router import FIRST, ROUTERS
from llmir.backends.simulate.server import FOREVER, LOG, Capacity, Policy, RequestTimeline, Server, token_gaps
from llmir.backends.simulate.server_kinds import (
    SpeculativeServer,
    decode_load,
    decode_server_of,
    server_of,
)
from llmir.backends.simulate.step_times import StepTimes

from .serving_cases import Case, Toy, cases, left

PREEMPT = 0.3  # of the loads, at least
CHUNK = 500  # loads that hypothesis draws from one seed

# Loads and servers


class System(NamedTuple):
    """A load and the servers that it is given to; `seconds` a token on the link of prefill servers."""

    kind: str
    fills: Policy
    load: Load
    room: Capacity
    window: int = 0
    replicas: tuple[int, int] = (1, 1)
    router: str = "round-robin"
    link_s: float = 0.0

    @property
    def prices(self) -> StepTimes:
        """Of steps."""
        bend = 0.0 if self.room.micro_batches > 1 else 1e-4
        window = self.window if self.load.drafts is None else 0
        return StepTimes(Toy(window, bend, self.room.micro_batches))


ENGINES = ("vllm", "vllm", "vllm", "v0", "v0", "sglang", "trtllm")  # the last one never preempts
KINDS = ("server", "groups", "drafts", "abreast", "replicas", "pools")


@st.composite
def systems(draw: Any) -> System:
    """Loads on servers of each kind; in most there are hardly more blocks than the longest request needs."""
    kind = draw(st.sampled_from(KINDS))
    groups = kind == "groups" or (kind in ("drafts", "pools") and draw(st.booleans()))
    case: Case = draw(cases(kind != "abreast" and not groups, groups, least=4, engines=ENGINES))
    fills, load, room = case
    if load.users is None:
        load = replace(load, arrival_s=load.arrival_s * draw(st.sampled_from([1.0, 0.1, 0.1])))
    if kind == "abreast":
        fills = replace(fills, patience=0) if isinstance(fills, Trtllm) else fills
        room = room._replace(ranks=draw(st.integers(1, 3)), micro_batches=draw(st.integers(1, 4)))
    if kind == "drafts" or (kind == "pools" and draw(st.booleans())):
        tokens = draw(st.integers(1, 6))
        rows, chance = tokens + 1, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
        each = max(room.tokens, rows + draw(st.integers(0, 20)))
        more = {"tokens": each, "sequences": min(room.sequences, each // rows), "rows": rows}
        room = room._replace(**more)
        load = replace(load, drafts=(tokens, chance), seed=draw(st.integers(0, 9)))
    elif kind == "pools" and draw(st.booleans()):
        room = room._replace(micro_batches=draw(st.integers(2, 3)))
    if draw(st.sampled_from([True] * 6 + [False])):
        room = _tight(draw, load, room)
    elif room.rows > 1:
        room = room._replace(blocks=room.blocks + _most(load, room))
    many = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    routers = [name for name in ROUTERS if load.shares or name != "prefix-aware"]
    router = draw(st.sampled_from(routers))
    window = draw(st.sampled_from([0, 7, 30]))
    return System(kind, fills, load, room, window, many, router, draw(st.sampled_from([0.0, 1e-5, 1e-3])))


def _most(load: Load, room: Capacity) -> int:
    """Blocks that the longest request needs for itself."""
    tokens, ahead = load.longest + room.rows, (1 + room.overlap) * room.tokens
    groups = room.groups
    own = int(pages(groups, tokens, tokens + ahead)) if groups else -(-tokens // room.block)
    return own + room.ahead_blocks


def _tight(draw: Any, load: Load, room: Capacity) -> Capacity:
    """Room for one request and a little more, and for as many sequences as there are requests."""
    least = room.ranks * (_most(load, room) + 1 + room.state)
    few = st.sampled_from([0, 0, 0, 1, 2, least // 4])
    most = max(1, min(len(load), room.tokens // room.rows))
    sequences = draw(st.sampled_from([most, most, max(1, most // 2)]))
    return room._replace(blocks=least + least // 50 + draw(few), sequences=sequences)


# What holds after each step


class AuditedServer(Server):
    """Compares a server with a ledger after each step; a mixin in front of each kind of server."""

    def _reset(self) -> None:
        super()._reset()
        self.inside: dict[int, float] = {}  # requests that came and have not ended, and when they came
        self.late_ones: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.spans: list[tuple[float, int]] = []  # the start of each step, and the requests inside
        self.comes_s: list[tuple[int, float]] = []  # the number of steps so far, and a time
        self.leaves_s: list[tuple[int, float]] = []
        self.over_s = 0.0

    def come(self, request: int, time_s: float) -> None:
        """Each request comes once."""
        assert request not in self.inside and self.course.end_s[request] == FOREVER, "it came twice"
        assert time_s >= self.course.arrival_s[request], "it came before it arrived"
        super().come(request, time_s)
        self.inside[request] = time_s
        self.comes_s.append((len(self.spans), time_s))
        if request in self.late:
            self.late_ones.add(request)

    def admit(self, request: int, rank: int, new: int) -> None:
        """It waits, has come, and there is a free place for it."""
        assert request in self.inside and request not in self.running, "it runs twice"
        assert self.inside[request] <= self.now, "it is read before it comes"
        assert len(self.running) < self.capacity.sequences, "too many sequences"
        assert 0 <= self.cached[request] < self.to_read[request], "the last token is always read"
        super().admit(request, rank, new)

    def schedule_chunk(self, request: int, done: int, new: int) -> None:
        """Tokens are read in order, each once."""
        assert done == self.reading.get(request, self.cached[request]), "tokens are read out of order"
        assert 1 <= new <= self.to_read[request] - done, "more tokens than the prompt has"
        assert self.policy.chunked or new == self.to_read[request] - done, "it is not read whole"
        super().schedule_chunk(request, done, new)
        self.counts["read"] += new
        assert self.blocks.free >= 0, "blocks are taken twice"

    def _finish(self, request: int) -> None:
        self._leaves(request)
        super()._finish(request)

    def _leaves(self, request: int) -> None:
        assert self.course.end_s[request] == FOREVER, "it ended twice"
        assert self.now >= self.inside.pop(request), "it ends before it comes"
        self.leaves_s.append((len(self.spans), self.now))

    def _give_up(self) -> None:
        answered = self.answered

        def leave(request: int) -> None:
            assert self.over(request, self.now), "it is given up too early"
            del self.inside[request]
            self.leaves_s.append((len(self.spans), self.now))
            if answered:
                answered(request)

        self.answered = leave
        super()._give_up()
        self.answered = answered
        self.check()

    def _prefill_step(self) -> None:
        self._begin()
        ranks = [0] * self.capacity.ranks
        for request, (new, _) in self.chunks.items():
            ranks[self.running[request]] += new
        mixed = self.policy.mixes and self.decoding
        rows = self.capacity.rows * -(-self.decoding // self.lanes) if mixed else 0
        assert max(ranks) + rows <= self.capacity.tokens, "more tokens than a step has"
        super()._prefill_step()
        self._end()

    def _decode_steps(self, once: bool) -> None:
        before = len(self.log)
        self._begin()
        super()._decode_steps(once)
        if len(self.log) > before:
            self._end()
        else:  # it preempted instead
            self.spans.pop()
            self.check()

    def _begin(self) -> None:
        """Counts who is there when a step begins."""
        lost = self.inside.keys() - {*self.waiting, *self.running, *self.late}
        assert lost <= self.late_ones, "a request is lost"  # who came late waits from the next step on
        self.late_ones -= lost
        assert len(self.waiting) == len({*self.waiting}), "it waits twice"
        assert not self.running.keys() & {*self.waiting}, "it waits and runs"
        there = len(self.waiting) + len(self.running) + len(self.late) + len(lost)
        assert there == len(self.inside), "a request that ended is there"
        self.spans.append((self.now, there))

    def _end(self) -> None:
        """A step begins when the one before it is over, and ends later."""
        row = np.frombuffer(self.log, offset=len(self.log) - 8 * len(LOG))
        start_s, time_s = row[0], row[1]
        assert start_s >= self.over_s * (1 - 1e-12), "two steps at once"
        assert time_s > 0, "a step takes no time"
        self.over_s = start_s + time_s
        assert self.now == self.over_s, "a step ends at another time"
        assert 0 <= row[LOG.index("blocks")] <= self.capacity.blocks, "more blocks than there are"
        self.check()

    def check(self) -> None:
        """Blocks in use are those of the requests that run; sums are those over them."""
        running, reading = self.running, self.reading
        decoding = {request: end for end, request in self.ends}
        passing = {request for _, request in getattr(self, "passing", ())}
        assert len(decoding) == len(self.ends) == self.decoding
        groups = [*reading, *decoding, *passing]
        assert sorted(groups) == sorted(running), "who runs reads or decodes"
        assert [*running.values()].count(0) == self.on_ranks[0]
        assert sum(self.on_ranks) == len(running) <= self.capacity.sequences
        assert self.demand == sum(self.final[request] for request in running)
        contexts = {r: self.written[r] - self.left(r, end) for r, end in decoding.items()}
        assert self.kept == sum(contexts.values()), "cached tokens of all that decode"
        tokens = {**contexts, **reading, **{request: self.to_read[request] for request in passing}}
        held = sum(self._blocks_of(request, count) for request, count in tokens.items())
        held += self.capacity.state * len(running)
        if self.sharing is not None:
            held += self._shared(tokens)
        assert self.blocks.total - self.blocks.free == held, "allocated is not freed and in use"
        assert 0 <= self.blocks.free <= self.blocks.total == self.capacity.blocks

    def _blocks_of(self, request: int, tokens: int) -> int:
        groups, size = self.capacity.groups, self.capacity.block
        own = int(pages(groups, tokens)) if groups else -(-tokens // size)
        if isinstance(self, SpeculativeServer) and request in self.schedules:
            schedule = self.schedules[request]
            if done := self.step - schedule.step:  # slots of the drafts of its last step, too
                own = int(schedule.held[done - 1])
        assert own + self.capacity.state <= self.final[request], "more blocks than it may need"
        return own

    def _shared(self, running: dict[int, int]) -> int:
        """Blocks that others have, less those that requests count as their own."""
        sharing = self.sharing
        assert sharing is not None
        holders = Counter(each for has in sharing._has.values() for each in has)
        assert sharing._has.keys() == running.keys(), "who runs holds blocks"
        assert all(sharing.users[each] == count for each, count in holders.items())
        idle = {each for each, count in sharing.users.items() if not count}
        assert idle == sharing._idle.keys() == sharing.users.keys() - holders.keys()
        assert sharing._spare == sum(sharing.size[each] for each in idle) * sharing.pages
        shared = sum(sharing.size[each] for each in holders)
        own = sum(sharing._known[request][1] for request in running)
        return (shared - own) * sharing.pages

    def end(self) -> None:
        """Little's law, exact: requests inside, over time, are the times of all that were inside."""
        assert not self.inside and not self.busy, "a request is left"
        left(self)
        if not self.comes_s:
            return
        comes, leaves = (np.array([time_s for _, time_s in x]) for x in (self.comes_s, self.leaves_s))
        starts = np.array([comes.min() - 1, *(start for start, _ in self.spans)])
        inside = np.array([0, *(count for _, count in self.spans)])
        assert (np.diff(starts) >= 0).all(), "steps are out of order"
        ends = np.append(starts[1:], max(starts[-1], leaves.max(), comes.max()))

        def rest(times: list[tuple[int, float]]) -> float:
            """Of those who come or leave after a step began, the time until the next begins."""
            assert all(starts[step] <= time_s for step, time_s in times), "a step began without a request"
            return float(sum(ends[step] - time_s for step, time_s in times))

        area = float(inside @ (ends - starts)) + rest(self.comes_s) - rest(self.leaves_s)
        assert area == pytest.approx(float(leaves.sum() - comes.sum()), rel=1e-9, abs=1e-9), "Little's law"


@lru_cache(maxsize=16)
def audited(kind: type[Server]) -> type[Server]:
    """That kind of server, audited."""
    return type(f"Audited{kind.__name__}", (AuditedServer, kind), {})


# What holds over a run


def audit(system: System) -> bool:
    """Runs a load and checks it; whether a request was preempted."""
    return _audit_pools(system) if system.kind == "pools" else _audit_replicas(system)


def _server(kind: Any, system: System, fills: Policy, load: Load, arrival_s: Array) -> Server:
    """The server that llmir would take, audited."""
    plain = kind(system.prices, fills, system.room, load, RequestTimeline(arrival_s.tolist()))
    made = audited(type(plain))
    return made(plain.prices, fills, system.room, load, RequestTimeline(arrival_s.tolist()))


def _audit_replicas(system: System) -> bool:
    many = system.replicas[0] if system.kind == "replicas" else 1
    fills, load, room = system.fills, system.load, system.room
    first = _server(server_of, system, fills, load, load.arrival_s)
    run = run_replicas(first, ROUTERS[system.router if many > 1 else FIRST](many, load, room), load)
    check_servers(run, load)
    course = first.course
    check_requests(load, course)
    check_arrivals(load, course)
    assert sorted(run.place)[0] >= 0, "a request was sent nowhere"
    if many == 1:  # as without an audit
        found = serve(system.prices, fills, room, load)
        assert found.course.end_s == pytest.approx(course.end_s, rel=1e-9, abs=0)
        assert found.course.preemptions == course.preemptions
        assert found.most_held == first.most_held
    return sum(course.preemptions) > 0


def _audit_pools(system: System) -> bool:
    fills, load, room = system.fills, system.load, system.room
    read = replace(load, generate=np.ones_like(load.generate), asked=None, drafts=None)
    rest = decode_load(load)
    first = (
        _server(server_of, replace_load(system, read), fills, read, load.arrival_s),
        _server(decode_server_of, system, replace(fills, mixes=True), rest, np.full(len(load), FOREVER)),
    )
    name = "least-loaded" if system.router == "prefix-aware" else system.router
    names = system.router, name
    sides = zip(names, system.replicas, (read, rest), strict=True)
    routers = [ROUTERS[each](many, part, room) for each, many, part in sides]
    goes_on = load.generate > 1
    seconds = [system.link_s * int(p) if more else None for p, more in zip(load.prompt, goes_on, strict=True)]
    run = run_pools(first, (routers[0], routers[1]), load, seconds)
    check_servers(run.prefill, read)
    check_servers(run.decode, rest)
    one, two = first[0].course, first[1].course
    check_requests(read, one)
    sent, came = np.array(run.sent_s), np.array(run.came_s)
    moved = np.array(run.decode.place) >= 0
    assert (np.isfinite(sent) == moved).all() and not (moved & ~goes_on).any()
    assert (sent[moved] >= np.array(one.end_s)[moved]).all(), "a cache is sent before it is made"
    took = np.array([s or 0.0 for s in seconds])
    assert came[moved] == pytest.approx((sent + took)[moved], rel=1e-12, abs=0)
    for side in (run.prefill.place, run.decode.place):
        for place in set(side) - {-1}:
            mine = moved & (np.array(side) == place)
            order = np.argsort(sent[mine], kind="stable")
            assert (sent[mine][order][1:] >= came[mine][order][:-1]).all(), "a link carries two caches"
    check_requests(rest.only(moved), two, moved)
    stays = load.stays_s is not None
    done = np.where(moved, np.array(two.made) + 1, np.array(one.made))
    assert stays or (done == load.generate).all(), "tokens are lost between servers"
    check_arrivals(load, one, np.where(moved, two.end_s, one.end_s))
    return sum(one.preemptions) + sum(two.preemptions) > 0


def replace_load(system: System, load: Load) -> System:
    """The same servers with another load; one without drafts has one row of a sequence in a step."""
    return system._replace(load=load, room=system.room._replace(rows=1))


def check_servers(run: RunningReplicas, load: Load) -> None:
    """Nothing is left on any server; each token was made by one step."""
    assert run.unanswered == [0] * len(run.servers)
    place = np.array(run.place)
    course = run.servers[0].course
    for number, server in enumerate(run.servers):
        assert isinstance(server, AuditedServer)
        server.end()
        mine = place == number
        assert len(server.comes_s) == len(server.leaves_s) == mine.sum(), "requests are lost or doubled"
        log = dict(zip(LOG, server.events.T, strict=True))
        assert log["new"].sum() == server.counts["read"], "tokens that steps read"
        assert server.most_held <= server.capacity.blocks
        decoded = float(log["steps"] @ log["decodes"])
        firsts = int((np.array(course.first_s)[mine] < FOREVER).sum())
        made = int(np.array(course.made)[mine].sum()) - firsts - len(server.course.resumed_s)
        if load.drafts is None:
            assert decoded == made, "tokens are made by steps, each once"
            joined, resumed = np.array(server.course.joined_s), np.array(server.course.resumed_s)
            seconds, counts = token_gaps(server.events, joined, resumed)
            assert counts.sum() == made + len(resumed)
            assert (seconds[counts > 0] > 0).all(), "tokens of a request are in order"
        else:
            assert decoded <= made <= decoded * server.capacity.rows, "a step yields some tokens"
    prefix = np.array(run.servers[0].prefix_tokens)
    assert ((prefix >= 0) & (prefix < load.prompt)).all(), "hits are tokens of prompts"


def check_requests(load: Load, course: RequestTimeline, mine: Array | None = None) -> None:
    """Causality: a request arrives, is read, has its first token and ends, in this order."""
    names = ("arrival_s", "start_s", "first_s", "end_s", "made")
    columns = [np.array(getattr(course, name)) for name in names]
    arrival, start, first, end, made = columns if mine is None else [column[mine] for column in columns]
    assert np.isfinite(end).all(), "a request never ended"
    assert (arrival <= end).all() and (made >= 0).all()
    whole = made == load.generate
    assert load.stays_s is not None or whole.all(), "a request ended without its tokens"
    begun, got = start < FOREVER, first < FOREVER
    assert (got | ~whole).all() and (begun | ~got).all()
    assert (arrival[begun] <= start[begun]).all(), "a prompt is read before it arrives"
    assert (start[got] < first[got]).all(), "a token comes before a step"
    assert (first[got] <= end[got]).all(), "a request ends before its first token"
    assert (first[whole & (load.generate > 1)] < end[whole & (load.generate > 1)]).all()
    assert (got == (made > 0)).all(), "tokens without a first one"


def check_arrivals(load: Load, course: RequestTimeline, end_s: Any = None) -> None:
    """Requests arrive as the load says: at times, after thinking, or when a user is answered."""
    arrival, end = np.array(course.arrival_s), np.array(course.end_s if end_s is None else end_s)
    if load.users is not None:
        changes = sorted([*((t, -1) for t in end), *((t, 1) for t in arrival)])
        assert np.cumsum([by for _, by in changes]).max() <= load.users, "more requests than users"
        return
    first = load.after < 0
    assert (arrival[first] == load.arrival_s[first]).all()
    if load.think_s is not None:
        waited = (arrival - end[load.after])[~first]
        assert waited == pytest.approx(load.think_s[~first], rel=1e-9, abs=1e-9), "a turn is too early"


# Many loads


def run(loads: int, first: int = 0) -> tuple[Counter[str], Counter[str]]:
    """So many random loads: how many there were of each kind, and how many of these preempted.

    The first load that breaks an invariant is made small and raised.
    """
    tried: Counter[str] = Counter()
    preempted: Counter[str] = Counter()
    start = time.monotonic()
    number = first
    while tried.total() < loads:
        many = min(CHUNK, loads - tried.total())

        @seed(number)
        @settings(max_examples=many, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(systems())
        def each(system: System) -> None:
            tried[system.kind] += 1
            preempted[system.kind] += audit(system)

        each()
        number += 1
        if number % 10 == 0:
            share = preempted.total() / tried.total()
            took = f"{time.monotonic() - start:.0f} s"
            print(f"{tried.total():,} loads, {100 * share:.0f}% preempted, {took}", flush=True)
    return tried, preempted


def main() -> int:
    """0 if no invariant is broken and enough loads preempt."""
    parser = argparse.ArgumentParser(prog="python -m tests.backends.simulate.invariants", description=__doc__)
    parser.add_argument("loads", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tried, preempted = run(asked.loads, asked.seed)
    for kind in KINDS:
        print(f"{kind:10} {tried[kind]:8,} loads, {preempted[kind]:8,} preempted")
    share = preempted.total() / max(1, tried.total())
    print(f"{'all':10} {tried.total():8,} loads, {100 * share:.0f}% preempted, 0 violations")
    if share < PREEMPT:
        print(f"fewer than {100 * PREEMPT:.0f}% preempted")
    return int(share < PREEMPT)


if __name__ == "__main__":
    sys.exit(main())
