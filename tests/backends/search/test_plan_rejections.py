"""Why plans lose: each change, applied, makes the plan win or meet its limit, and half of it does not."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.backends.search.plan import Plans
from llmir.backends.search.rejections import losing_reason, wins
from tests.flat import records

LIMITS = {"max_ttft": "0.5s", "max_tpot": "15ms"}
CASES: dict[str, dict[str, Any]] = {
    "missed": {"model": "llama3.1-8b", "rate": 40, "gpus": 2, "prompt": 1000, **LIMITS},
    "tpot": {"model": "llama3.1-8b", "rate": 30, "prompt": 1000, "generate": 200, **LIMITS},
    "two devices": {"model": "llama3.1-8b", "hw": "h100-sxm,a100-80-sxm", "rate": 30, **LIMITS},
    "no limits": {"model": "llama3.1-8b", "rate": 60, "prompt": 1000, "generate": 100},
    "kv": {"model": "qwen3-32b", "rate": 4, "prompt": 8000, "generate": 500, "max_tpot": "100ms"},
    "experts": {"model": "qwen3-30b-a3b", "rate": 20, "prompt": 2000, "generate": 300, **LIMITS},
    "lengths": {"model": "llama3.1-8b", "rate": 20, "prompt": "lognormal:1500,0.6", "max_ttft": "1s"},
}


def planned(name: str) -> Plans:
    asked = {"requests": 300, "gpus": 32, **CASES[name]}
    return llmir.plan(asked.pop("model"), asked.pop("hw", "h100-sxm"), **records(llmir.plan, **asked))


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("name", CASES)
def test_a_change_makes_a_losing_plan_win_and_half_of_it_does_not(name: str) -> None:
    plans = planned(name)
    losing = plans.shown[1:] if plans.best else plans.shown
    assert losing
    for candidate in losing:
        why = losing_reason(plans, candidate)
        assert why is not None and why.constraint
        if why.change is not None:
            assert wins(plans, candidate, why.change), why
            assert not wins(plans, candidate, why.change.part(0.5)), why
    assert sum(plans.rejection(each).change is not None for each in losing) >= len(losing) * 0.8


@pytest.mark.slow
def test_a_longer_limit_applied_on_the_command_line_makes_the_plan_meet_it() -> None:
    """By a search of its own, with the limit that the reason names."""
    plans = planned("missed")
    found = [(each, losing_reason(plans, each)) for each in plans.missed]
    limited = [
        (each, why) for each, why in found if why and why.change and why.change.what in ("ttft", "tpot")
    ]
    for candidate, why in limited:
        assert why.change is not None
        asked = {"requests": 300, **CASES["missed"], f"max_{why.change.what}": why.change.needed * 1.001}
        asked["gpus"] = candidate.devices
        again = llmir.plan(asked.pop("model"), "h100-sxm", **records(llmir.plan, **asked))
        assert candidate.structure.split in [each.structure.split for each in again.ranked]


def test_a_lower_price_is_the_reason_where_one_replica_costs_as_much() -> None:
    """An H200 is no slower than an H100: at thrice the price it costs more until it costs a third."""
    prices = {"h100-sxm": 2.0, "h200": 6.0}
    asked = {"rate": 2, "prompt": 500, "generate": 50, "gpus": 1, "requests": 100, "max_tpot": "20ms"}
    plans = llmir.plan("llama3.1-8b", "h100-sxm,h200", **records(llmir.plan, price=prices, **asked))
    dear = next(each for each in plans.shown if each.structure.device.name.startswith("H200"))
    why = plans.rejection(dear)
    assert why is not None and why.change is not None
    assert (why.change.what, why.change.now) == ("price", 6.0)
    assert why.change.needed == pytest.approx(2.0)
