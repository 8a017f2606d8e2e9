"""Timelines: slices that tile every stage's step, and files that other tools read."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.export.timeline import trace
from llmir.backends.step.report import Report, TimeSlice
from llmir.base.errors import InputError, OutputError
from tests.commands import Run
from tests.flat import records
from tests.strategies import FUSIONS, configs, cuts, degrees, points, wide

FAMILIES = (
    "deepseek-v3",
    "gemma-3-12b",
    "gpt-oss-20b",
    "nemotron-h-8b",
    "qwen3-next-80b-a3b",
    "kimi-linear-48b-a3b",
)


def check(report: Report) -> None:
    """What a timeline must be of any step."""
    stages: dict[int, list[TimeSlice]] = defaultdict(list)
    for s in report.timeline():
        stages[s.stage].append(s)
    assert sorted(stages) == list(range(len(report.program.entries)))
    for stage, slices in stages.items():
        assert slices[0].start_s == 0
        assert all(a.end_s == b.start_s for a, b in pairwise(slices))  # without a gap, nothing twice
        assert slices[-1].end_s == pytest.approx(report.time_s, rel=1e-12, abs=0)
        ops = [op for op in report.work if op.stage == stage]
        runs = Counter(s.op for s in slices if s.kind != "overhead")
        assert runs == {op.name: op.repeat for op in ops}
        flops = sum(op.flops * op.repeat for op in ops)
        assert sum(s.flops for s in slices) == pytest.approx(flops, rel=1e-12, abs=0)
        seconds: dict[str, Fraction] = defaultdict(Fraction)
        for s in slices:
            seconds["bubble" if s.bound == "bubble" else "works"] += Fraction(s.end_s) - Fraction(s.start_s)
        row = report.stages[stage]
        assert float(seconds["bubble"]) == pytest.approx(row.bubble_s, rel=1e-9, abs=1e-12 * report.time_s)
        assert float(seconds["works"]) == pytest.approx(row.ops_s + row.overhead_s, rel=1e-12, abs=0)
        assert max(s.live_bytes for s in slices) == row.activation_peak_bytes


@pytest.mark.slow
@given(configs(), FUSIONS, points(), st.sampled_from(("ideal", "calibrated")), st.data())
@settings(max_examples=60)
def test_slices_tile_the_step(
    config: dict[str, Any], passes: str, point: dict[str, int], cost: str, data: st.DataObject
) -> None:
    cut = data.draw(cuts(config["num_hidden_layers"]))
    program = llmir.run(llmir.load(config), [passes, cut] if passes else [cut])
    point["batch"] *= cut.micro_batches
    check(llmir.analyze(program, "h100-sxm", **records(llmir.analyze, **point, cost=cost)))


@pytest.mark.slow
@given(configs(), FUSIONS, points(), st.data())
@settings(max_examples=30)
def test_slices_tile_the_step_of_ranks(
    config: dict[str, Any], passes: str, point: dict[str, int], data: st.DataObject
) -> None:
    """Split over tensors, experts and sequences too, and in stages."""
    config = wide(config, 12)
    cut, how = data.draw(cuts(config["num_hidden_layers"])), data.draw(degrees(config))
    base = llmir.run(llmir.load(config), passes)
    assume("ep=0" not in how and ("ep=1," in how or base.active_parameters < base.parameters))
    program = llmir.run(base, [cut, how])
    point["batch"] *= cut.micro_batches * program.mesh.degree("dp")
    check(llmir.analyze(program, "h100-sxm", **records(llmir.analyze, **point)))


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("split", ["", "shard{tp=2},stages{pp=3, micro_batches=2}"])
def test_families(model: str, split: str) -> None:
    program = llmir.run(llmir.load(model), [llmir.pipeline_of("vllm"), *([split] if split else [])])
    for new, context in ((1, 700), (64, 0)):
        check(llmir.analyze(program, "h200", batch=4, new=new, context=context))


@pytest.mark.parametrize("engine", ["hf-transformers", "sglang", "vllm", "trtllm"])
def test_what_engines_add_is_there(engine: str) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), [llmir.pipeline_of(engine), "shard{tp=2}"])
    report = llmir.analyze(
        program, "h100-sxm", batch=2, context=512, estimation=llmir.Estimation(engine=engine)
    )
    found: dict[str, float] = defaultdict(float)
    for s in report.timeline():
        if s.kind == "overhead":
            found[s.op] += s.time_s
    stated = {row.name: row.total_s for row in report.engine}
    assert found == pytest.approx({name: time for name, time in stated.items() if time}, rel=1e-9, abs=0)


def test_layers_are_numbered() -> None:
    program = llmir.run(llmir.load("gemma-3-12b"), llmir.pipeline_of("vllm"))
    report = llmir.analyze(program, "h100-sxm", batch=1, context=4096)
    paths = [s.path for s in report.timeline() if s.path.endswith(".qkv_proj")]
    assert len(paths) == len(set(paths)) == 48
    assert paths[5:8] == [
        "period[0].full_layer[5].qkv_proj",
        "period[6].sliding_layer[6].qkv_proj",
        "period[6].sliding_layer[7].qkv_proj",
    ]


def workload(pipeline: str = "") -> Any:
    passes = [llmir.pipeline_of("vllm"), *([pipeline] if pipeline else [])]
    return llmir.workload(
        llmir.run(llmir.load("llama3.2-1b"), passes), "h100-sxm", batch=4, prompt=300, generate=9
    )


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["", "shard{tp=2}", "stages{pp=2, micro_batches=2},shard{tp=2}"])
def test_a_file_is_what_was_predicted(pipeline: str, tmp_path: Path) -> None:
    job = workload(pipeline)
    path = llmir.trace(job, tmp_path / "x.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document == trace(job) == json.loads(llmir.trace(job, tmp_path / "x.json").read_text("utf-8"))
    events = document["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    expected: list[TimeSlice] = []
    began: list[float] = []
    start = 0.0
    for step in job.steps.values():
        own = [s for s in step.timeline() if s.kind != "overhead" and s.time_s]
        expected += own
        began += [1e6 * (start + s.start_s) for s in own]
        start += step.time_s
    assert [e["args"]["path"] for e in kernels] == [s.path for s in expected]
    assert [e["ts"] for e in kernels] == pytest.approx(began, abs=1e-3)
    assert [e["dur"] for e in kernels] == pytest.approx([1e6 * s.time_s for s in expected], abs=2e-3)
    assert [e["args"]["flops"] for e in kernels] == [s.flops for s in expected]
    assert {e["pid"] for e in kernels} == {s.rank for s in expected}


def test_ranges_nest() -> None:
    """On each thread an event ends before the next begins, or holds it whole, as viewers need."""
    events = [e for e in trace(workload("stages{pp=2, micro_batches=2}"))["traceEvents"] if e["ph"] == "X"]
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for e in events:
        start = round(1000 * e["ts"])
        threads[e["pid"], e["tid"]].append((start, start + round(1000 * e["dur"])))
    for spans in threads.values():
        open_until: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    names = {e["name"] for e in events if e["cat"] == "gpu_user_annotation"}
    assert {"ProfilerStep#0", "ProfilerStep#1", "layer[0]", "layer[15]"} <= names


def test_a_rank_has_a_file_of_its_own() -> None:
    job = workload("shard{tp=2},stages{pp=2}")
    whole, one = trace(job), trace(job, rank=3)
    assert {e["pid"] for e in whole["traceEvents"]} == {0, 2}
    assert {e["pid"] for e in one["traceEvents"]} == {3}
    assert one["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 4}
    second = [e["ts"] for e in whole["traceEvents"] if e["pid"] == 2]
    assert [e["ts"] for e in one["traceEvents"]] == second


def test_what_has_no_timeline() -> None:
    program = llmir.load("llama3.2-1b")
    with pytest.raises(InputError, match="one point, got a grid of"):
        llmir.analyze(program, "h100", batch=[1, 2]).timeline()
    job = workload()
    with pytest.raises(InputError, match="rank: expected an integer from 0 to 0, got 1"):
        trace(job, rank=1)
    with pytest.raises(InputError, match="no draft step; trace its prefill or decode"):
        trace(job, phase="draft")


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"a trace is a \.json or \.json\.gz"):
        llmir.trace(workload(), tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


def test_the_command(run: Run, tmp_path: Path) -> None:
    ran = run("trace", "llama3.2-1b", "--phase", "decode")
    assert ran.code == 0
    assert ran.out == "Llama-3.2-1B.trace.json.gz\n"
    events = json.loads(gzip.decompress((tmp_path / "Llama-3.2-1B.trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    assert {e["name"] for e in events if e["ph"] == "X" and e["cat"] == "user_annotation"} == {
        "ProfilerStep#0"
    }
    assert run("trace", "llama3.2-1b", "-o", "-").code == 2
    for rank in ("7", "-1"):
        refused = run("trace", "llama3.2-1b", "--rank", rank)
        assert refused.code == 2 and "expected an integer from 0 to 0" in refused.err
