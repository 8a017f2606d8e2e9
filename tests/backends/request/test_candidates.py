"""Many programs priced together are each priced alone: `llmir.candidates`."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir import Program
from llmir.backends.cost.batch import OpTimeStack
from llmir.base.errors import HardwareError, InputError, PassError
from tests.flat import records

CLOSE = 1e-12
TOKENS = st.integers(1, 3000)
Search = tuple[list[tuple[Program, int]], str, dict[str, Any]]  # programs in stages, on what, and how priced
MODELS = (
    *("llama3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b", "deepseek-v2-lite", "qwen3-next-80b-a3b"),
    *("mistral-7b-v0.1",),
)
PRECISIONS = ("", "quantize{weights=fp8}", "quantize{weights=int4}", "quantize{weights=fp8, kv=fp8}")
SHARDS = (
    *("", "shard{tp=2}", "shard{tp=4, sp=1}", "shard{dp=2}", "shard{tp=2, dp=4}"),
    *("shard{tp=2, dp=2, ep=4}", "shard{dp=8, ep=8}", "stages{micro_batches=2},shard{tp=2}"),
)
PRICED = (
    *(("h200", None), ("h100-sxm", "sglang"), ("h100-sxm", "trtllm"), ("a100-sxm-80gb", "vllm")),
    *(("b200", "sglang"), ("h100-sxm", "ideal"), ("mi300x", None), ("h100-sxm", "half")),
)


def options(how: str | None) -> dict[str, Any]:
    if how == "half":
        return {"efficiency": {"compute": 0.5, "memory": 0.6, "launch": 2e-6}}
    return {"cost": how} if how == "ideal" else {"engine": how}


def lowered(model: str, precision: str, shard: str) -> Program | None:
    program = llmir.run(llmir.load(model), llmir.pipeline_of())
    program = llmir.run(program, precision) if precision else program
    try:
        return llmir.run(program, shard) if shard else program
    except llmir.LlmirError:
        return None


@st.composite
def searches(draw: st.DrawFn) -> Search:
    model, (device, how) = draw(st.sampled_from(MODELS)), draw(st.sampled_from(PRICED))
    kinds = st.tuples(st.sampled_from(PRECISIONS), st.sampled_from(SHARDS), st.sampled_from((1, 2, 3, 5)))
    asked = draw(st.lists(kinds, min_size=2, max_size=5, unique=True))
    found = [(lowered(model, precision, shard), stages) for precision, shard, stages in asked]
    programs = [(program, stages) for program, stages in found if program]
    assume(programs)
    return programs, device, options(how)


def whole(program: Program, stages: int) -> Program:
    return llmir.run(program, f"stages{{pp={stages}}},slice-sends") if stages > 1 else program


def near(found: Any, due: Any) -> bool:
    return bool(np.all(np.abs(np.asarray(found) - due) <= CLOSE * np.abs(due)))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(searches(), st.lists(st.integers(1, 2000), min_size=1, max_size=3), TOKENS, st.booleans())
def test_steps_are_those_of_reports(search: Search, batch: list[int], tokens: int, decodes: bool) -> None:
    programs, device, how = search
    at: dict[str, Any] = {"batch": 2 * np.array(batch)[:, None]}
    at |= {"new": 1, "context": np.array([tokens, 9 * tokens])} if decodes else {"new": tokens + 1}
    found = llmir.candidates(programs, device, **records(llmir.candidates, **how)).step(**at)
    for i, (program, stages) in enumerate(programs):
        report = llmir.analyze(whole(program, stages), device, **records(llmir.analyze, **at, **how))
        for name in ("time_s", "period_s", "interval_s"):
            assert near(getattr(found, name)[i], getattr(report, name)), (name, i)
        assert near(found.peak_memory_bytes[i], report.peak_memory_bytes)
        assert np.all(np.round(found.peak_memory_bytes[i]) == np.round(report.peak_memory_bytes))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(searches(), st.integers(1, 20), st.integers(1, 400), st.sampled_from((1, 2, 7, 40)))
def test_requests_are_those_of_workloads(search: Search, batch: int, prompt: int, generate: int) -> None:
    programs, device, how = search
    found = llmir.candidates(programs, device, **records(llmir.candidates, **how)).requests(
        [2 * batch, 6], prompt, generate
    )
    for i, (program, stages) in enumerate(programs):
        for place, sequences in enumerate((2 * batch, 6)):
            at: dict[str, Any] = {"batch": sequences, "prompt": prompt, "generate": generate, "chunk": "all"}
            job = llmir.workload(whole(program, stages), device, **records(llmir.workload, **at, **how))
            assert near(found.ttft_s[i, place], job.ttft_s)
            assert near(found.e2e_s[i, place], job.e2e_s)
            tpot = found.tpot_s[i, place]
            assert near(tpot, job.tpot_s) if job.tpot_s else np.isnan(tpot)
            peaks = [step.peak_memory_bytes for step in (job.prefill, job.decode) if step]
            assert round(found.peak_memory_bytes[i, place]) == round(max(peaks))


def test_prices_stack_by_kernel() -> None:
    # Otherwise nothing is saved: six splits of a model, each with its own prices, are a few stacks.
    program = llmir.run(llmir.load("qwen3-30b-a3b"), llmir.pipeline_of())
    plans = [
        llmir.analyze(llmir.run(program, f"shard{{tp={tp}, dp={dp}}}"), "h200").plan
        for tp in (2, 4)
        for dp in (1, 2, 4)
    ]
    prices = {price: None for plan in plans for price in plan.prices}
    stack = OpTimeStack([(0, price) for price in prices], 1)
    assert sum(len(places) for places, _ in stack.groups) == len(prices) > 2 * len(stack.groups)


def test_what_nodes_cannot_hold_is_refused_by_number() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    split = [program, (llmir.run(program, "shard{dp=3}"), 3), llmir.run(program, "shard{tp=8}")]
    with pytest.raises(HardwareError) as alone:
        llmir.analyze(whole(llmir.run(program, "shard{dp=3}"), 3), "dgx-h100", batch=8)
    found = llmir.candidates(split, "dgx-h100")
    assert found.refused == {1: str(alone.value)}
    step, job = found.step(8, 1, 100), found.requests([8, 16], 100, 10)
    assert step.time_s.shape == (3,) and job.tpot_s.shape == (3, 2)
    assert [np.isnan(x).tolist() for x in (step.time_s, job.ttft_s[:, 1])] == [[False, True, False]] * 2
    with pytest.raises(InputError, match=r"candidates: .* has 8 devices a node"):
        llmir.candidates(split[1:2], "dgx-h100")


def test_pairs_and_points_are_checked() -> None:
    program = llmir.load("llama3.1-8b")
    with pytest.raises(llmir.LlmirError, match=r"stages: expected"):
        llmir.candidates([(program, 0)], "h200")
    with pytest.raises(InputError, match=r"expected a Program, or a model"):
        llmir.candidates([llmir.analyze(program, "h200")], "h200")  # type: ignore[list-item] # a result
    found = llmir.candidates([program], "h200")
    with pytest.raises(InputError, match=r"batch: expected numbers in a row"):
        found.requests([[1, 2]], 10, 10)
    for wrong in (0, "8", None, 1.5, [[]]):
        with pytest.raises(InputError, match=r"^batch"):
            found.step(wrong)
        with pytest.raises(InputError, match=r"^batch"):
            found.requests(wrong, 10, 10)
        with pytest.raises(InputError, match=r"^(prompt|generate)"):
            found.requests(1, *((10, wrong) if wrong else (wrong, 10)))  # type: ignore[arg-type] # no numbers
    with pytest.raises(InputError, match=r"broadcast"):
        found.step([1, 2], 1, [1, 2, 3])


def test_cycles_are_looked_for_again_after_a_pass_or_a_search_that_fails() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    search = llmir.candidates([program], "h200")
    for fails in (lambda: llmir.run(program, "shard{tp=3}"), lambda: search.requests([[1]], 5, 5)):
        with pytest.raises((PassError, InputError)):
            fails()
        assert gc.isenabled()
    gc.disable()
    try:
        search.step(4)
        assert not gc.isenabled()  # as its caller has it
    finally:
        gc.enable()
