"""Loads, policies and prices on which simulators are compared with one that is plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from llmir.backends.memory.caches import CacheGroup
from llmir.backends.simulate.load import Load, session_turns
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.server import LOG, POLICIES, Capacity, Policy, RequestTimeline, Server
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Min

from .naive_cluster import Journey, World
from .naive_pipeline import Pipeline
from .naive_server import Naive, Request
from .naive_trtllm import Patient


class Toy:
    """A price of no engine: sums, products, and a bend; where there is a window, less is read."""

    def __init__(self, window: int = 0, bend: float = 1e-4, stages: int = 1) -> None:
        self.functions = (C, Min.of(C, window)) if window else (C,)
        self.bend, self.stages = bend, stages

    def __call__(self, decodes: float, sums: Any, chunks: Any) -> Any:
        read = sum(2e-5 * new + 1e-8 * new * (cached + new) for new, cached in chunks)
        seen = sum(sums) / len(sums) if decodes else 0
        return 3e-3 + 1e-5 * decodes + np.maximum(3e-6 * seen, self.bend * decodes) + read

    def micro_batch(self, decodes: float, sums: Any, ranks: Any) -> tuple[float, ...]:
        """The slowest of several ranks decides, whose experts see all tokens; stages are not alike."""
        tokens = sum(new for chunks in ranks for new, _ in chunks) if len(ranks) > 1 else 0
        whole = float(max(self(decodes, sums, chunks) for chunks in ranks)) + 1e-5 * tokens
        each = range(1, self.stages + 1)
        return (whole, *(whole * i / sum(each) for i in each))

    def flow(self, contexts: list[int], parts: int, ranks: Any) -> tuple[float, ...]:
        """Seconds on each stage, of one of so many parts of sequences."""
        return self.micro_batch(len(contexts) / parts, [x / parts for x in self.sums(contexts)], ranks)[1:]

    def sums(self, contexts: list[int]) -> list[int]:
        return [sum(int(Binding(C=c)(f)) for c in contexts) for f in self.functions]

    def naive(self, contexts: list[int], ranks: Any) -> float:
        """The same of sequences one by one; linear between whole mean contexts where nothing is read."""
        kept, decodes = sum(contexts), len(contexts)
        if any(ranks) or len(self.functions) > 1 or not kept % decodes:
            return self.micro_batch(decodes, self.sums(contexts), ranks)[0]
        below = kept // decodes * decodes
        low, high = self(decodes, [below], ()), self(decodes, [below + decodes], ())
        return float(low + (high - low) * (kept - below) / decodes)


def load(prompt: Any, generate: Any, arrival_s: Any = None, cached: Any = None, users: Any = None) -> Load:
    counts = [np.asarray(x, dtype=int) for x in (prompt, generate)]
    zeros = np.zeros(len(counts[0]), dtype=int)
    comes = zeros.astype(float) if arrival_s is None else np.asarray(arrival_s, dtype=float)
    return Load(*counts, zeros if cached is None else np.asarray(cached, dtype=int), comes, users)


def policy(engine: str, chunked: bool, **more: Any) -> Policy:
    old = Vllm(chunked=False, mixes=False, watermark=0.01)
    return replace(old, **more) if engine == "v0" else POLICIES[engine](chunked=chunked, **more)


Case = tuple[Policy, Load, Capacity]


ENGINES = ("vllm", "v0", "atom", "sglang", "trtllm")


@st.composite
def policies(draw: Any, engines: Sequence[str] = ENGINES) -> Policy:
    engine = draw(st.sampled_from(engines))
    more: dict[str, Any] = {"ahead": draw(st.booleans())}
    if engine == "vllm":
        more["cautious"] = draw(st.booleans())
    if engine == "sglang" and draw(st.booleans()):
        more = {"receive_interval": draw(st.integers(2, 40))}
    if engine == "trtllm" and draw(st.booleans()):
        more |= {"patience": draw(st.integers(1, 9)), "enough": draw(st.floats(0, 1))}
    return policy(engine, engine != "v0" and draw(st.booleans()), **more)


@st.composite
def groups_of_layers(draw: Any) -> tuple[CacheGroup, ...]:
    """Groups that keep all tokens, or a window of them, in blocks of one size or several."""
    each = st.tuples(st.sampled_from([1, 4, 16]), st.integers(1, 3), st.none() | st.integers(0, 40))
    return tuple(CacheGroup(*group) for group in draw(st.lists(each, min_size=1, max_size=3)))


@st.composite
def cases(
    draw: Any, shares: bool = True, groups: bool = False, least: int = 1, engines: Sequence[str] = ENGINES
) -> Case:
    """Open loads, and those of users and of sessions; clients may leave, and engines have little room."""
    fills = draw(policies(engines).filter(lambda fills: not groups or fills.name != "sglang"))
    count = draw(st.integers(least, 12))
    lists = lambda each: st.lists(each, min_size=count, max_size=count)  # noqa: E731
    prompt, generate = draw(lists(st.integers(1, 40))), draw(lists(st.integers(1, 40)))
    kind = draw(st.sampled_from(["", "cached", "hashes", "turns"] if shares else ["", "cached"]))
    cached = [draw(st.integers(0, p - 1)) for p in prompt] if kind == "cached" else None
    hashes: tuple[tuple[int, ...], ...] = ()
    if kind == "hashes":  # prompts of the first ids of one of two conversations
        each = st.tuples(st.integers(0, 1), st.integers(0, 4), st.sampled_from([1, 16, 37, 300]))
        talks = [draw(each) for _ in prompt]
        last = [1000 * (10 * t + n + 1) + more for t, n, more in talks]  # no other's: it covers `more` tokens
        hashes = tuple(
            (*(10 * t + i for i in range(n)), end) for (t, n, _), end in zip(talks, last, strict=True)
        )
        prompt = [512 * n + more for _, n, more in talks]
    arrival = np.cumsum(draw(lists(st.floats(0, 0.1))))
    users = draw(st.none() | st.integers(1, count)) if kind != "turns" else None
    found = replace(load(prompt, generate, None if users else arrival, cached, users), hashes=hashes)
    if users and draw(st.booleans()):
        found = replace(found, apart_s=draw(st.floats(1e-4, 0.05)))
    if draw(st.booleans()):
        found = replace(found, asked=found.generate + np.array(draw(lists(st.integers(0, 9)))))
    if draw(st.booleans()):
        found = replace(found, timeout_s=draw(st.floats(0.004, 0.4)))
    if draw(st.booleans()):
        found = replace(found, leave_s=np.array(draw(lists(st.just(np.inf) | st.floats(0.004, 0.4)))))
    if kind == "turns":
        found = session_turns(found, "uniform:1,4", draw(st.floats(1e-3, 0.1)), draw(st.integers(0, 99)))
    if found.shares and isinstance(fills, Trtllm):  # who waits may find what is read with them
        fills = replace(fills, patience=0)
    size = 1 if fills.name == "sglang" else draw(st.sampled_from([1, 4, 16]))
    least = -(-found.longest // size)
    state = draw(st.sampled_from([0, 0, 1, 7]))
    blocks = least + least // 50 + 2 + state + draw(st.integers(0, 12) | st.integers(0, 200))
    tokens = draw(st.integers(8, 64)) if fills.chunked else found.longest + draw(st.integers(0, 30))
    room = Capacity(blocks, size, tokens, draw(st.integers(1, min(tokens, 12))), state=state)
    return fills, found, draw(grouped(room)) if groups else room


@st.composite
def grouped(draw: Any, room: Capacity) -> Capacity:
    """The same room where groups of layers share the blocks."""
    found = draw(groups_of_layers())
    size = min(group.tokens for group in found)
    each = sum(-(-group.pages // group.tokens) for group in found)  # pages of a token, rounded up
    blocks = room.blocks * room.block * each + 9 * len(found)
    return room._replace(blocks=blocks, block=size, groups=found, overlap=draw(st.integers(0, 2)))


def plain(fills: Policy, room: Capacity, step: Toy | None = None, kind: type[Patient] = Patient) -> Patient:
    engine = fills.name if fills.mixes or fills.name != "vllm" else "v0"
    waits = {name: getattr(fills, name, 0) for name in ("patience", "enough")}
    step = step or Toy()
    of = partial(Pipeline, step.flow) if room.micro_batches > 1 else kind
    found = of(step.naive, engine, room, fills.chunked, fills.ahead, fills.cautious, **waits)
    found.interval = fills.receive_interval
    return found


def requests(load: Load, size: int) -> list[Request]:
    """Those of a load, for the plain simulator."""
    asked = load.generate if load.asked is None else load.asked
    columns = load.arrival_s, load.prompt, load.generate, asked, load.cached
    rows = zip(*(column.tolist() for column in columns), strict=True)
    leaves = np.full(len(load), np.inf) if load.leave_s is None else load.leave_s
    return [
        Request(
            *(number, *row, prefix(load, number, size)),
            stays=min(float(leaves[number]), load.timeout_s or np.inf),
            yields=[] if load.yields is None else load.yields(number).tolist(),
        )
        for number, row in enumerate(rows)
    ]


def prefix(load: Load, number: int, size: int) -> list[tuple[int, slice]]:
    """Hashes of a request, each with the whole blocks that it stands for."""
    hashes, covered, tokens = load.hashed(size)
    ends = [min(tokens * (i + 1), int(covered[number])) for i in range(len(hashes[number]) if hashes else 0)]
    return [(hashes[number][i], slice(tokens * i // size, end // size)) for i, end in enumerate(ends)]


def journeys(load: Load, reads: list[Request]) -> list[Journey]:
    """Their ways through servers; turns of a session come one after another."""
    found = [Journey(request) for request in reads]
    for before, j in zip(load.after.tolist(), found, strict=True):
        if before >= 0:
            assert load.think_s is not None
            j.before, j.think = found[before], float(load.think_s[j.read.number])
    return found


def naively(case: Case, step: Toy | None = None) -> tuple[Patient, list[Request]]:
    fills, load, capacity = case
    naive, reads = plain(fills, capacity, step), requests(load, capacity.block)
    World([naive]).run(journeys(load, reads), load.users, load.apart_s)
    return naive, reads


ROOM = Capacity(blocks=100_000, block=16, tokens=8192, sequences=1024)


def alike(found: RequestTimeline, reads: list[Request]) -> None:
    """Each request has the same course."""
    never = [np.inf]
    assert found.arrival_s == pytest.approx([r.arrival for r in reads], rel=1e-9, abs=0)
    assert found.preemptions == [r.preemptions for r in reads]
    assert found.start_s == pytest.approx([r.start for r in reads], rel=1e-9, abs=0)
    assert found.first_s == pytest.approx([(r.times or never)[0] for r in reads], rel=1e-9, abs=0)
    assert found.end_s == pytest.approx([r.end for r in reads], rel=1e-9, abs=0)
    assert found.made == [len(r.times) for r in reads]


def in_use(server: Server, naive: Naive) -> None:
    """As many blocks are in use at the end of each event, and never more."""
    begin, seconds, _, free = np.array(naive.log).reshape(-1, 4).T
    held = server.capacity.blocks - free
    event = dict(zip(LOG, server.events.T, strict=True))
    ends = event["start_s"] + event["time_s"]
    steps = np.searchsorted(begin + seconds, ends * (1 - 1e-9))
    assert ends == pytest.approx((begin + seconds)[steps], rel=1e-9, abs=0)
    assert event["blocks"].tolist() == held[steps].tolist()
    assert max(held, default=0) == server.most_held <= server.capacity.blocks


def left(server: Server) -> None:
    """Nothing is left: all blocks are free, nobody runs."""
    assert server.blocks.free == server.capacity.blocks
    assert (server.decoding, server.kept, server.demand, server.running, server.ends) == (0, 0, 0, {}, [])
    parts = getattr(server.blocks, "_each", [server.blocks])
    assert sum(sum(part.turns) for part in parts) == 0
