"""Prefill in chunks and after a cached prefix: what is read is the same, however it is cut."""

from __future__ import annotations

from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.diff import WorkloadDiff
from llmir.backends.request.workload import ChunkSteps, prefill_chunks, prefill_times
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from tests.commands import Run
from tests.flat import records

SIZES = st.integers(1, 300)


@given(SIZES, SIZES, st.integers(0, 50), st.none() | st.integers(1, 400), st.integers(1, 4))
def test_each_token_of_each_prompt_is_read_once(
    prompts: int, new: int, cached: int, budget: int | None, lanes: int
) -> None:
    read: dict[int, int] = {}  # by place in a prompt, how many prompts' token it is
    for chunk in prefill_chunks(prompts, new, cached, budget, lanes):
        each = -(-chunk.prompts // min(lanes, prompts))  # prompts of a lane
        assert budget is None or each * chunk.new <= budget
        for start in np.atleast_1d(chunk.cached):
            for place in range(int(start), int(start) + chunk.new):
                read[place] = read.get(place, 0) + chunk.prompts * chunk.times
    assert read == dict.fromkeys(range(cached, cached + new), prompts)


def test_a_budget_of_all_tokens_is_one_step() -> None:
    assert prefill_chunks(4, 100, 7, 400) == prefill_chunks(4, 100, 7, None) == (ChunkSteps(4, 100, 7),)


@pytest.fixture(scope="module")
def program() -> Program:
    return llmir.run(llmir.load("qwen3-0.6b", "all"), llmir.pipeline_of())


def flops(job: llmir.Workload) -> int:
    """Of all steps that read the prompts."""
    steps = (
        (
            chunk.times,
            llmir.analyze(job.program, "h100", batch=chunk.prompts, new=chunk.new, context=chunk.cached),
        )
        for chunk in job.chunks
    )
    return sum(times * int(np.sum(step.flops)) for times, step in steps)


@pytest.mark.parametrize("chunk", [1500, 400, 100, 64, 7])
@pytest.mark.parametrize("cached", [0, 123])
def test_flops_of_chunks_are_those_of_the_prompt(program: Program, chunk: int, cached: int) -> None:
    """Causal pairs add up: Σ T·C + T(T + 1)/2 over chunks is that of the whole."""
    whole, cut = (
        llmir.workload(program, "h100", batch=3, prompt=500, generate=1, chunk=n, cached=cached)
        for n in (None, chunk)
    )
    assert flops(cut) == flops(whole) == whole.prefill.flops


def test_a_cached_prefix_leaves_the_rest(program: Program) -> None:
    """What is read after it is a step of the new tokens over the cached ones."""
    job = llmir.workload(program, "h100", batch=2, prompt=1000, generate=4, cached=900)
    step = llmir.analyze(program, "h100", batch=2, new=100, context=900)
    whole = llmir.workload(program, "h100", batch=2, prompt=1000, generate=4)
    assert job.ttft_s == step.time_s < whole.ttft_s
    assert job.tpot_s == whole.tpot_s
    assert job.peak_bytes(2) <= whole.peak_bytes(2)


def test_a_chunk_that_holds_all_changes_nothing(program: Program) -> None:
    one, same = (
        llmir.workload(
            program,
            "h100",
            batch=2,
            prompt=1000,
            generate=4,
            chunk=n,
            estimation=llmir.Estimation(cost="ideal"),
        )
        for n in (None, 2000)
    )
    assert (one.ttft_s, one.peak_bytes(2)) == (same.ttft_s, same.peak_bytes(2))


def test_ttft_is_the_sum_of_the_chunks(program: Program) -> None:
    job = llmir.workload(program, "h100", batch=1, prompt=1000, generate=4, chunk=300)
    steps = [(300, 0), (300, 300), (300, 600), (100, 900)]
    times = [llmir.analyze(program, "h100", batch=1, new=n, context=c).time_s for n, c in steps]
    assert job.ttft_s == pytest.approx(sum(times))
    assert (job.prefill.new, job.prefill.context) == (300, 600)


@pytest.mark.parametrize(("cost", "clock"), [("ideal", 1.0), ("calibrated", 0.95)])
def test_smaller_chunks_need_less_memory_and_more_time(program: Program, cost: str, clock: float) -> None:
    """But for the clock, which is higher in shorter products, and graphs, which hold short chunks alone."""
    asked = {"batch": 8, "prompt": 4096, "generate": 4, "cost": cost}
    jobs = [
        llmir.workload(program, "h100", **records(llmir.workload, **asked, chunk=2**n)) for n in range(6, 16)
    ]
    held = [bool(job.prefill.plan.captured(job.prefill.at)) for job in jobs]
    pairs = [(a, b) for (a, x), (b, y) in combinations(zip(jobs, held, strict=True), 2) if x == y]
    assert all(a.ttft_s >= clock * b.ttft_s for a, b in pairs)
    assert all(a.peak_bytes(8) <= b.peak_bytes(8) for a, b in pairwise(jobs))


def test_stages_go_on_with_the_next_chunk() -> None:
    """The makespan of a flow shop: all chunks through the slowest stage, the last through the others too."""
    piped = llmir.run(llmir.load("qwen3-0.6b"), ["stages{pp=2}", llmir.pipeline_of()])
    job = llmir.workload(
        piped, "h100", batch=1, prompt=1024, generate=1, chunk=256, estimation=llmir.Estimation(cost="ideal")
    )
    steps = [
        llmir.analyze(
            piped, "h100", batch=1, new=256, context=256 * i, estimation=llmir.Estimation(cost="ideal")
        )
        for i in range(4)
    ]
    assert job.ttft_s == pytest.approx(sum(s.interval_s for s in steps[:3]) + steps[3].time_s)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunk": 0}, "chunk: expected an integer from 1"),
        ({"cached": -1}, "cached: expected an integer from 0"),
        ({"cached": 1000}, "cached: expected fewer than the 1,000 tokens of a prompt"),
        ({"chunk": 1.5}, "chunk: expected an integer"),
        ({"chunk": "some"}, "chunk: expected an integer from 1 to .*, or all, got 'some'"),
        ({"chunk": "all", "max_batched_tokens": 64}, "chunk: all, and max_batched_tokens, 64, limits it"),
    ],
)
def test_what_cannot_be_read(program: Program, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        llmir.workload(program, "h100", **records(llmir.workload, prompt=1000, **options))


def test_the_command_line_has_both(run: Run) -> None:
    asked = ["analyze", "qwen3-0.6b", "--hw", "h100", "--prompt", "1000"]
    shown = " ".join(run(*asked, "--chunk", "300", "--cached", "100").out.split())
    assert "prompt 1,000, 100 of them cached, generate 128" in shown
    assert "the first token, in 3 steps of 300 tokens at most" in shown
    assert run(*asked, "--cached", "1000").err.startswith(
        "error: --cached: expected fewer than the 1,000 tokens"
    )
    assert run(*asked, "--chunk", "0").err.startswith("error: --chunk: expected an integer from 1")


@pytest.mark.parametrize(
    ("batch", "more", "said"),
    [
        (8, (), ""),
        (9, (), "in 2 steps of 8,192 tokens at most, by vllm 0.21"),
        (9, ("--chunk", "4096"), "in 3 steps of 4,096 tokens at most "),
        (9, ("--max-batched-tokens", "4096"), "in 3 steps of 4,096 tokens at most "),
        (9, ("--engine", "vllm@0.6"), "in 5 steps of 2,048 tokens at most, by vllm 0.2–0.10"),
        (9, ("--chunk", "all"), "all prompts in one step"),
        (9, ("--cost", "ideal"), ""),
        (16, ("--dp", "2"), ""),
        (18, ("--dp", "2"), "in 2 steps of 8,192 tokens at most, by vllm 0.21"),
    ],
)
def test_whose_budget_acts_is_said(batch: int, more: tuple[str, ...], said: str, run: Run) -> None:
    asked = ["analyze", "qwen3-0.6b", "--hw", "h100-sxm", "--prompt", "1024", "--batch", str(batch)]
    shown = " ".join(run(*asked, *more).out.split())
    assert said in shown
    assert bool(said) == ("tokens at most" in shown or "all prompts in one step" in shown)


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.6", "sglang", "trtllm"])
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_an_engine_reads_by_its_own_budget(program: Program, engine: str, batch: int) -> None:
    """By default as if its budget had been stated: in time, and in memory."""
    asked: dict[str, Any] = {"batch": batch, "prompt": 3000, "generate": 4, "engine": engine}
    usual = llmir.workload(program, "h100", **records(llmir.workload, **asked))
    assert usual.pool and usual.budget == usual.pool.tokens
    stated = llmir.workload(program, "h100", **records(llmir.workload, chunk=usual.budget, **asked))
    figures = [(job.ttft_s, job.ttft_mean_s, job.peak_bytes(batch), job.max_batch) for job in (usual, stated)]
    assert figures[0] == figures[1]
    assert (usual.budget_by, stated.budget_by) == (usual.memory.engine, None)


def test_all_prompts_in_one_step_need_room_for_it(program: Program) -> None:
    """A budget as large as the batch, which grows with it; a batch that fits in one step is as it was."""
    asked: dict[str, Any] = {"prompt": 4096, "generate": 4, "engine": "vllm"}
    for batch, grows in ((2, False), (64, True)):
        usual, whole, stated = (
            llmir.workload(program, "h100", **records(llmir.workload, batch=batch, chunk=n, **asked))
            for n in (None, "all", max(8192, batch * 4096))
        )
        assert whole.ttft_s == stated.ttft_s == whole.ttft_mean_s
        assert whole.peak_bytes(batch) == stated.peak_bytes(batch)
        assert (whole.peak_bytes(batch) > usual.peak_bytes(batch)) == grows
        assert whole.max_batch < usual.max_batch
        assert whole.budget is None
    assert llmir.workload(
        program, "h100", **records(llmir.workload, batch=whole.max_batch, chunk="all", **asked)
    ).fits
    assert not llmir.workload(
        program, "h100", **records(llmir.workload, batch=whole.max_batch + 1, chunk="all", **asked)
    ).fits


@given(st.integers(1, 12), SIZES, st.integers(1, 700), st.integers(1, 3))
def test_the_mean_first_token_is_that_of_prompts_read_in_turn(
    prompts: int, new: int, budget: int, lanes: int
) -> None:
    """Whole prompts come with their step; each step here takes as long as it has tokens."""
    steps = prefill_chunks(prompts, new, 0, budget, lanes)

    def price(chunk: ChunkSteps) -> Any:
        seconds = np.full(np.shape(chunk.cached), float(chunk.prompts * chunk.new))
        return SimpleNamespace(time_s=seconds, interval_s=seconds)

    found = prefill_times(steps, price)
    ends: list[float] = []
    at = 0.0
    if new <= budget:
        for chunk in steps:
            for _ in range(chunk.times):
                at += chunk.prompts * new
                ends += [at] * chunk.prompts
    else:  # one by one on each lane
        each = min(lanes, prompts)
        ends = [new * min(prompts, each * (i // each + 1)) for i in range(prompts)]
    assert found.time_s == found.interval_s == pytest.approx(prompts * new)
    exact = new <= budget or prompts % min(lanes, prompts) == 0
    assert found.mean_s == pytest.approx(float(np.mean(ends)), rel=1e-9 if exact else 0.5)


def test_sides_with_two_budgets_say_both(program: Program, run: Run) -> None:
    """Each side's TTFT is its own; op by op both read as much, by the smaller budget."""
    found = llmir.diff(program, program, "a100", hw_after="h100", batch=8, prompt=2048, generate=4)
    assert isinstance(found, WorkloadDiff)
    alone = [llmir.workload(program, hw, batch=8, prompt=2048, generate=4) for hw in ("a100", "h100")]
    assert tuple(found.total("ttft_s")) == tuple(job.ttft_s for job in alone)
    assert [job.budget for job in alone] == [2048, 8192]
    sides = found.prefill.before, found.prefill.after
    assert [(side.batch, side.new) for side in sides] == [(1, 2048)] * 2
    ran = run("diff", "qwen3-0.6b", "--hw", "a100", "--hw-after", "h100", "--batch", "8", "--prompt", "2048")
    shown = " ".join(ran.out.split())
    for said in ("steps of 2,048 tokens at most, by vllm", "8,192 tokens at most, by vllm", "smaller budget"):
        assert said in shown


@pytest.mark.parametrize(
    ("model", "passes", "sizes", "why"),
    [
        ("DiT-XL/2", "", {}, "are images"),
        ("llava-onevision-qwen2-0.5b", "place-images{tokens=1485}", {"prompt": 64}, "have images"),
        (
            "qwen2.5-0.5b",
            "prune-tokens{layers=(1024x12, 256x12)}",
            {"prompt": 1024},
            "are seen by layers in part",
        ),
    ],
)
@pytest.mark.parametrize("option", [{"chunk": 16}, {"cached": 16}, {"concurrency": 16}])
def test_prompts_that_are_read_as_a_whole(
    model: str, passes: str, sizes: dict[str, int], why: str, option: dict[str, int]
) -> None:
    """An option that could not act is refused by name."""
    whole = llmir.run(llmir.load(model), [passes] if passes else [])
    (name,) = option
    says = f"^{name}: 16.*{'is not modelled' if name == 'concurrency' else why}|^cached: expected fewer"
    with pytest.raises(InputError, match=says):
        llmir.workload(whole, "h100", **records(llmir.workload, **sizes, **option))
