"""Plans are monotone in the rate and in the limits, and those of a brute force by simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.search.plan import Plans
from llmir.backends.search.trial import UNDECIDED

TRAFFIC = llmir.Traffic(rate=4, prompt=1000, generate=60)
LIMITS = {"max_ttft": "1s", "max_tpot": "30ms"}
SETTINGS = llmir.Memory(max_num_seqs=32, max_batched_tokens=1024)


def planned(traffic: llmir.Traffic, **more: Any) -> Plans:
    return llmir.plan("llama3.1-8b", "l40s", traffic, **{**LIMITS, "gpus": 4, "memory": SETTINGS, **more})


def least(found: Plans) -> tuple[float, float]:
    """Devices of the first plan, and of the smallest one that meets the limits or is undecided."""
    best = inf if found.best is None else found.best.devices
    near = [each.devices for each in found.missed if each.verdict == UNDECIDED]
    return best, min([best, *near])


def rises(plans: list[Plans]) -> None:
    """No plan surely needs fewer devices than an easier one has; costs are of as many devices."""
    for easy, hard in pairwise(map(least, plans)):
        assert easy[1] <= hard[0]
    costs = [each.best.cost_per_hour_usd for each in plans if each.best]
    assert costs == sorted(costs)


@pytest.mark.slow
def test_a_higher_rate_never_takes_fewer_devices() -> None:
    rises([planned(replace(TRAFFIC, rate=rate)) for rate in (1.5, 4, 8)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "values"),
    [("max_tpot", ["100ms", "30ms", "14ms"]), ("max_ttft", ["5s", "0.2s", "0.1s"])],
)
def test_a_looser_limit_never_takes_more_devices(limit: str, values: list[str]) -> None:
    rises([planned(TRAFFIC, **{limit: value}) for value in values])


def serves(tp: int, replicas: int, traffic: llmir.Traffic, seeds: range) -> float:
    """The share of runs in which so many servers meet the limits, of requests in the middle of the run."""
    good = 0
    for seed in seeds:
        run = llmir.simulate(
            "llama3.1-8b",
            "l40s",
            replace(traffic, seed=seed, requests=600),
            parallel=llmir.Parallel(tp=tp),
            memory=SETTINGS,
            servers=llmir.Servers(replicas=replicas),
        )
        part = slice(60, -60)
        ttft, tpot = (np.percentile(each[part], 99) for each in (run.ttft_s, run.tpot_s))
        good += bool(ttft <= 1 and tpot <= 0.03 and not run.overloaded)
    return good / len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.5, 4, 8])
def test_a_plan_is_that_of_a_brute_force_by_simulation(rate: float) -> None:
    traffic = replace(TRAFFIC, rate=rate)
    space = sorted((tp * n, tp, n) for tp in (1, 2, 4) for n in range(1, 4 // tp + 1))
    shares = {(tp, n): serves(tp, n, traffic, range(100, 104)) for _, tp, n in space}
    found = planned(traffic, gpus=4, memory=SETTINGS)
    close = [each for each in found.missed if each.verdict == UNDECIDED]
    good = [devices for devices, tp, n in space if shares[tp, n] == 1]
    if found.best is None:
        assert not good or close
        return
    split = found.best.structure.split
    assert shares[split.tp, found.best.replicas] >= 0.75  # runs are shorter than those of the search
    assert found.best.devices <= min(good, default=inf) or min(each.devices for each in close) <= min(good)
    assert all(shares[tp, n] < 1 for devices, tp, n in space if devices < least(found)[1])
