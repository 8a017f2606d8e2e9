"""The largest batch, context and number of users: exact against brute force, and what is said of limits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.request.largest import CapacityAnswer, largest_meeting
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from tests.commands import TINY, Run
from tests.flat import records

ENGINES = ("vllm", "sglang", "trtllm")
LLAMA = {engine: llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of(engine)) for engine in ENGINES}
TP2 = llmir.run(LLAMA["vllm"], "shard{tp=2}")
MODELS = [*LLAMA.items(), ("vllm", TP2)]
SMALL = """
name: Small
extend: h100-sxm
memory_GiB: 20
physical_GiB: 19.5
"""  # on which few requests of an 8B model fit


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def meets(program: Program, hw: Any, engine: str, limits: dict[str, float], **asked: int) -> bool:
    """Whether a batch fits and comes within limits, as `workload` says, and the engine runs so many."""
    job = llmir.workload(program, hw, **records(llmir.workload, engine=engine, **asked))
    late = any(getattr(job, name) > limit for name, limit in limits.items())
    assert job.pool is not None
    return job.fits and not late and job.batch <= job.pool.sequences * program.parallelism.dp


def users(program: Program, hw: Any, engine: str, limits: dict[str, float], n: int, **asked: int) -> bool:
    """Whether so many users are all in flight and get their tokens within limits."""
    loop = llmir.workload(program, hw, **records(llmir.workload, engine=engine, concurrency=n, **asked)).loop  # type: ignore[attr-defined]
    late = any(getattr(loop, name) > limit for name, limit in limits.items())
    return n <= loop.max_in_flight and not late


def boundary(of: CapacityAnswer, ok: Callable[[int], bool], least: int = 1) -> None:
    """The answer meets, one more does not."""
    assert of.most == 0 or ok(of.most)
    assert not ok(of.most + of.step if of.most else least)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.integers(1, 3000),
    st.integers(2, 60),
    st.floats(0.005, 3),
    st.floats(0.003, 0.06),
)
def test_answers_meet_and_one_more_does_not(
    model: tuple[str, Program], prompt: int, generate: int, ttft_s: float, tpot_s: float
) -> None:
    engine, program = model
    asked = {"prompt": prompt, "generate": generate}
    found = llmir.largest(
        program,
        "h100-sxm",
        **records(llmir.largest, engine=engine, **asked, max_ttft=ttft_s, max_tpot=tpot_s),
    )
    limits = {"ttft_s": ttft_s, "tpot_s": tpot_s}
    of = program, "h100-sxm", engine, limits
    boundary(found.batch, lambda n: meets(*of, batch=n, **asked))
    boundary(found.requests, lambda n: users(*of, n=n, **asked))
    positions = 131_072  # of Llama 3.1
    longest = 8192 if engine == "trtllm" else positions  # TensorRT-LLM rejects prompts above max_num_tokens

    def fits(tokens: int) -> bool:
        prompt = tokens - generate
        allowed = tokens <= positions and prompt <= longest
        return allowed and meets(*of, batch=1, prompt=prompt, generate=generate)

    boundary(found.context, fits, generate + 1)
    for answer in found.answers.values():
        binding = answer.binding
        assert binding and binding.most == answer.most
        alone = [limit.most for limit in answer.limits if limit.hard and limit.most is not None]
        assert answer.most == min(alone)


@pytest.mark.slow
def test_every_smaller_batch_and_context_meets(small: Path) -> None:
    """Brute force: the answer is the largest, not one of several ends."""
    program, limits = LLAMA["vllm"], {"ttft_s": 0.3, "tpot_s": 0.009}
    found = llmir.largest(program, small, prompt=500, generate=9, max_ttft="300ms", max_tpot="9ms")
    assert all(answer.most > 3 for answer in found.answers.values())
    of = program, small, "vllm", limits
    good = [n for n in range(1, 60) if meets(*of, batch=n, prompt=500, generate=9)]
    assert good == list(range(1, found.batch.most + 1))
    good = [n for n in range(1, 60) if users(*of, n=n, prompt=500, generate=9)]
    assert good == list(range(1, found.requests.most + 1))
    every = range(10, found.context.most + 2000, 97)
    good = [n for n in every if meets(*of, batch=1, prompt=n - 9, generate=9)]
    assert good == [n for n in every if n <= found.context.most]


def test_memory_alone_is_the_largest_batch_of_analyze(small: Path) -> None:
    job = llmir.workload(LLAMA["vllm"], small, prompt=500, generate=9)
    found = llmir.largest(LLAMA["vllm"], small, prompt=500, generate=9)
    assert 0 < found.batch.most == job.max_batch < 100
    assert found.batch.binding is not None and found.batch.binding.name == "memory"
    # One request of 508 cached tokens takes 32 blocks of 16, of 128 KiB a token in 32 layers of 8 heads.
    assert found.batch.binding.more == 512 * 2 * 32 * 8 * 128 * 2


def test_limits_say_figures_of_workloads() -> None:
    asked = {"prompt": 700, "generate": 20}
    found = llmir.largest(LLAMA["vllm"], "h100-sxm", **records(llmir.largest, **asked, max_tpot=0.012))
    here, more = (
        llmir.workload(
            LLAMA["vllm"], "h100-sxm", **records(llmir.workload, batch=found.batch.most + i, **asked)
        )
        for i in (0, 1)
    )
    limits = {limit.name: limit for limit in found.batch.limits}
    for name in ("ttft", "tpot"):
        first, then = (getattr(job, f"{name}_s") for job in (here, more))
        assert limits[name].used == first and limits[name].more == pytest.approx(then - first)
    assert limits["memory"].used == here.peak_bytes(here.batch)
    assert limits["ttft"].most is None and limits["ttft"].allowed is None
    assert limits["one step reads"].most == 8192 // 700 and not limits["one step reads"].hard
    prefill, decode = found.batch.of("prefill"), found.batch.of("decode")
    assert prefill and prefill.name == "memory" and decode and decode.name == "tpot"


def test_stated_limits_of_the_engine_bind() -> None:
    found = llmir.largest(LLAMA["vllm"], "h100-sxm", memory=llmir.Memory(max_model_len=4000, max_num_seqs=16))
    assert (found.batch.most, found.context.most, found.requests.most) == (16, 4000, 16)
    names = [answer.binding.name for answer in found.answers.values() if answer.binding]
    assert names == ["max_num_seqs", "max_model_len", "max_num_seqs"]


def test_micro_batches_come_whole() -> None:
    program = llmir.run(
        llmir.load("llama3.1-8b"), "stages{pp=2, micro_batches=4}," + llmir.pipeline_of("vllm")
    )
    found = llmir.largest(program, "h100-sxm", max_tpot="25ms")
    for answer in (found.batch, found.requests):
        assert answer.step == 4 and answer.most % 4 == 0 and answer.most
    job = llmir.workload(program, "h100-sxm", batch=found.batch.most, prompt=2048, generate=128)
    assert job.tpot_s is not None and job.tpot_s <= 0.025


@given(st.integers(0, 5000), st.integers(1, 4000))
def test_halving(last: int, cap: int) -> None:
    assert largest_meeting(lambda n: n <= last, cap) == min(last, cap)


@pytest.mark.slow
def test_the_command(run: Run) -> None:
    asked = ("max", "llama3.1-8b", "--max-ttft", "1s", "--max-tpot", "20ms")
    ran = run(*asked)
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80
    report = json.loads(run(*asked, "--format", "json").out)
    assert report["batch"]["prefill"] == "ttft" and report["batch"]["decode"] == "tpot"
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--format", "csv").out)))
    for name in ("batch", "context", "requests"):
        own = [row for row in rows if row["answer"] == name]
        assert [row["name"] for row in own] == [limit["name"] for limit in report[name]["limits"]]
        assert [row["name"] for row in own if row["binds"] == "True"] == [report[name]["binds"]]
        assert {row["answer_most"] for row in own} == {str(report[name]["most"])}
    assert "| limit " in run(*asked, "--format", "md").out


def test_a_bare_number_is_milliseconds(run: Run) -> None:
    asked = ("max", "llama3.1-8b", "--format", "json", "--max-tpot")
    assert run(*asked, "20").out == run(*asked, "20ms").out != run(*asked, "25").out


def test_money(run: Run) -> None:
    asked = ("max", "llama3.1-8b", "--hw", "h20", "--format", "json")
    bare, priced = (json.loads(run(*asked, *more).out) for more in ((), ("--price", "h20=3.6")))
    assert bare["batch"]["cost_usd_per_mtok"] is None
    for name in ("batch", "context", "requests"):
        rate = priced[name]["output_tokens_per_s"]
        assert priced[name]["cost_usd_per_mtok"] == pytest.approx(3.6 / 3600 / rate * 1e6)
        assert bare[name]["energy_j_per_token"] == pytest.approx(400 / rate)  # watts by the datasheet


def test_not_even_one(run: Run) -> None:
    ran = run("max", "llama3.1-8b", "--max-ttft", "10ms")
    assert ran.code == 1 and "none, not even 1" in ran.out
    first, second = (line for line in ran.err.splitlines() if line.startswith("limit not met"))
    assert (
        first.startswith("limit not met: batch: even 1 request misses a limit: TTFT is ") and "above" in first
    )
    assert second.startswith("limit not met: requests:")
    ran = run("max", "llama3.1-70b")  # whose weights do not fit
    assert ran.code == 1 and ran.err.count("limit not met: ") == 3 and "memory" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-tpot", "20m"), "has no unit"),
        (("--max-tpot", "p50:20ms"), "only to simulated requests"),
        (("--max-tpot", "20ms", "--generate", "1"), "no later one"),
        (("--max-ttft", "0s"), "above 0"),
        (("--max-model-len", "100"), "2,176 tokens"),
        (("--price", "h200=3"), "not among the devices"),
        (("--prompt", "0"), "prompt"),
    ],
)
def test_errors_are_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run("max", "llama3.1-8b", *arguments)
    assert ran.code == 2 and says in ran.err and ran.err.count("\n") == 1


def test_images_have_no_tokens() -> None:
    with pytest.raises(InputError, match="is an image model"):
        llmir.largest(llmir.load("dit-xl-2-256"), "h100-sxm")


def test_a_tiny_model_on_no_engine() -> None:
    """Without an engine's rule there are no sequences and no budget; positions still end a context."""
    found = llmir.largest(llmir.load(TINY), "cpu", prompt=8, generate=4)
    assert {limit.name for limit in found.batch.limits} == {"ttft", "tpot", "memory"}
    assert found.context.most == TINY["max_position_embeddings"]


@pytest.mark.parametrize("lengths", ["spread", "fixed"])
def test_users_have_the_times_of_a_simulated_closed_loop(lengths: str) -> None:
    """As `simulate` of as many users gives them; one user more misses the limit there."""
    how: dict[str, Any] = {"prompt": 1000, "generate": 100, "lengths": lengths}
    found = llmir.largest(LLAMA["vllm"], "h100-sxm", max_tpot="8ms", **how).requests
    for users, meets in ((found.most, True), (found.most + 1, False)):
        served = llmir.simulate(LLAMA["vllm"], "h100-sxm", llmir.Traffic(closed=users, **how))
        tpot = served.latencies["tpot"]
        assert tpot is not None and (tpot.mean <= 8e-3) == meets
        if meets:
            assert found.tpot_s == pytest.approx(tpot.mean)


def test_answers_of_unknown_lengths_are_refused(run: Run) -> None:
    with pytest.raises(InputError, match="lengths: expected spread or fixed"):
        llmir.largest(LLAMA["vllm"], "h100-sxm", lengths="long")
    done = run("max", "llama3.1-8b", "--lengths", "long")
    assert done.code == 2 and done.err.count("\n") == 1 and "'spread', 'fixed'" in done.err
