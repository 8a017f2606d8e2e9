"""The simulated hour of the first plan: what `simulate` says of its traffic, and what the table says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.export.plan import to_markdown
from llmir.backends.search import plan as hours
from llmir.backends.search.plan import Plans, PoolCandidate
from llmir.backends.search.traffic import LatencyLimit
from llmir.backends.simulate.result import PoolSimulation, ReplicaSimulation
from tests.flat import records

LENGTHS: dict[str, Any] = {"prompt": "lognormal:400,0.6", "generate": "uniform:20,100"}


def planned(rate: float = 3, **asked: Any) -> Plans:
    few: dict[str, Any] = {
        "max_ttft": "1s",
        "max_tpot": "30ms",
        "requests": 200,
        "hw": "l40s",
        "gpus": 4,
        **LENGTHS,
        **asked,
    }
    return llmir.plan("llama3.1-8b", **records(llmir.plan, rate=rate, **few))


def hour(found: Plans) -> hours.HourlyCost:
    assert found.hour is not None
    return found.hour


@pytest.fixture(scope="module")
def several() -> Plans:
    """A plan of several replicas, to which requests go in turn."""
    found = planned(rate=8, max_tpot="24ms")
    assert found.best is not None and found.best.replicas > 1
    return found


@pytest.mark.slow
def test_an_hour_is_what_simulate_says_of_its_traffic(several: Plans) -> None:
    best = several.best
    assert best is not None
    s = best.structure
    run = llmir.simulate(
        s.program,
        s.device,
        **records(
            llmir.simulate,
            rate=8 / best.replicas,
            burstiness=best.replicas,
            requests=round(8 * 3600 / best.replicas),
            seed=40,
            max_num_seqs=best.batch,
            max_batched_tokens=best.chunk,
            max_ttft_s=1,
            max_tpot_s=0.024,
            **LENGTHS,
        ),
    )
    told = hour(several).to_dict()
    for name, seconds in (("ttft_s", run.ttft_s), ("tpot_s", run.tpot_s)):
        each = [np.mean(seconds), *np.percentile(seconds, [50, 90, 99]), seconds.max()]
        assert [*told[name].values()] == pytest.approx(list(map(float, each)), rel=1e-11, abs=0)
    assert told["within"] == run.goodput_share
    assert told["longest_queue_s"] == pytest.approx(run.queue_s.max(), rel=1e-9, abs=0)
    assert (told["most_blocks"], told["preemptions"]) == (run.most_blocks, run.preemptions.sum())
    assert told["seed"] not in several.seeds and told["simulated"]["requests"] == len(run.load)


def test_requests_and_tokens_of_an_hour_are_those_of_all_replicas(several: Plans) -> None:
    """Answers have 60 tokens on average, by a law whose mean is known."""
    told = hour(several).to_dict()
    assert told["requests"] == 8 * 3600
    assert told["output_tokens"] == pytest.approx(60 * told["requests"], rel=0.02)
    assert told["part"] == 1


@pytest.mark.slow
def test_what_decodes_by_steps_is_what_decodes_by_requests(several: Plans) -> None:
    """Little's law with both sides counted apart: sequences of each step, and the stay of each request."""
    run = hour(several).simulation
    steps = float(run.events["time_s"] @ run.events["decodes"])
    assert not run.preemptions.any()
    assert steps == pytest.approx(float((run.end_s - run.first_s).sum()), rel=1e-9, abs=0)
    per_s = len(run.load) / run.duration_s
    mean = per_s * float((run.end_s - run.arrival_s).mean())
    assert several.best and mean == pytest.approx(several.best.in_flight, rel=0.05)


def test_most_that_wait_are_counted_one_by_one(several: Plans) -> None:
    run, waiting, most = hour(several).simulation, 0, 0
    events = [(time, 1) for time in run.arrival_s] + [(time, -1) for time in run.start_s]
    for _, change in sorted(events):  # at equal times who is read goes first
        waiting += change
        most = max(most, waiting)
    assert hour(several).most_waiting == most > 0


@pytest.mark.slow
def test_replicas_that_a_router_looks_at_are_simulated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "MAX_REQUESTS_OF_SERVERS", 30_000)
    found = hour(planned(rate=8, max_tpot="24ms", router="least-loaded"))
    assert isinstance(found.simulation, ReplicaSimulation) and found.replicas > 1
    assert len(found.simulation.replicas) == found.replicas == found.candidate.replicas
    assert found.output_tokens == found.simulation.made.sum() and found.requests == 8 * 3600


@pytest.mark.slow
def test_pools_have_an_hour_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "MAX_REQUESTS_OF_SERVERS", 500)
    asked: dict[str, Any] = {
        "rate": 40,
        "prompt": 2000,
        "generate": 100,
        "max_ttft": "0.5s",
        "max_tpot": "9ms",
    }
    plans = planned(hw="h100-sxm", link="nvlink", gpus=16, **asked)
    found, best = hour(plans), plans.best
    assert isinstance(best, PoolCandidate) and isinstance(found.simulation, PoolSimulation)
    assert best.pools is not None
    many = dict(zip(("prefill_replicas", "decode_replicas"), best.servers, strict=True))
    load = replace(plans.traffic, requests=500).alone(best.replicas, 40)
    run = best.pools.run(load, router="round-robin" if max(best.servers) > 1 else None, **many)
    assert found.times["ttft"] == pytest.approx(run.ttft_s, rel=1e-12, abs=0)
    assert found.times["tpot"] == pytest.approx(run.tpot_s, rel=1e-12, abs=0)
    assert found.output_tokens == found.requests * 100
    assert found.part == pytest.approx(500 * best.replicas / (40 * 3600))


@pytest.mark.slow
def test_a_part_of_an_hour_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "MOST", 1080)
    found = planned()
    assert hour(found).part == 0.1 and hour(found).output_tokens == pytest.approx(60 * 3 * 3600, rel=0.05)
    said = " ".join(str(found).split())
    assert (
        "one hour of traffic: 10,800 requests" in said
        and "its 1,080 requests, the first 10% of the hour (seed 40)" in said
    )


@pytest.mark.slow
def test_an_hour_that_misses_a_limit_says_so(several: Plans) -> None:
    """It does not decide: the plan is the first still. Nothing is said where limits are met."""
    best = several.best
    assert best is not None
    loose = replace(several.traffic, tpot=LatencyLimit(0.04))
    calm = str(replace(several, ranked=(replace(best, traffic=loose),), traffic=loose))
    assert "in this hour" not in calm and "all requests meet all limits" in " ".join(calm.split())
    times = hour(several).times["ttft"]
    most = float(np.percentile(times, 90))
    traffic = replace(loose, ttft=LatencyLimit(most))
    tight = replace(several, ranked=(replace(best, traffic=traffic),), traffic=traffic)
    late = int((times > most).sum())
    said = " ".join(str(tight).split())
    assert f"% of requests meet all limits, {late:,} do not" in said
    assert "in this hour TTFT p99 is " in said
    assert tight.to_dict()["hour"]["missed"] == {"ttft": pytest.approx(float(np.percentile(times, 99)))}
    assert "in this hour TTFT p99 is " in to_markdown(tight)


def test_an_hour_without_room_says_so(several: Plans) -> None:
    """Of a server whose caches hold less than in the search, where no request may be so long either."""
    best = several.best
    assert best is not None
    s = best.structure
    small = llmir.server(s.program, s.device, memory=llmir.Memory(memory_utilization=0.2))
    none = replace(several, server=small)
    assert "no hour is simulated: does not fit: " in " ".join(str(none).split())
    assert none.to_dict()["hour"]["error"].startswith("does not fit: ")


def test_without_a_plan_there_is_no_hour() -> None:
    found = planned(gpus=1, max_tpot="2ms")
    assert found.best is None and found.hour is None and found.to_dict()["hour"] is None
    assert "one hour of traffic:" not in str(found)
