"""Verdicts of plans: the sequential test against a queue of known percentiles, and what plans state."""

from __future__ import annotations

from math import gamma, log, pi, sqrt
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.search.traffic import BUDGET, LatencyLimit, Traffic
from llmir.backends.search.trial import (
    ERROR,
    FIRST_PARTS,
    LOOKS,
    MEETS,
    MISSES,
    PARTS,
    QUANTILES_OF_T,
    RATE_ERROR,
    UNDECIDED,
    Latencies,
    SeedRun,
    Trial,
    decide,
    rate_verdict,
)
from tests.flat import records

BUSY, REQUESTS = 0.6, 1000


def test_quantiles_are_those_of_student() -> None:
    """By the trapezoid rule over the density, half of which lies below 0."""
    for (runs, parts), t in QUANTILES_OF_T.items():
        n = runs - 1
        x = np.linspace(0, t, 20_001)
        density = gamma((n + 1) / 2) / (sqrt(n * pi) * gamma(n / 2)) * (1 + x**2 / n) ** (-(n + 1) / 2)
        below = 0.5 + float(((density[1:] + density[:-1]) / 2 * np.diff(x)).sum())
        assert below == pytest.approx(1 - ERROR * parts / PARTS, abs=2e-6)


def test_looks_at_runs_of_any_length_spend_the_whole_error_and_the_whole_budget() -> None:
    for longer, looks in LOOKS.items():
        assert FIRST_PARTS + sum(parts for _, parts in looks) == PARTS
        assert looks[-1][0] * longer == BUDGET
        assert all(look in QUANTILES_OF_T for look in looks)


def stays(seed: int, requests: int) -> Any:
    """Times in an M/M/1 queue of service rate 1, by Lindley's recursion; the first tenth does not count."""
    rng = np.random.default_rng(seed)
    gaps, services = rng.exponential(1 / BUSY, requests), rng.exponential(1, requests)
    # The wait is the height of a random walk above its lowest point.
    walk = np.concatenate([[0], np.cumsum(services[:-1] - gaps[1:])])
    return (walk - np.minimum.accumulate(walk) + services)[requests // 10 :]


def verdict(share: float, first: int) -> tuple[str, int]:
    """The verdict on a limit of a share of the true p99, and how many runs it took.

    Times in an M/M/1 queue are exponential with rate 1 - ρ.
    """
    p99 = log(100) / (1 - BUSY)
    traffic = Traffic(1, 1, 2, REQUESTS, ttft=LatencyLimit(share * p99), seed=first)

    def run(seed: int, requests: int) -> SeedRun:
        seconds = stays(seed, requests)
        return SeedRun.of(Latencies(seconds, seconds), traffic)

    trial = decide(run, run(first, REQUESTS), traffic, REQUESTS, patient=True)
    return trial.verdict, len(trial.runs)


@pytest.mark.parametrize(("share", "wrong"), [(0.98, MEETS), (1.02, MISSES)])
def test_a_certain_verdict_is_wrong_in_one_of_a_hundred_at_most(share: float, wrong: str) -> None:
    """Of 200 trials of a limit that is 2% off, 2 are wrong on average at most; 7 are beyond chance."""
    found = [verdict(share, first)[0] for first in range(0, 200 * 40, 40)]
    assert found.count(wrong) <= 6
    assert UNDECIDED in found  # it says so, where the budget does not decide


def test_clear_verdicts_take_few_runs_and_close_ones_more() -> None:
    clear = [verdict(share, first) for share in (0.2, 5.0) for first in range(0, 800, 40)]
    assert {v for v, _ in clear} == {MEETS, MISSES} and np.mean([runs for _, runs in clear]) < 8
    close = [runs for _, runs in (verdict(1.1, first) for first in range(0, 800, 40))]
    assert np.mean(close) > 1.5 * np.mean([runs for _, runs in clear])


def test_a_rate_within_the_error_of_the_largest_one_is_undecided() -> None:
    traffic = Traffic(10.0, 1, 2, 100)
    rates = {None: MEETS, 10.0 * (1 + 2 * RATE_ERROR): MEETS, 10.1: UNDECIDED, 9.9: UNDECIDED, 9.0: MISSES}
    assert {rate: rate_verdict(rate, traffic) for rate in rates} == rates
    spare = Traffic(10.0, 1, 2, 100, headroom=0.2)  # which is larger than the error
    assert [rate_verdict(rate, spare) for rate in (12.6, 12.4)] == [MEETS, MISSES]


def test_lengths_spread_over_all_requests_have_their_mean() -> None:
    """A sample of 400 of a log-normal law of deviation 0.6 has a mean that is off by 3% on average."""
    traffic = Traffic(10.0, "lognormal:1000,0.6", "lognormal:300,0.6", 1000)
    every, some = traffic.every, traffic.spread(400)
    assert len(some) == 400
    assert some.generate.mean() == pytest.approx(every.generate.mean(), rel=0.003)
    assert some.prompt.mean() == pytest.approx(every.prompt.mean(), rel=0.003)


def test_one_run_decides_nothing() -> None:
    seconds = np.linspace(1, 2, 100)
    traffic = Traffic(1, 1, 2, 100, ttft=LatencyLimit(10.0))
    assert Trial((SeedRun.of(Latencies(seconds, seconds), traffic),), traffic.limits).verdict == UNDECIDED


ASKED: dict[str, Any] = {"rate": 20, "prompt": 1000, "generate": 100, "requests": 200, "gpus": 8}


def test_longer_times_are_planned_for() -> None:
    """Where steps take a quarter longer and requests come as much slower, latencies are as much longer."""
    limits = {"max_ttft": "1s", "max_tpot": "20ms"}
    longer = {"max_ttft": "1.25s", "max_tpot": "25ms"}
    plain = llmir.plan("llama3.1-8b", **records(llmir.plan, **ASKED, **limits)).best
    slow = llmir.plan(
        "llama3.1-8b", **records(llmir.plan, **{**ASKED, "rate": 16}, **longer, margin="25%")
    ).best
    assert plain is not None and slow is not None
    assert (slow.structure.split, slow.replicas) == (plain.structure.split, plain.replicas)
    assert [*slow.trial.ttft_s] == pytest.approx([1.25 * x for x in plain.trial.ttft_s], rel=1e-9, abs=0)
    assert [*slow.trial.tpot_s] == pytest.approx([1.25 * x for x in plain.trial.tpot_s], rel=1e-9, abs=0)


@pytest.mark.slow
def test_a_plan_without_a_limit_of_ttft_leaves_headroom() -> None:
    for headroom in (None, 0.3, 0.0):
        asked = {**ASKED, "rate": 50, "requests": 100, "generate": 200}
        plans = llmir.plan("llama3.1-8b", **records(llmir.plan, **asked, headroom=headroom))
        share = 0.1 if headroom is None else headroom
        assert plans.traffic.headroom == share and plans.largest_rate is not None
        assert plans.largest_rate * (1 - share) >= 50
        assert ("--headroom" in str(plans)) == bool(share)


@pytest.mark.parametrize("said", ["much", "10 %%", -1, 2000])
def test_what_is_no_share_is_refused(said: object) -> None:
    with pytest.raises(llmir.LlmirError, match="margin"):
        llmir.Reserve(margin=said)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_limit_within_the_error_names_a_plan_that_meets_it_with_the_error_added() -> None:
    """The limit is 12% above the TPOT of one RTX 3090, whose transferred times have an error of 23%."""
    traffic = llmir.Traffic(rate=10, prompt=500, generate=100, requests=1000)
    how: dict[str, Any] = {"gpus": 4, "memory": llmir.Memory(max_num_seqs=256, max_batched_tokens=8192)}
    loose = llmir.plan("llama3.2-1b", "rtx3090", traffic, **how, max_tpot="100ms").best
    assert loose is not None and loose.devices == 1
    limit_s = 1.12 * loose.trial.limited(1)
    near = llmir.plan("llama3.2-1b", "rtx3090", traffic, **how, max_tpot=f"{limit_s * 1e3:.4f}ms")
    first, sturdy = near.best, near.sturdy
    assert first is not None and first.within_error(1) and sturdy is not None
    assert sturdy.trial.limited(1) <= limit_s and sturdy.rank > first.rank
    text = " ".join(str(near).split())
    assert (
        "TPOT may miss its limit: with times" in text
        and "the limits with the error added: 2 × RTX-3090" in text
    )


def smoothness(engine: str, prompts: list[int], law: str) -> None:
    before = None
    for prompt in prompts:
        traffic = llmir.Traffic(rate=2, prompt=law.format(prompt), generate=1024)
        of = {"estimation": llmir.Estimation(engine=engine), "precision": llmir.Precision(weights="fp8")}
        best = llmir.plan("llama3.3-70b", "h200", traffic, max_ttft="5s", max_tpot="60ms", **of).best
        assert best is not None
        if before is not None:
            assert before.devices <= best.devices <= before.devices + best.structure.split.devices, prompt
        before = best


def test_the_number_of_gpus_does_not_jump_where_a_default_begins_to_starve() -> None:
    """At 8,192 tokens TensorRT-LLM's step has no token left beside a whole prompt."""
    smoothness("trtllm", [8000, 8500], "{}")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_number_of_gpus_rises_with_the_prompt_by_one_replica_at_most(engine: str) -> None:
    """`benchmarks/plan_smoothness.py` has more lengths."""
    smoothness(engine, [*range(7000, 17001, 2000)], "{}")


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "medians"), [("vllm", [8500, 9000]), ("sglang", [8000, 8500])])
def test_more_replicas_than_undecided_ones_are_decided_too(engine: str, medians: list[int]) -> None:
    """Of tp 2, 4 replicas are undecided and 5 meet the limits; the search took 12 GPUs of tp 4."""
    smoothness(engine, medians, "lognormal:{},0.6")
