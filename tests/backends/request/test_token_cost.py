"""What a workload's tokens cost and draw: price and power times time, by token."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.request.workload import cost_breakdown
from llmir.hw import library
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records

LLAMA = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
TP2 = llmir.run(LLAMA, "shard{tp=2}")
(H200,) = library.with_prices(["h200"], {"h200": 3.5})  # 700 W by its datasheet


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 64), st.integers(1, 3000), st.integers(2, 40), st.sampled_from([LLAMA, TP2]))
def test_a_job_costs_its_time(batch: int, prompt: int, generate: int, program: Program) -> None:
    """Without stages, dollars of all tokens are what all devices cost until the last token is there."""
    job = llmir.workload(program, H200, batch=batch, prompt=prompt, generate=generate)
    found = cost_breakdown(job)
    assert found.input and found.output
    hours, tokens = job.e2e_s / 3600, batch * generate
    assert found.answers.usd_per_mtok * tokens / 1e6 == pytest.approx(program.devices * 3.5 * hours)
    assert found.answers.joules_per_token * tokens == pytest.approx(program.devices * 700 * job.e2e_s)
    parts = found.input.usd_per_mtok * batch * prompt + found.output.usd_per_mtok * batch * (generate - 1)
    assert parts == pytest.approx(found.answers.usd_per_mtok * tokens)
    assert found.input.joules_per_token * batch * prompt == pytest.approx(program.devices * 700 * job.ttft_s)


def test_cached_tokens_are_not_read() -> None:
    job = llmir.workload(LLAMA, H200, prompt=1000, cached=900, generate=1)
    found = cost_breakdown(job)
    assert found.output is None and found.input is not None
    assert found.input.usd_per_mtok == pytest.approx(job.ttft_s * 3.5 / 3600 / 100 * 1e6)


def test_nothing_is_made_up(run: Run) -> None:
    """A device without a price, one without power, and neither in a comparison."""
    asked = {"batch": 1, "prompt": 64, "generate": 4}
    bare = llmir.workload(LLAMA, "a30", **records(llmir.workload, **asked)).to_dict()
    assert set(bare["cost_usd_per_mtok"].values()) == {None}
    assert all(bare["energy_j_per_token"].values())
    ran = run("analyze", "llama3.1-8b", "--hw", "a30", "--generate", "4", "--prompt", "64")
    assert "energy" in ran.out and "\ncost  " not in ran.out and "$" not in ran.out
    ran = run("analyze", "llama3.1-8b", "--hw", "gh200", "--generate", "4", "--prompt", "64")
    assert "\ncost  " in ran.out and "energy" not in ran.out
    both = run(
        "diff", "llama3.1-8b", "--hw", "a30", "--hw-after", "gh200", "--prompt", "64", "--format", "json"
    )
    report = json.loads(both.out)
    assert report["cost_usd_per_mtok"]["before"] is report["cost_usd_per_mtok"]["delta"] is None
    assert report["energy_j_per_token"]["after"] is report["energy_j_per_token"]["delta"] is None
    assert report["cost_usd_per_mtok"]["after"] > 0


def test_a_price_that_is_stated(run: Run) -> None:
    small = "llama3.1-8b", "--prompt", "64", "--generate", "4", "--format", "json"
    once, twice = (
        json.loads(run("analyze", *small, "--hw", "h200", "--price", f"h200={usd}").out) for usd in (2, 4)
    )
    for part, usd in once["cost_usd_per_mtok"].items():
        assert twice["cost_usd_per_mtok"][part] == pytest.approx(2 * usd)
    found = json.loads(run("diff", *small, "--hw-after", "h200", "--price", "h100=1,h200=3").out)
    other = json.loads(run("analyze", *small, "--hw", "h200", "--price", "h200=3").out)
    after = found["cost_usd_per_mtok"]["after"]
    assert after == pytest.approx(other["cost_usd_per_mtok"]["answers"])
    for command, price in (("analyze", "h200=2"), ("diff", "h200=2"), ("analyze", "h100=0")):
        ran = run(command, "llama3.1-8b", "--price", price)
        assert ran.code == 2 and ran.err.count("\n") == 1 and "price" in ran.err


def test_images_cost_too(run: Run) -> None:
    ran = run("analyze", "dit-xl-2-256", "--batch", "2", "--format", "json")
    report = json.loads(ran.out)
    seconds = report["e2e_s"]
    assert report["energy_j_per_token"] == {"answers": pytest.approx(700 * seconds / 2)}
    ran = run("diff", "dit-xl-2-256", "--price", "h100=3")
    assert ran.code == 2 and "images" in ran.err
