"""Plans of far too much traffic for one server: what is found, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.export.plan import reason
from llmir.backends.search import trial
from llmir.backends.search.traffic import LatencyLimit
from llmir.backends.search.trial import Latencies, Replica, SeedRun, Trial
from llmir.hw import library
from tests.flat import records


@pytest.mark.slow
def test_many_replicas_are_found_in_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand times the rate takes as many more devices, and not as many tries."""
    tries: list[int] = []
    run = Replica.run

    def counted(self: Replica, chunk: int, batch: int, replicas: int, seed: int, requests: int) -> Any:
        tries.append(replicas)
        return run(self, chunk, batch, replicas, seed, requests)

    monkeypatch.setattr(Replica, "run", counted)
    asked: dict[str, Any] = {"prompt": 500, "generate": 50, "max_ttft": "1s", "requests": 100}
    few, many = (
        llmir.plan("llama3.1-8b", **records(llmir.plan, rate=rate, **asked)).best for rate in (1e4, 1e9)
    )
    assert few is not None and many is not None
    assert many.devices == pytest.approx(1e5 * few.devices, rel=0.05)
    assert len(tries) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, "60s"])
def test_the_first_plan_is_stable_however_long_requests_may_wait(limit: str | None) -> None:
    """A run of few requests ends before a queue that grows for ever is long; that is no plan."""
    found = llmir.plan("llama3.1-8b", max_ttft=limit, traffic=llmir.Traffic(rate=40, requests=100))
    assert found.best is not None and found.largest_rate is not None
    assert found.largest_rate >= 40
    rate = found.largest_rate * 1.02  # less than what closed forms may underrate it by
    more = llmir.plan(
        "llama3.1-8b", max_ttft=limit, gpus=found.best.devices, traffic=llmir.Traffic(rate=rate, requests=100)
    )
    assert more.best is None or more.best.structure.split != found.best.structure.split
    assert "needs 4 GPUs, more than the 3 allowed" in [refusal.why for refusal in more.refused.values()]


@pytest.mark.slow
def test_plans_of_as_many_devices_do_not_speak_of_cost() -> None:
    devices = [replace(library.load(name), price_per_hour_usd=None) for name in ("h100-sxm", "h200")]
    found = llmir.plan(
        "llama3.1-8b", devices, max_ttft="1s", gpus=2, traffic=llmir.Traffic(rate=4, requests=100)
    )
    assert not found.priced
    said = [reason(found, found.why(each), each) for each in found.ranked[1:]]
    assert any(words.startswith("needs as many GPUs") for words in said)
    assert not any("cost" in words for words in said)


def test_a_value_near_its_limit_is_undecided_and_never_called_above_it() -> None:
    found = llmir.plan("llama3.1-8b", gpus=1, traffic=llmir.Traffic(rate=4, requests=100))
    best = found.best
    assert best is not None
    limits = (None, LatencyLimit(best.trial.tpot_s.p99 * 1.0001))
    traffic = replace(found.traffic, tpot=limits[1])
    near = replace(best, traffic=traffic, trial=Trial(best.trial.runs, limits))
    assert near.verdict == "undecided" and not near.meets
    told = replace(found, traffic=traffic, ranked=(), missed=(near,), search=None)
    assert "undecided" in reason(told, told.why(near), near)
    assert "above the limit" not in reason(told, told.why(near), near)
    head = str(
        llmir.plan("llama3.1-8b", max_ttft="1ms", gpus=1, traffic=llmir.Traffic(rate=40, requests=100))
    )
    assert head.startswith("no plan meets the limits with one GPU\n") and "\n\n\n" not in head


@pytest.mark.slow
def test_settings_that_bind_nobody_are_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything else then than where each is."""
    asked: dict[str, Any] = {"prompt": 2000, "generate": 200, "rate": 20, "gpus": 4, "requests": 200}
    runs: list[int] = []
    run = Replica.run

    def counted(*args: Any) -> Any:
        runs[-1] += 1
        return run(*args)

    monkeypatch.setattr(Replica, "run", counted)
    found = []
    for _ in range(2):
        runs.append(0)
        found.append(
            llmir.plan(
                "llama3.1-8b", "h100-sxm", **records(llmir.plan, max_ttft="1s", max_tpot="12ms", **asked)
            ).to_dict()
        )
        monkeypatch.setattr(trial, "_at_once", lambda server: float("inf"))
    assert found[0] == found[1]
    assert runs[0] < runs[1]


def test_a_limit_that_is_missed_comes_before_one_that_is_undecided() -> None:
    """TPOT is 2% over its limit in all runs. TTFT may be far over, and may be within."""
    found = llmir.plan("llama3.1-8b", gpus=1, traffic=llmir.Traffic(rate=4, requests=100))
    assert found.best is not None
    limits = (LatencyLimit(1.0), LatencyLimit(0.010))
    traffic = replace(found.traffic, ttft=limits[0], tpot=limits[1], headroom=0.0)
    ttft = [np.full(100, 0.5 * 2**n) for n in range(5)]
    runs = [
        SeedRun.of(Latencies(seconds, np.full(100, 0.0102) + n * 1e-9), traffic)
        for n, seconds in enumerate(ttft)
    ]
    runs_of_both = Trial(tuple(runs), limits)
    assert [runs_of_both.verdict_on(i) for i in range(2)] == ["undecided", "misses"]
    late = replace(found.best, traffic=traffic, trial=runs_of_both)
    told = replace(found, traffic=traffic, ranked=(), missed=(late,), search=None)
    words = reason(told, told.why(late), late)
    assert words.startswith("TPOT p99 is 10.2 ms, 200 µs above the limit of 10.0 ms"), words
