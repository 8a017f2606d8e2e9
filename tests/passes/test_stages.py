"""Pipeline stages: what they compute, what each holds, and how long a step through them takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.step.timing import Timing
from llmir.base.errors import InputError, ParseError, PassError, VerifyError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.loops import even
from llmir.ir.tools.text import parse_program, print_program
from llmir.ir.tools.verify import verify
from llmir.passes.stages import Stages
from tests.commands import Run
from tests.flat import records
from tests.logits import ids, logits, same
from tests.strategies import FUSIONS, LOGITS, configs, cuts, degrees, wide


@pytest.mark.slow
@given(configs(), LOGITS, FUSIONS, st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_staged_is_unstaged(
    config: dict[str, Any], which: str, before: str, data: st.DataObject, pieces: list[int]
) -> None:
    program = llmir.run(llmir.load(config, logits=which), before)
    cut = data.draw(cuts(config["num_hidden_layers"]))
    tokens = ids(2 * cut.micro_batches, sum(pieces), config["vocab_size"])
    expected = logits(program, tokens, *pieces)
    assert same(expected, logits(llmir.run(program, cut), tokens, *pieces))
    assert same(expected, logits(llmir.run(program, [cut, "fuse-attention,fuse,unroll"]), tokens, *pieces))


@pytest.mark.slow
@given(configs(), FUSIONS, st.data(), st.integers(1, 3))
@settings(max_examples=50)
def test_staged_and_sharded_is_neither(
    config: dict[str, Any], before: str, data: st.DataObject, new: int
) -> None:
    """All ranks of all stages, whichever pass comes first; and both orders make the same program."""
    config = wide(config, 12)
    base = llmir.run(llmir.load(config), before)
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or base.active_parameters < base.parameters))
    cut = data.draw(cuts(config["num_hidden_layers"]))
    program = llmir.run(base, [cut, how])
    assert program == llmir.run(base, [how, cut])
    assert program.devices == program.mesh.devices * len(program.entries)
    tokens = ids(program.mesh.degree("dp") * cut.micro_batches, 2 * new, config["vocab_size"])
    assert same(logits(base, tokens, new, new), logits(program, tokens, new, new))


@pytest.mark.slow
@given(configs(), FUSIONS, st.data(), st.integers(1, 9), st.integers(1, 20), st.integers(0, 20))
def test_stages_conserve_work_and_bytes(
    config: dict[str, Any], before: str, data: st.DataObject, batch: int, new: int, context: int
) -> None:
    """What stages do and hold together is what one device does and holds, and a tied embedding twice."""
    program = llmir.run(llmir.load(config), before)
    cut = data.draw(cuts(config["num_hidden_layers"]))
    staged = llmir.run(program, cut)
    assert staged.parameters_by_kind == program.parameters_by_kind
    assert staged.active_parameters == program.active_parameters
    point = {"batch": batch * cut.micro_batches, "new": new, "context": context}
    one, each = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, staged))
    assert each.matmul_flops == one.matmul_flops
    twice = 0
    if config["tie_word_embeddings"] and len(staged.entries) > 1:
        embedding = program["main"]["embed.weight"].results[0]
        twice = int(embedding.bytes)  # type: ignore[arg-type]
    assert sum(s.weight_bytes for s in each.stages) == one.weight_bytes + twice
    assert sum(s.kv_cache_bytes for s in each.stages) == one.kv_cache_bytes
    assert each.peak_memory_bytes == max(s.peak_memory_bytes for s in each.stages)
    assert each.peak_memory_bytes == each.weight_bytes + each.kv_cache_bytes + each.activation_peak_bytes
    hidden = program["layer" if "layer" in program.graphs else next(g for g in program.graphs if g != "main")]
    payload = Binding(B=batch, T=new, C=0)(hidden.inputs[0].results[0].bytes)
    parts = cut.micro_batches
    assert each.comm_bytes == (len(staged.entries) - 1) * parts * payload
    for stage in each.stages:
        rows = sum(op.time_s * op.repeat for op in each.ops if op.stage == stage.stage)
        assert rows == pytest.approx(each.time_s, rel=1e-12, abs=0)


def flow_shop(stages: list[int], jobs: int) -> int:
    """When the last of equal jobs leaves the last machine, simulated."""
    free = [0] * len(stages)
    for _ in range(jobs):
        ready = 0
        for i, time in enumerate(stages):
            ready = free[i] = max(ready, free[i]) + time
    return free[-1]


def decoding(stages: list[int], jobs: int, steps: int) -> int:
    """The same for jobs that come back, each as soon as it has left the last machine."""
    free, back = [0] * len(stages), [0] * jobs
    for _ in range(steps):
        for job in range(jobs):
            ready = back[job]
            for i, time in enumerate(stages):
                ready = free[i] = max(ready, free[i]) + time
            back[job] = ready
    return max(back)


STAGES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(STAGES, st.integers(1, 6))
def test_a_step_is_a_flow_shop(stages: list[int], jobs: int) -> None:
    timing = Timing(tuple(stages), jobs)
    assert timing.step == flow_shop(stages, jobs)
    assert timing.busy == jobs * sum(stages)
    assert timing.bubble == pytest.approx(1 - timing.busy / (len(stages) * flow_shop(stages, jobs)))


@given(STAGES, st.integers(1, 6))
def test_steps_follow_one_another_after_a_period(stages: list[int], jobs: int) -> None:
    many, more = (decoding(stages, jobs, steps) for steps in (40, 60))
    assert more - many == 20 * Timing(tuple(stages), jobs).period


@given(st.integers(1, 8), st.integers(1, 12))
def test_the_bubble_of_equal_stages(stages: int, jobs: int) -> None:
    """(p − 1) / (m + p − 1), arXiv:2104.04473."""
    assert Timing((1.0,) * stages, jobs).bubble == pytest.approx((stages - 1) / (jobs + stages - 1))


@given(st.integers(1, 200), st.data())
def test_even_stages(layers: int, data: st.DataObject) -> None:
    sizes = even(layers, data.draw(st.integers(1, layers)))
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@given(configs(), FUSIONS)
@settings(max_examples=30)
def test_one_stage_changes_nothing(config: dict[str, Any], before: str) -> None:
    program = llmir.run(llmir.load(config), before)
    assert llmir.run(program, "stages{pp=1}") is program
    assert llmir.run(program, Stages(layers=[config["num_hidden_layers"]])) is program


@pytest.mark.parametrize(
    ("tp", "pp", "sizes"), [(8, 2, (63, 63)), (4, 4, (31, 32, 32, 31)), (1, 16, (7, *(8,) * 14, 7))]
)
def test_bytes_of_405b_on_16_devices(tp: int, pp: int, sizes: tuple[int, ...]) -> None:
    """By closed form: hidden 16384, intermediate 53248, 8 key/value heads of 128, vocabulary 128256, bf16."""
    program = llmir.run(llmir.load("llama3.1-405b"), f"stages{{pp={pp}}},shard{{tp={tp}}}")
    assert program.devices == 16
    hidden, kv = 16384, 8 * 128
    layer = (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * 53248) // tp + 2 * hidden
    vocabulary = 128256 * hidden // tp
    report = llmir.analyze(program, "h200", batch=4, new=1, context=999)
    for number, (stage, size) in enumerate(zip(report.stages, sizes, strict=True)):
        outer = vocabulary * (number == 0) + (vocabulary + hidden) * (number == pp - 1)
        assert stage.weight_bytes == 2 * (size * layer + outer)
        assert stage.kv_cache_bytes == 2 * 2 * size * 4 * 1000 * kv // tp


def test_bytes_of_235b_in_stages() -> None:
    """Qwen3-235B-A22B, 94 layers over 2 stages of 8 ranks, 128 experts of 3 · 4096 · 1536 over 8."""
    program = llmir.run(llmir.load("qwen3-235b-a22b"), "shard{tp=8, ep=8},stages{pp=2}")
    report = llmir.analyze(program, "h200", batch=1, new=1, context=0)
    hidden, head = 4096, 128
    attention = 2 * hidden * 64 * head // 8 + 2 * hidden * head + 2 * head
    layer = attention + 2 * hidden + 128 * hidden + 16 * 3 * hidden * 1536
    outer = 151936 * hidden // 8
    assert [s.weight_bytes for s in report.stages] == [
        2 * (47 * layer + outer),
        2 * (47 * layer + outer + hidden),
    ]


def test_a_grid_is_its_points() -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), "fuse,stages{layers=(3, 20, 5), micro_batches=2}")
    batch, context = np.array([[2], [64]]), np.array([0, 100, 30000])
    grid = llmir.analyze(program, "l4", batch=batch, new=1, context=context)
    for i, j in np.ndindex(2, 3):
        at = llmir.analyze(program, "l4", batch=int(batch[i, 0]), new=1, context=int(context[j]))
        for figure in ("time_s", "period_s", "bubble", "weight_bytes", "kv_cache_bytes", "peak_memory_bytes"):
            assert getattr(grid, figure)[i, j] == pytest.approx(getattr(at, figure)), figure
        assert grid.peak_at[i, j] == at.peak_at


def test_decode_is_the_latency_of_all_stages_and_throughput_that_of_the_slowest() -> None:
    base = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    ask = {"batch": 8, "prompt": 100, "generate": 2}
    whole, staged, parts = (
        llmir.workload(llmir.run(base, how), "h100", **records(llmir.workload, **ask, cost="ideal"))
        for how in ("", "stages{pp=4}", "stages{pp=4, micro_batches=4}")
    )
    decode = staged.decode
    assert decode is not None and whole.tpot_s is not None and staged.tpot_s is not None
    assert staged.tpot_s == pytest.approx(sum(s.time_s for s in decode.stages))
    assert staged.tpot_s > whole.tpot_s  # the same work, and what is sent
    slowest = max(s.time_s for s in decode.stages)
    assert decode.interval_s == pytest.approx(slowest)
    assert staged.busy_output_tokens_per_s > 3 * staged.output_tokens_per_s
    assert parts.ttft_s < staged.ttft_s  # micro-batches overlap
    assert whole.busy_output_tokens_per_s == pytest.approx(whole.output_tokens_per_s)


def test_the_largest_batch_is_of_whole_micro_batches() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention,fuse,stages{pp=2, micro_batches=3}")
    job = llmir.workload(program, "l4", batch=3, prompt=1000, generate=10)
    assert job.max_batch % 3 == 0
    assert job.peak_bytes(job.max_batch) <= job.capacity_bytes < job.peak_bytes(job.max_batch + 3)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("stages{pp=0}", "stages: pp: expected an integer from 1 to 10,000, got 0"),
        ("stages{pp=33}", "stages: pp 33: Llama-3.1-8B has only 32 layers"),
        ("stages{layers=(3, 4)}", "stages: 3 + 4 is 7, but Llama-3.1-8B has 32 layers"),
        ("stages{layers=(32, 0)}", "stages: layers: expected an integer from 1 to 2**48, got 0"),
        ("stages{layers=(a, b)}", "stages: layers: expected an integer from 1 to 2**48, got 'a'"),
        ("stages{pp=3, layers=(16, 16)}", "stages: pp is 3, but layers has 2 stages: 16 + 16"),
        ("stages{pp=2, micro_batches=0}", "micro_batches: expected an integer from 1 to 1,048,576, got 0"),
        ("unroll,stages{pp=2}", "Llama-3.1-8B has no repeated layers to split; run stages before unroll"),
        ("stages{pp=2},stages{pp=2}", "Llama-3.1-8B is in 2 stages already"),
    ],
)
def test_what_cannot_be_staged(how: str, says: str) -> None:
    with pytest.raises(PassError) as error:
        llmir.run(llmir.load("llama3.1-8b"), how)
    assert says in str(error.value)


def test_a_batch_that_does_not_divide() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "stages{pp=2, micro_batches=3}")
    with pytest.raises(InputError, match="batch: expected a multiple of the 3 micro-batches, got 4"):
        llmir.analyze(program, "h100", batch=4)


def handed() -> Program:
    return llmir.run(llmir.load("qwen3-0.6b"), "stages{pp=2, micro_batches=2}")


def test_a_stage_must_take_what_the_one_before_gives() -> None:
    program = handed()
    with pytest.raises(VerifyError, match=r"@stage0: takes \(int64\[B, T\]\) first, but @stage1 gives"):
        verify(program.replace(entries=("stage1", "stage0")))
    text = print_program(program)
    with pytest.raises(VerifyError, match="@stage0: %send sends to stage 2, expected 1"):
        verify(parse_program(text.replace("to=1", "to=2")))
    with pytest.raises(ParseError, match="cannot read this line: micro_batches two"):
        parse_program(text.replace("micro_batches 2", "micro_batches two"))
    with pytest.raises(VerifyError, match="entries, each once, got stage0, stage0"):
        verify(program.replace(entries=("stage0", "stage0")))
    with pytest.raises(VerifyError, match="micro_batches: expected an integer from 1"):
        verify(program.replace(micro_batches=0))


def test_stages_print_and_parse() -> None:
    program = handed()
    assert parse_program(print_program(program)) == program
    assert str(Stages(layers=[3, 4])) == "stages{layers=(3, 4)}"
    again = llmir.run(llmir.load("qwen3-0.6b"), str(Stages(layers=(10, 18), micro_batches=2)))
    assert [again[e]["layer"].op.times for e in again.entries] == [10, 18]  # type: ignore[attr-defined]


def test_stages_on_the_command_line(run: Run) -> None:
    asked = ("--tp", "2", "--pp", "10,6", "--micro-batches", "2", "--batch", "4", "--format", "json")
    ran = run("analyze", "llama3.2-1b", *asked)
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["hardware"]["devices"] == 4
    assert found["parallel"] == {"tp": 2, "pp": 2, "ep": 1, "dp": 1, "sp": False}
    assert found["micro_batches"] == 2
    phase = found["phases"]["prefill"]
    assert [s["stage"] for s in phase["stages"]] == [0, 1]
    assert {op["stage"] for op in phase["ops"]} == {0, 1}
    repeats = {op["name"]: op["repeat"] for op in phase["ops"]}
    assert repeats["stage0.layer.o_proj"] == 20
    assert repeats["stage1.layer.o_proj"] == 12
    assert run("analyze", "llama3.2-1b", "--pp", "17").err == (
        "error: --pp 17: Llama-3.2-1B has only 16 layers\n"
    )


@pytest.mark.parametrize("micro", [1, 2])
def test_a_diff_of_stages_is_what_they_send(micro: int) -> None:
    """Ops of other stages are the same ops: staging adds sends and receives, and reads weights again."""
    base = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    staged = llmir.run(base, f"stages{{pp=4, micro_batches={micro}}}")
    before, after = (
        llmir.analyze(p, "h100", batch=4, new=64, estimation=llmir.Estimation(cost="ideal"))
        for p in (base, staged)
    )
    found = llmir.diff(before, after)
    new = {(op.opcode, op.repeat) for c in found.changes if c.what == "new" for op in c.after}
    assert new == {("send", 3 * micro), ("recv", 3 * micro), ("overhead", 4)}  # the bubbles of four stages
    assert {c.what for c in found.changes} == ({"new"} if micro == 1 else {"new", "changed"})
    for figure in ("time_s", "flops", "read_bytes", "comm_bytes"):
        deltas = sum(c.figure(figure).delta for c in found.changes)
        assert deltas == pytest.approx(found.total(figure).delta)


def test_an_op_of_a_stage_is_explained() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "stages{layers=(10, 22)}")
    from llmir.backends.compare.explain import explain

    found = explain(llmir.analyze(program, "h100", batch=1, new=1, context=9), "stage1.layer.o_proj")
    assert (found.layers, found.repeat) == ("layers 10–31", 22)
    sends = explain(llmir.analyze(program, "h100", batch=3, new=5), "send").limits
    assert {x.bound: x.amount for x in sends}["network"] == 3 * 5 * 4096 * 2


def test_a_picture_of_stages_shows_equal_ones_once(tmp_path: Path) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention,fuse,stages{pp=4, micro_batches=2}")
    job = llmir.workload(program, "h100", batch=2, prompt=8, generate=4)
    for level, times in (("layer", 1), ("overview", 1), ("full", 32)):
        target = tmp_path / f"{level}.dot"
        llmir.draw(job, target, level=level, phase="prefill")
        text = target.read_text("utf-8")
        assert text.count("gate_up_proj") >= times
        assert ("2 stages alike, drawn once" in text) == (level != "full")
        assert "2 micro-batches" in text
    layer = (tmp_path / "layer.dot").read_text("utf-8")
    assert layer.count(">gate_up_proj<") == 1  # layers are alike, so one stage shows them
    assert layer.count(">send<") == 2  # of the first stage and of those between
