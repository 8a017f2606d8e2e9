"""Replicas behind a router: against a plain simulator, against one server, and as a queue of many servers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.simulate.cluster import RunningReplicas, run_replicas, serve
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.result import ReplicaSimulation
from llmir.backends.simulate.router import LEAD, ROUTERS, PrefixAware
from llmir.backends.simulate.server import Capacity, Policy, RequestTimeline, Server
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.errors import InputError
from llmir.cli.main import cli
from tests.flat import records

from .naive_cluster import World
from .serving_cases import ROOM, Case, Toy, alike, cases, in_use, journeys, left, load, plain, requests
from .test_simulation import MODEL


def served(
    replicas: int, router: str, load: Load, capacity: Capacity, fills: Policy
) -> tuple[RunningReplicas, RequestTimeline]:
    course = RequestTimeline(load.arrival_s.tolist())
    first = Server(StepTimes(Toy()), fills, capacity, load, course)
    return run_replicas(first, ROUTERS[router](replicas, load, capacity), load), course


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 3), st.sampled_from(["round-robin", "least-loaded"]))
def test_it_is_the_plain_simulator(case: Case, replicas: int, router: str) -> None:
    fills, load, capacity = case
    reads, naive = requests(load, capacity.block), [plain(fills, capacity) for _ in range(replicas)]
    ways = journeys(load, reads)
    World(naive, least=router == "least-loaded").run(ways, load.users, load.apart_s)
    found, course = served(replicas, router, load, capacity, fills)
    assert found.place == [j.sender for j in ways]
    alike(course, reads)
    assert found.unanswered == [0] * replicas
    for server, one in zip(found.servers, naive, strict=True):
        in_use(server, one)
        left(server)


@settings(max_examples=50, deadline=None)
@given(cases(), st.sampled_from(["round-robin", "least-loaded"]))
def test_one_replica_is_the_server(case: Case, router: str) -> None:
    fills, load, capacity = case
    one = serve(StepTimes(Toy()), fills, capacity, load).course
    _, course = served(1, router, load, capacity, fills)
    assert course.end_s == pytest.approx(one.end_s, rel=1e-12, abs=0)
    assert course.preemptions == one.preemptions


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(2, 4))
def test_in_turn_replicas_are_independent_servers(case: Case, replicas: int) -> None:
    fills, load, capacity = case
    load = replace(load, users=None, sessions=None, think_s=None, arrival_s=np.sort(load.arrival_s))
    _, course = served(replicas, "round-robin", load, capacity, fills)
    for number in range(min(replicas, len(load))):
        mine = np.arange(len(load)) % replicas == number
        alone = serve(StepTimes(Toy()), fills, capacity, load.only(mine)).course
        assert np.array(course.end_s)[mine] == pytest.approx(alone.end_s, rel=1e-12, abs=0)
        assert np.array(course.first_s)[mine] == pytest.approx(alone.first_s, rel=1e-12, abs=0)
        assert np.array(course.preemptions)[mine].tolist() == alone.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0.3, 0.9, 0.99])
def test_least_loaded_joins_the_shortest_queue(busy: float) -> None:
    """One sequence at a time and equal prompts: each replica is a queue with a fixed service time."""
    rng, replicas = np.random.default_rng(3), 5
    service = float(Toy()(0, (), [(1000, 0)]))
    arrival = np.cumsum(rng.exponential(service / busy / replicas, 4000))
    one = Capacity(blocks=10_000, block=16, tokens=4000, sequences=1)
    same = np.full(len(arrival), 1000)
    _, course = served(replicas, "least-loaded", load(same, np.ones(len(same)), arrival), one, Vllm())
    queues: list[list[float]] = [[] for _ in range(replicas)]  # ends, as they will be
    starts = []
    for now in arrival:
        lengths = [sum(end > now for end in queue) for queue in queues]
        queue = queues[int(np.argmin(lengths))]
        starts.append(max(now, queue[-1]) if queue else now)
        queue.append(starts[-1] + service)
    assert course.start_s == pytest.approx(starts, rel=1e-12, abs=0)


def conversations(talks: int, turns: int, rng: np.random.Generator) -> Load:
    """Prompts that go on where the same conversation's last one was, in any order of conversations."""
    order = rng.permutation(np.repeat(np.arange(talks), turns))
    turn = [int((order[:i] == talk).sum()) for i, talk in enumerate(order)]
    hashes = tuple(
        tuple(1000 * int(talk) + i for i in range(4 * (n + 1))) for talk, n in zip(order, turn, strict=True)
    )
    prompt = np.array([512 * len(own) + 20 for own in hashes])
    arrival = np.cumsum(rng.exponential(1.0, len(order)))
    return replace(load(prompt, np.full(len(order), 20), arrival), hashes=hashes)


def test_prompts_go_where_their_prefix_was_read() -> None:
    given_load = conversations(20, 8, np.random.default_rng(5))
    share = {}
    for router in ("round-robin", "least-loaded", "prefix-aware"):
        found, _ = served(4, router, given_load, ROOM, Vllm())
        share[router] = sum(found.servers[0].cached) / int(given_load.prompt.sum())
        if router == "prefix-aware":
            talk = [own[0] for own in given_load.hashes]
            assert len({*zip(talk, found.place, strict=True)}) == 20  # each conversation at one replica
            assert len(set(found.place)) == 4
    one, _ = served(1, "round-robin", given_load, ROOM, Vllm())
    whole = sum(one.servers[0].cached) / int(given_load.prompt.sum())
    assert max(share["round-robin"], share["least-loaded"]) < 0.6 * whole
    assert share["prefix-aware"] == pytest.approx(whole, rel=1e-12, abs=0)


def test_a_replica_that_is_far_ahead_gets_no_more() -> None:
    given_load = replace(load([1100] * 3, [5] * 3), hashes=((1, 2),) * 3)
    router = PrefixAware(2, given_load, ROOM)
    first = router.choose(0, [0, 0])
    others = [LEAD + (replica == first) for replica in range(2)]
    assert router.choose(1, others) == first
    assert router.choose(2, [(LEAD + 1) * (replica == first) for replica in range(2)]) == 1 - first


def test_a_replica_that_nothing_was_sent_to_has_figures() -> None:
    traffic = llmir.Traffic(rate=1, requests=2, prompt=8, generate=3)
    found = llmir.simulate(MODEL, "h100-sxm", traffic, servers=llmir.Servers(replicas=3))
    idle = found.replicas[2]
    assert "0 requests" in repr(idle)
    assert repr(idle) in repr(found)
    assert (idle.rate, idle.load.rate, idle.load.longest, idle.duration_s) == (None, None, 0, 0)
    assert idle.to_dict()["requests"] == 0


def test_the_whole_is_made_of_its_replicas() -> None:
    asked: dict[str, Any] = {"prompt": "uniform:10,900", "generate": "uniform:1,90", "requests": 120}
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        **records(
            llmir.simulate, rate=60, **asked, replicas=3, router="least-loaded", warm_up=10, max_ttft_s=0.03
        ),
    )
    assert isinstance(found, ReplicaSimulation)
    assert found.router == "least-loaded"
    assert sum(len(one.load) for one in found.replicas) == 120
    assert sum(one.warm_up for one in found.replicas) == 10
    for number, one in enumerate(found.replicas):
        assert np.array_equal(one.end_s, found.end_s[found.place == number])
        assert np.array_equal(one.load.prompt, found.load.prompt[found.place == number])
    assert found.steps == sum(one.steps for one in found.replicas)
    whole = replace(found, warm_up=0, replicas=tuple(replace(one, warm_up=0) for one in found.replicas))
    seconds, counts = whole._gaps
    assert counts.sum() == (found.load.generate - 1).sum()
    assert seconds @ counts == pytest.approx((found.end_s - found.first_s).sum(), rel=1e-9, abs=0)
    assert found.goodput_share == pytest.approx(float((found.ttft_s[10:] <= 0.03).mean()))
    single = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=20, **asked))
    assert found.largest_rate == pytest.approx(3 * single.largest_rate, rel=1e-12, abs=0)


def test_users_are_answered_by_any_replica() -> None:
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        llmir.Traffic(closed=7, prompt=400, generate="uniform:5,60", requests=60),
        servers=llmir.Servers(replicas=3),
    )
    changes = sorted([(t, 1) for t in found.arrival_s] + [(t, -1) for t in found.end_s])
    assert np.max(np.cumsum([by for _, by in changes])) == 7
    assert {*found.place.tolist()} == {0, 1, 2}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"router": "least-loaded"},
            "router: least-loaded distributes requests over several replicas, but there is only 1",
        ),
        (
            {"replicas": 2, "router": "any"},
            "router: expected least-loaded, prefix-aware, random or round-robin",
        ),
        ({"replicas": 2, "router": "prefix-aware"}, "router: prefix-aware needs prompts with hashes"),
        ({"replicas": 0}, "replicas: expected an integer from 1"),
    ],
)
def test_what_no_router_can_do_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=1, **asked))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_command_says_what_the_api_says(tmp_path: Any) -> None:
    asked = "--rate 9 --requests 60 --prompt uniform:1,500 --generate 40 --replicas 3 --router least-loaded"
    files = {name: tmp_path / f"{name}.csv" for name in ("requests", "steps")}
    out = [word for name, path in files.items() for word in (f"--{name}-out", str(path))]
    runner = CliRunner()
    printed = runner.invoke(cli, ["serve-sim", "llama3.1-8b", *asked.split(), *out, "--format", "json"])
    found = llmir.simulate(
        MODEL,
        "h100-sxm",
        llmir.Traffic(rate=9, requests=60, prompt="uniform:1,500", generate=40),
        servers=llmir.Servers(replicas=3, router="least-loaded"),
    )
    assert json.loads(printed.stdout[: printed.stdout.rindex("}") + 1]) == json.loads(
        json.dumps(found.to_dict())
    )
    for name, path in files.items():
        rows = [line.split(",") for line in path.read_text().splitlines()]
        assert rows[0][-1] == "replica"
        assert {row[-1] for row in rows[1:]} == {"0", "1", "2"}, name
    for form in ("table", "csv", "md", "html"):
        shown = runner.invoke(cli, ["serve-sim", "llama3.1-8b", *asked.split(), "--format", form])
        assert shown.exit_code == 0
        assert "ttft" in shown.output.lower()
        assert form == "csv" or "least-loaded" in shown.output
