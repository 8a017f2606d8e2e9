"""Steps that wait for their launches, and hosts whose work is hidden behind steps."""

from __future__ import annotations

import numpy as np
import pytest

import llmir
from llmir.backends.cost.models import model
from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.engine_cpu import (
    AsyncEngineCpu,
    EngineCpu,
    OverlappedEngineCpu,
    RunShape,
    StepShape,
)
from llmir.backends.request.workload import Workload
from llmir.backends.silicon.closed_loop import InteractiveRun, MeasurementMethod
from llmir.backends.silicon.validate.estimates import CostModelChoice
from llmir.hw import library
from tests.flat import records

SHARDED = llmir.run(llmir.load("llama3.1-8b"), [llmir.pipeline_of("vllm"), "shard{tp=8}"])
BUSY, BESIDE = (5e-3, 50e-3), 10e-3  # seconds of kernels that take less and more than the host


@pytest.mark.parametrize("engine", ["vllm@0.6", "sglang@0.5.1", "trtllm"])
@pytest.mark.parametrize("decodes", [0, 3])
def test_short_prompts_take_as_long_as_their_launches(engine: str, decodes: int) -> None:
    """No graph holds a step that reads prompts, and eight ranks are done before the next kernel comes."""
    step = llmir.server(SHARDED, "h100-sxm", estimation=llmir.Estimation(engine=engine)).prices().step
    host = model(library.load("h100-sxm"), engine=engine).host
    assert host is not None
    parts = [{"batch": 1, "new": 1, "context": 500}] * decodes + [{"batch": 1, "new": 64, "context": 0}]
    whole = llmir.analyze(
        SHARDED, "h100-sxm", **records(llmir.analyze, engine=engine, **parts[0], beside=parts[1:])
    )
    kernels = sum(row.repeat for row in whole.plan.rows)
    assert whole.time_s >= kernels * host.kernel_us * 1e-6
    sums = [decodes * 500] * len(step.functions) if decodes else ()  # type: ignore[attr-defined]
    assert step(decodes, sums, ((64, 0),)) == pytest.approx(whole.time_s, rel=1e-12, abs=0)


def step(busy: float) -> StepShape:
    return StepShape(busy, 0, 100, 1000)


def test_an_overlapped_step_takes_the_longer_of_the_host_and_all_else() -> None:
    host = OverlappedEngineCpu(hidden=0, step_us=2000, sequence_us=8, kernel_us=1, skew_us=0.05)
    short, long = (host.step(step(busy), np) for busy in BUSY)
    assert (short, long) == pytest.approx((BESIDE, BUSY[1]))
    assert host.step(step(BUSY[0]).times(7), np) == pytest.approx(7 * short)
    assert [host.serial.step(step(busy), np) for busy in BUSY] == pytest.approx([b + BESIDE for b in BUSY])
    assert type(host.serial.serial) is EngineCpu


def test_an_asynchronous_step_hides_its_work_on_sequences() -> None:
    """2 ms of each step are exposed, and of 8 ms for a thousand sequences what the kernels do not cover."""
    host = AsyncEngineCpu(hidden=0, step_us=2000, sequence_us=8, kernel_us=1, skew_us=0.05)
    assert [host.step(step(busy), np) for busy in BUSY] == pytest.approx([2e-3 + 8e-3, 2e-3 + BUSY[1]])
    assert host.step(step(BUSY[0]).times(7), np) == pytest.approx(7 * 10e-3)
    assert [host.serial.step(step(busy), np) for busy in BUSY] == pytest.approx([b + BESIDE for b in BUSY])
    assert type(host.serial) is EngineCpu


@pytest.mark.parametrize(
    ("engine", "family"),
    [
        ("trtllm", OverlappedEngineCpu),
        ("sglang", EngineCpu),
        ("vllm", AsyncEngineCpu),
        ("vllm@0.12", EngineCpu),
    ],
)
def test_a_report_says_what_is_left_of_the_host(engine: str, family: type[EngineCpu]) -> None:
    """Of long steps nothing where they overlap; the parts add up to the whole in any case."""
    of = library.engine(engine)
    assert KERNELS[of.family] is family
    few = llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of(engine))
    for program, batch in ((few, 256), (SHARDED, 1)):
        report = llmir.analyze(
            program, "h100-sxm", batch=batch, new=1, context=64, estimation=llmir.Estimation(engine=engine)
        )
        host = KERNELS[of.family].of(of.host.parameters, "test")
        assert isinstance(host, EngineCpu)
        beside = host.cpu_time(batch)
        alone = sum(op.total_s for op in report.ops if op.kind != "overhead")
        whole = float(report.time_s)
        assert alone + sum(report.overhead.values()) == pytest.approx(whole, rel=1e-12, abs=0)
        assert whole >= beside * (1 - 1e-12)
        rest = whole - report.overhead["host_s"]
        exposed = {
            EngineCpu: beside,
            OverlappedEngineCpu: max(0.0, beside - rest),
            AsyncEngineCpu: host.step_us * 1e-6 + max(0.0, host.sequence_us * 1e-6 * batch - rest),
        }
        assert report.overhead["host_s"] == pytest.approx(exposed[family])


def test_an_engine_that_was_told_to_wait_hides_nothing() -> None:
    """As a source says of its runs; the engine's own default is another."""
    device, pricing = library.load("h100-sxm"), CostModelChoice("calibrated")
    jobs = [
        pricing.workload(SHARDED, device, "trtllm", (1, 512, 64), None, MeasurementMethod(ahead=ahead))
        for ahead in (None, False)
    ]
    assert all(isinstance(job, Workload) for job in jobs)
    both = [job.prefill.plan.host for job in jobs]
    assert list(map(type, both)) == [OverlappedEngineCpu, EngineCpu]
    assert vars(both[0]) == vars(both[1])
    loops = [
        InteractiveRun(job, 8, MeasurementMethod(rounds=3, ahead=ahead))
        for job, ahead in zip(jobs, (None, False), strict=True)
    ]
    assert loops[0].tpot_s < loops[1].tpot_s
    decode = jobs[1].decode
    assert decode is not None
    assert decode.overhead["host_s"] == pytest.approx(both[1].cpu_time(1))


def test_a_share_of_memory_that_a_source_tells_holds_less() -> None:
    device, pricing = library.load("h100-sxm"), CostModelChoice("calibrated")
    some, most = (
        pricing.workload(SHARDED, device, "trtllm", (1, 512, 64), None, MeasurementMethod(utilization=share))
        for share in (0.8, None)
    )
    assert some.pool is not None
    assert most.pool is not None
    assert 0.88 < some.pool.kv_tokens / most.pool.kv_tokens < 0.9  # type: ignore[operator]


def test_runs_add_idle_time_to_either_host() -> None:
    host = OverlappedEngineCpu(hidden=0, step_us=2000, sequence_us=8, kernel_us=1, skew_us=0.05)
    shape = RunShape(step(BUSY[1]).times(3), step(BUSY[0]), 0.5)
    assert host.seconds(library.load("h100-sxm"), shape) == pytest.approx(3 * BUSY[1] + BESIDE + 0.5)
