"""Prefill in chunks and after a cached prefix: what is read is the same, however it is cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.analysis.chunks import Chunk, chunks
from llmir.errors import InputError
from llmir.graph import Program

from .commands import Run, runner

SIZES = st.integers(1, 300)


@given(SIZES, SIZES, st.integers(0, 50), st.none() | st.integers(1, 400), st.integers(1, 4))
def test_each_token_of_each_prompt_is_read_once(
    prompts: int, new: int, cached: int, budget: int | None, lanes: int
) -> None:
    read: dict[int, int] = {}  # by place in a prompt, how many prompts' token it is
    for chunk in chunks(prompts, new, cached, budget, lanes):
        each = -(-chunk.prompts // min(lanes, prompts))  # prompts of a lane
        assert budget is None or each * chunk.new <= budget
        for start in np.atleast_1d(chunk.cached):
            for place in range(int(start), int(start) + chunk.new):
                read[place] = read.get(place, 0) + chunk.prompts * chunk.times
    assert read == dict.fromkeys(range(cached, cached + new), prompts)


def test_a_budget_of_all_tokens_is_one_step() -> None:
    assert chunks(4, 100, 7, 400) == chunks(4, 100, 7, None) == (Chunk(4, 100, 7),)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def program() -> Program:
    return llmir.run(llmir.load("qwen3-0.6b", "all"), llmir.DEFAULT_PIPELINE)


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
        llmir.workload(program, "h100", batch=2, prompt=1000, generate=4, chunk=n, cost="ideal")
        for n in (None, 2000)
    )
    assert (one.ttft_s, one.peak_bytes(2)) == (same.ttft_s, same.peak_bytes(2))


def test_ttft_is_the_sum_of_the_chunks(program: Program) -> None:
    job = llmir.workload(program, "h100", batch=1, prompt=1000, generate=4, chunk=300)
    steps = [(300, 0), (300, 300), (300, 600), (100, 900)]
    times = [llmir.analyze(program, "h100", batch=1, new=n, context=c).time_s for n, c in steps]
    assert job.ttft_s == pytest.approx(sum(times))
    assert (job.prefill.new, job.prefill.context) == (300, 600)


def test_smaller_chunks_need_less_memory_and_more_time(program: Program) -> None:
    jobs = [
        llmir.workload(program, "h100", batch=8, prompt=4096, generate=4, chunk=2**n) for n in range(6, 16)
    ]
    assert all(a.ttft_s >= b.ttft_s for a, b in pairwise(jobs))
    assert all(a.peak_bytes(8) <= b.peak_bytes(8) for a, b in pairwise(jobs))


def test_stages_go_on_with_the_next_chunk() -> None:
    """The makespan of a flow shop: all chunks through the slowest stage, the last through the others too."""
    piped = llmir.run(llmir.load("qwen3-0.6b"), ["stages{pp=2}", llmir.DEFAULT_PIPELINE])
    job = llmir.workload(piped, "h100", batch=1, prompt=1024, generate=1, chunk=256, cost="ideal")
    steps = [llmir.analyze(piped, "h100", batch=1, new=256, context=256 * i, cost="ideal") for i in range(4)]
    assert job.ttft_s == pytest.approx(sum(s.interval_s for s in steps[:3]) + steps[3].time_s)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunk": 0}, "chunk: expected an integer from 1"),
        ({"cached": -1}, "cached: expected an integer from 0"),
        ({"cached": 1000}, "cached: expected fewer than the 1,000 tokens of a prompt"),
        ({"chunk": 1.5}, "chunk: expected an integer"),
    ],
)
def test_what_cannot_be_read(program: Program, options: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        llmir.workload(program, "h100", prompt=1000, **options)


def test_the_command_line_has_both(run: Run) -> None:
    asked = ["analyze", "qwen3-0.6b", "--hw", "h100", "--prompt", "1000"]
    shown = " ".join(run(*asked, "--chunk", "300", "--cached", "100").out.split())
    assert "prompt 1,000, 100 of them cached, generate 128" in shown
    assert "the first token, in 3 steps of 300 tokens at most" in shown
    assert run(*asked, "--cached", "1000").err.startswith(
        "error: cached: expected fewer than the 1,000 tokens"
    )
    assert run(*asked, "--chunk", "0").err.startswith("error: --chunk: expected an integer from 1")


@pytest.mark.parametrize(
    ("batch", "more", "said"),
    [(8, (), False), (9, (), True), (9, ("--chunk", "8192"), False), (16, ("--dp", "2"), False)],
)
def test_one_step_that_an_engine_would_cut_is_said(
    batch: int, more: tuple[str, ...], said: bool, run: Run
) -> None:
    asked = ["analyze", "qwen3-0.6b", "--hw", "h100-sxm", "--prompt", "1024", "--batch", str(batch)]
    shown = " ".join(run(*asked, *more).out.split())
    assert ("all prompts in one step, where vllm 0.21 reads 8,192 tokens" in shown) == said


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
        llmir.workload(whole, "h100", **sizes, **option)
