"""Why plans lose: each change, applied, makes the plan win or meet its limit, and half of it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import llmir
from llmir.backends.cost.models import faster_ops
from llmir.backends.export.plan import reason
from llmir.backends.search.plan import Plans, opcode_shares
from llmir.backends.search.rejections import losing_reason, wins
from llmir.backends.search.traffic import SEEDS
from llmir.backends.search.trial import MEETS, UNDECIDED, Replica
from llmir.backends.step.report import Report
from tests.flat import records

LIMITS = {"max_ttft": "0.5s", "max_tpot": "15ms"}
CASES: dict[str, dict[str, Any]] = {
    "missed": {"model": "llama3.1-8b", "rate": 38, "gpus": 2, "prompt": 1000, **LIMITS},
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
def test_a_longer_limit_simulates_no_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = planned("missed")
    search, losing = plans.search, plans.missed[0]
    assert search is not None and not losing.meets
    simulated: list[int] = []
    run = Replica._run
    monkeypatch.setattr(Replica, "_run", lambda *setting: simulated.append(1) or run(*setting))
    loose = [limit and limit._replace(seconds=10 * limit.seconds) for limit in plans.traffic.limits]
    traffic = replace(plans.traffic, ttft=loose[0], tpot=loose[1])
    number = search.number_of(losing)
    assert search.relaxed(traffic).simulated(number, losing.replicas).trial.verdict == MEETS
    assert not simulated
    assert (
        search.relaxed(replace(traffic, margin=0.1)).simulated(number, losing.replicas).trial.verdict == MEETS
    )
    assert len(simulated) >= SEEDS


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
    assert why.change.needed == 1.99  # the highest price in three digits below that of an H100


def test_a_plan_of_equal_cost_loses_by_its_speed_and_is_told_so() -> None:
    """Stages on two GPUs cost as much as ranks on two, and take longer for a token."""
    asked = {"rate": 33, "prompt": 981, "generate": 159, "max_ttft": "p50:121ms", "gpus": 2, "requests": 200}
    plans = llmir.plan("llama3.1-8b", **records(llmir.plan, **asked))
    equal = [each for each in plans.ranked[1:] if each.devices == plans.ranked[0].devices]
    assert equal
    for each in equal:
        why = plans.rejection(each)
        assert why is not None and why.constraint == "speed"
        assert why.change is None or wins(plans, each, why.change)


def test_a_plan_with_an_undecided_rate_loses_by_the_rate() -> None:
    """A rate that is 1% below the largest one is within its error, and latencies are far within limits."""
    asked = {"prompt": 1000, "generate": 100, "max_ttft": "60s", "gpus": 1, "requests": 100, "headroom": 0.0}
    best = llmir.plan("llama3.1-8b", **records(llmir.plan, rate=10, **asked)).best
    assert best is not None
    most = best.largest_rate or Replica(best.structure, best.traffic).largest_rate(best.chunk, best.batch)
    plans = llmir.plan("llama3.1-8b", **records(llmir.plan, rate=most / 1.01, **asked))
    (near,) = plans.shown
    assert (near.verdict, near.trial.verdict) == (UNDECIDED, MEETS)
    assert plans.why(near).constraint == "rate"
    why = plans.rejection(near)
    assert why is not None and why.constraint not in ("ttft", "tpot")
    assert "undecided: serves at most" in reason(plans, plans.why(near), near)


def test_ops_of_an_opcode_take_a_share_of_their_time() -> None:
    """All other ops take as long, and no more kernels are launched."""
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    step = llmir.analyze(program, "h100-sxm", batch=8, new=1, context=1000)
    at = {"batch": 8, "new": 1, "context": 1000}
    faster = Report(program, step.plan.model.device, model=faster_ops(step.plan.model, "linear", 0.5), **at)
    opcodes = {row.name: row.node.op.opcode for row in step.plan.rows}
    for before, after in zip(step.ops, faster.ops, strict=True):
        share = 0.5 if opcodes.get(before.name) == "linear" else 1.0
        if before.name in opcodes:
            assert after.time_s == pytest.approx(share * before.time_s, rel=1e-12), before.name
    assert sum(opcode_shares(step).values()) <= 1 + 1e-12


@pytest.mark.slow
def test_a_longer_run_that_draws_a_longer_prompt_is_no_error() -> None:
    """TensorRT-LLM without chunked prefill has steps for the longest prompt of the traffic, not for any."""
    traffic = llmir.Traffic(rate=10, prompt="lognormal:2000,0.8", requests=300)
    plans = llmir.plan("llama3.1-8b", "h100-sxm", traffic, estimation=llmir.Estimation(engine="trtllm"))
    reasons = [plans.rejection(each) for each in plans.shown]
    assert len(reasons) > 1
    assert reasons[0] is None
    assert all(reasons[1:])
