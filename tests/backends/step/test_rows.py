"""Rows add up: those of ops, of the engine's overhead and of bubbles, to the step on every stage."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.export import units, wording
from llmir.backends.request.workload import Workload
from llmir.backends.step.facts import weights
from llmir.backends.step.report import Report
from llmir.backends.work.rows import TRAFFIC
from llmir.base.formats import export
from llmir.frontends.models.presets import PRESETS
from llmir.ir.core.program import Program
from tests.flat import records
from tests.strategies import FUSIONS, LOGITS, configs, cuts, degrees, points, wide

EXACT = {"rel": 1e-12, "abs": 1e-15}
READ, WRITTEN = TRAFFIC[:3], TRAFFIC[3:]
FIGURES = ("flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes")
MODELS = ("llama3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "llama3.1-405b")
# Cost models and engines, on devices that they know; the last hides more launches than its CPU takes.
BASES: tuple[dict[str, Any], ...] = (
    {"hw": "h100-sxm"},
    {"hw": "h100-sxm", "engine": "sglang"},
    {"hw": "a100-80-sxm", "engine": "hf-transformers"},
    {"hw": "b200", "engine": "trtllm"},
    {"hw": "l40s", "cost": "calibrated"},
    {"hw": "mi300x", "cost": "ideal"},
    {"hw": "h200", "efficiency": {"memory": 0.8, "launch": 2e-6}},
)
BASIS = st.sampled_from(BASES)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A tiny model of some family, fused, sharded and staged in some way."""
    config = wide(draw(configs()), 12)
    base = llmir.run(llmir.load(config, logits=draw(LOGITS)), draw(FUSIONS))
    how = draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or base.active_parameters < base.parameters))
    return llmir.run(base, [draw(cuts(config["num_hidden_layers"])), how])


@st.composite
def steps(draw: st.DrawFn) -> Report:
    """A step of a tiny model or of a preset."""
    if draw(st.booleans()):
        program = draw(programs())
    else:
        how = draw(st.sampled_from(("", "shard{tp=4}", "shard{tp=4, sp=1}", "stages{pp=2, micro_batches=4}")))
        program = llmir.run(llmir.load(draw(st.sampled_from(MODELS))), [llmir.pipeline_of(), how])
    assume(program.devices <= 8)  # what one box of any device holds
    ranks = program.micro_batches * program.mesh.degree("dp")
    at, other = ({**found, "batch": found["batch"] * ranks} for found in draw(st.tuples(points(), points())))
    basis = draw(BASIS)
    pads = str(basis.get("engine", "")).startswith("hf-transformers")  # then all sequences are alike
    beside = [other] if draw(st.integers(0, 4)) == 4 and not pads else []
    return llmir.analyze(program, **records(llmir.analyze, **basis, **at, beside=beside))


def total(rows: Iterable[Any], figure: str) -> Any:
    return sum(row.repeat * getattr(row, figure) for row in rows)


@pytest.mark.slow
@given(steps())
@settings(max_examples=60)
def test_rows_add_up_to_the_step_on_every_stage(step: Report) -> None:
    for stage in step.stages:
        rows = [row for row in step.ops if row.stage == stage.stage]
        assert total(rows, "time_s") == pytest.approx(step.time_s, **EXACT)
        assert total(rows, "ideal_time_s") == pytest.approx(step.ideal_time_s, **EXACT)
        work = [row for row in rows if row.kind != "overhead"]
        assert total(work, "time_s") == pytest.approx(stage.ops_s, **EXACT)
        assert stage.ops_s + stage.overhead_s + stage.bubble_s == pytest.approx(step.time_s, **EXACT)
    assert sum(row.share for row in step.ops) == pytest.approx(1, **EXACT)
    assert sum(step.bound.values()) == pytest.approx(1, **EXACT)
    assert sum(step.overhead.values()) == pytest.approx(step.overhead_s, **EXACT)


@pytest.mark.slow
@given(steps())
@settings(max_examples=60)
def test_bytes_come_apart_by_role(step: Report) -> None:
    for row in step.ops:
        assert sum(getattr(row, f"{role}_bytes") for role in READ) == pytest.approx(
            row.read_bytes, rel=1e-14, abs=0
        )
        assert sum(getattr(row, f"{role}_bytes") for role in WRITTEN) == row.write_bytes
    for role in TRAFFIC:
        assert step.bytes_by_role[f"{role}_bytes"] == pytest.approx(total(step.ops, f"{role}_bytes"))
    for figure in FIGURES:
        assert getattr(step, figure) == pytest.approx(total(step.ops, figure), rel=1e-14, abs=0)


def test_decode_reads_each_weight_once_and_each_cached_token_once() -> None:
    """By closed form: every parameter but the embedding's idle rows; keys and values of the context and of
    the new token read, of the new one written."""
    step = llmir.analyze(
        llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of()), "h100", batch=8, context=999
    )
    idle = 2 * (128256 - 8) * 4096
    assert step.bytes_by_role["weight_read_bytes"] == 2 * 8_030_261_248 - idle
    token = 2 * 2 * 32 * 8 * 128  # bytes of keys and values in 32 layers of 8 heads of 128
    assert step.bytes_by_role["kv_cache_read_bytes"] == 8 * 1000 * token
    assert step.bytes_by_role["kv_cache_write_bytes"] == 8 * token


def block() -> Program:
    """Four ops of one's own."""
    b = llmir.Builder()
    x = b.input("bf16[B, T, 4096]", name="x")
    y = b.linear(x, b.weight("bf16[4096, 14336]", name="up"), einsum="b t h, h f -> b t f", name="up_proj")
    z = b.linear(
        b.silu(y), b.weight("bf16[14336, 4096]", name="down"), einsum="b t f, f h -> b t h", name="down_proj"
    )
    b.output(b.add(x, z))
    return Program("block", {"main": b.graph()})


@pytest.mark.parametrize("engine", [None, "vllm", "hf-transformers"])
def test_no_engine_serves_a_block_of_ones_own(engine: str | None) -> None:
    step = llmir.analyze(block(), "h100", batch=8, estimation=llmir.Estimation(engine=engine))
    assert [row.kind for row in step.ops] == ["gemm", "elementwise", "gemm", "elementwise"]
    assert total(step.ops, "time_s") == pytest.approx(step.time_s, **EXACT)
    assert (step.overhead_s, step.bound["overhead"] < 1) == (0, True)


@given(BASIS)
def test_an_op_takes_its_time_alone_less_what_the_graph_of_its_engine_hides(basis: dict[str, Any]) -> None:
    """A graph hides a share of the launch, and no kernel goes below its roofline."""
    model = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention")
    at = {"batch": 8, "new": 1, "context": 777}
    step = llmir.analyze(model, **records(llmir.analyze, **basis, **at))
    inside = {row.name.rpartition(".")[2]: row for row in step.ops}
    for alone, name in (
        ("up_proj", "up_proj"),
        ("down_proj", "down_proj"),
        ("silu", "silu"),
        ("add", "mlp_add"),
    ):
        (row,) = (
            r for r in llmir.analyze(block(), **records(llmir.analyze, **basis, **at)).ops if r.name == alone
        )
        kernel, found = llmir.explain(step, inside[name].name).kernel, inside[name]
        hidden = kernel.hidden * kernel.launch_s if kernel else 0.0
        assert found.time_s == pytest.approx(max(row.time_s - hidden, row.ideal_time_s), rel=1e-12)
        assert (row.error, row.basis) == (found.error, found.basis)
        assert kernel is None or kernel.alone_s == row.time_s
        captures = step.plan.host is not None and basis.get("engine") != "hf-transformers"
        assert bool(hidden) == captures


def test_the_engine_has_rows_of_its_own_on_the_stages_where_it_adds_time() -> None:
    """The CPU schedules before the first stage; ranks wait where there are collectives."""
    passes = [llmir.pipeline_of(), "stages{pp=2},shard{tp=2}"]
    step = llmir.analyze(llmir.run(llmir.load("llama3.1-405b"), passes), "h100", batch=3)
    host = step.plan.model.host
    assert host is not None
    names = ["stage0.engine_cpu", "stage0.rank_skew", "stage1.rank_skew"]
    assert [row.name for row in step.engine] == names
    assert step.engine[0].time_s == pytest.approx(host.step_us * 1e-6)  # work on sequences is hidden
    assert step.overhead["launching_s"] == 0  # a graph is launched at once
    skews = [row.time_s for row in step.engine if row.name.endswith("rank_skew")]
    assert sum(skews) == pytest.approx(step.overhead["skew_s"])
    assert min(skews) > 0


def test_a_kernel_has_one_time_in_table_and_timeline() -> None:
    """A norm in a decode step on H100 took 2.5 µs in the table, and 0.97 µs in the timeline."""
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    step = llmir.analyze(program, "h100-sxm", batch=1, new=1, context=100)
    (norm,) = (row for row in step.ops if row.name == "layer.add_post_norm")
    assert {s.time_s for s in step.timeline() if s.op == norm.name} == {norm.time_s}
    kernel = llmir.explain(step, norm.name).kernel
    assert kernel is not None
    assert norm.time_s < kernel.alone_s


@pytest.mark.slow
@given(steps())
@settings(max_examples=30)
def test_what_is_no_op_is_explained_by_times_that_lead_to_its_own(step: Report) -> None:
    for row in step.ops:
        if row.kind == "overhead":
            found = llmir.explain(step, row.name)
            assert found.terms[-1].time_s - found.terms[0].time_s == pytest.approx(row.time_s, abs=1e-12)
            assert (found.total_time_s, found.share) == (row.total_s, row.share)
            assert f"Total {units.time(row.time_s)}" in str(found)


@st.composite
def jobs(draw: st.DrawFn) -> Workload:
    """A workload of a tiny model or of a preset."""
    step = draw(steps())
    batch = int(step.batch)
    prompt, generate = draw(st.integers(1, 70)), draw(st.integers(1, 4))
    return Workload(step.program, step.device, batch, prompt, generate, model=step.plan.model)


def reports(job: Workload) -> dict[str, Report]:
    return {"prefill": job.prefill} | ({"decode": job.decode} if job.decode else {})


@pytest.mark.slow
@given(jobs())
@settings(max_examples=40)
def test_json_and_csv_add_up(job: Workload) -> None:
    found = json.loads(str(export(job, "json")))
    rows = list(csv.DictReader(io.StringIO(str(export(job, "csv")))))
    assert sum(w["parameters"] for w in found["model"]["weights"]) == found["model"]["parameters"]
    assert sum(w["bytes"] for w in found["model"]["weights"]) == found["model"]["weight_bytes"]
    for name, step in reports(job).items():
        phase = found["phases"][name]
        mine = [row for row in rows if row["phase"] == name]
        for of in (phase["ops"], mine):
            for stage in range(len(step.stages)):
                times = (float(r["time_s"]) * int(r["repeat"]) for r in of if int(r["stage"]) == stage)
                assert sum(times) == pytest.approx(phase["time_s"], **EXACT)
            assert sum(float(row["share"]) for row in of) == pytest.approx(1, **EXACT)
            for figure in (*FIGURES, *(f"{role}_bytes" for role in TRAFFIC)):
                sums = sum(float(row[figure]) * int(row["repeat"]) for row in of)
                assert sums == pytest.approx(phase[figure], rel=1e-12, abs=0), figure
        assert sum(phase["bound"].values()) == pytest.approx(1, **EXACT)
        assert sum(phase["overhead"].values()) == pytest.approx(phase["overhead_s"], **EXACT)
        for stage in phase["stages"]:
            parts = sum(stage[f"{part}_s"] for part in ("ops", "overhead", "bubble"))
            assert parts == pytest.approx(phase["time_s"], **EXACT)
    if job.ttft_s:
        assert found["prefill_tokens_per_s"] * found["ttft_s"] == pytest.approx(job.batch * job.prompt)


UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12, "": 1.0}


def seconds(words: str) -> float:
    number, unit = words.replace(",", "").split()
    return float(number) * UNITS[unit]


NAMED = r"(?P<name> ?\S+)(?: ×(?P<times>\d+))?"
SHARE = r" +(?P<share><?-?[\d.]+%|–)"
ROW = re.compile(NAMED + r" +(?P<time>-?[\d.,]+ (?:s|ms|µs|ns|ps)) +(?:~?\d+%|–)? *" + SHARE[2:] + " .*")
GROUP = re.compile(NAMED + SHARE)


def printed(step: Report) -> Iterator[tuple[int, float, int]]:
    """The stage, the seconds and the repeats of each row of a table, as a person reads it."""
    lines = str(export(step, "table")).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("op "))
    end = next(i for i in range(start, len(lines)) if lines[i].startswith("total "))
    seen: dict[str, list[float]] = {}
    group, times, before = "", 1, ""
    for line in lines[start + 2 : end]:
        whole = before + line.lstrip() if before else line  # a long name goes on in the next line
        before = ""
        if line.endswith(("_", ".")):
            before = whole
        elif found := re.fullmatch(r" each as (\S+)", whole):
            yield from ((stage_of(group), time, times) for time in seen[found[1]])
        elif found := GROUP.fullmatch(whole):
            group, times = found["name"], int(found["times"] or 1)
        elif found := ROW.fullmatch(whole):
            inside, time = found["name"].startswith(" "), seconds(found["time"])
            seen.setdefault(group, []).append(time)
            yield stage_of(group if inside else ""), time, times if inside else int(found["times"] or 1)
        else:
            assert not line, line


def stage_of(path: str) -> int:
    found = re.match(r"stage(\d+)", path)
    return int(found[1]) if found else 0


@pytest.mark.slow
@given(steps())
@settings(max_examples=60)
def test_a_printed_table_adds_up_and_fits_80_columns(step: Report) -> None:
    """What a person reads: times of three digits, so that a sum is off by half of the last at most."""
    sums = dict.fromkeys(range(len(step.stages)), 0.0)
    off = dict(sums)
    for stage, time, times in printed(step):
        sums[stage] += times * time
        off[stage] += times * abs(time) * 0.005
    for stage, total_s in sums.items():
        assert abs(total_s - step.time_s) <= off[stage] + 1e-15
    text = str(export(step, "table"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
@given(steps())
@settings(max_examples=30)
def test_markdown_and_html_add_up(step: Report) -> None:
    """They have the same cells; times have three digits."""
    headings, rows, _ = wording.flat(step)
    html = str(export(step, "html"))
    lines = [dict(zip(headings, row, strict=True)) for row in rows[:-1]]
    assert [line["op"] for line in lines] == [row.name for row in step.ops]
    for stage in step.stages:
        times = [
            int(line["×"][1:] or 1) * seconds(line["time"])
            for line, row in zip(lines, step.ops, strict=True)
            if row.stage == stage.stage
        ]
        assert sum(times) == pytest.approx(step.time_s, rel=0, abs=0.005 * sum(map(abs, times)) + 1e-15)
    for cell in (line["time"] for line in lines):
        assert f">{cell}<" in html


@pytest.mark.slow
@given(steps())
@settings(max_examples=20)
def test_rows_of_pandas_add_up(step: Report) -> None:
    pytest.importorskip("pandas")
    frame = step.to_pandas()
    by_stage = (frame.time_s * frame.repeat).groupby(frame.stage).sum()
    assert list(by_stage) == pytest.approx([step.time_s] * len(step.stages), **EXACT)
    assert frame.share.sum() == pytest.approx(1, **EXACT)
    for role in TRAFFIC:
        moved = (frame[f"{role}_bytes"] * frame.repeat).sum()
        assert moved == pytest.approx(step.bytes_by_role[f"{role}_bytes"], rel=1e-12, abs=0)


@given(BASIS, st.sampled_from(("", "shard{tp=2}", "stages{pp=2}")), st.sampled_from(("", "shard{tp=4}")))
@settings(max_examples=30)
def test_deltas_of_a_diff_are_those_of_the_steps(basis: dict[str, Any], one: str, two: str) -> None:
    """Engine's overhead and bubbles among them."""
    model = llmir.load("llama3.1-8b")
    at = {"batch": 4, "new": 1, "context": 99}
    before = llmir.analyze(
        llmir.run(model, f"fuse,{one}" if one else "fuse"), **records(llmir.analyze, **basis, **at)
    )
    after = llmir.analyze(
        llmir.run(model, [llmir.pipeline_of(), two or "dce"]), **records(llmir.analyze, **basis, **at)
    )
    found = llmir.diff(before, after)
    for figure in ("time_s", *FIGURES):
        deltas = sum(change.figure(figure).delta for change in found.changes)
        whole = found.total(figure)
        assert deltas == pytest.approx(whole.delta, rel=1e-9, abs=1e-12 * (whole.before + whole.after))
    stages = len(before.stages), len(after.stages)
    assert found.total("time_s") == pytest.approx((stages[0] * before.time_s, stages[1] * after.time_s))


def test_a_grid_has_the_rows_of_its_points() -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), [llmir.pipeline_of(), "stages{pp=2, micro_batches=2}"])
    batch, context = np.array([[2], [64]]), np.array([0, 100, 30000])
    grid = llmir.analyze(program, "h100", batch=batch, new=1, context=context)
    assert sum(row.share for row in grid.ops) == pytest.approx(np.ones((2, 3)), **EXACT)
    for i, j in np.ndindex(2, 3):
        point = llmir.analyze(program, "h100", batch=int(batch[i, 0]), new=1, context=int(context[j]))
        for whole, one in zip(grid.ops, point.ops, strict=True):
            assert whole.time_s[i, j] == pytest.approx(one.time_s, rel=1e-9, abs=1e-15), whole.name
            assert (whole.bound[i, j], whole.name) == (one.bound, one.name)


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b", "qwen2.5-0.5b"])
def test_weights_by_block_and_kind(name: str) -> None:
    """By closed form from the config; quantized bytes are those that a device holds, scales among them."""
    program = llmir.load(name)
    of = {(w.block, w.name): w for w in weights(program)}
    q = of["attention", "q_proj"]
    config = PRESETS[program.name].config
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    assert q.layers == config["num_hidden_layers"]
    bias = head * config["num_attention_heads"] if config["model_type"] == "qwen2" else 0
    assert q.layer_parameters == config["hidden_size"] * head * config["num_attention_heads"] + bias
    if experts := config.get("num_experts"):
        each = experts * config["hidden_size"] * config["moe_intermediate_size"]
        assert of["routed_experts", "down_proj"].layer_parameters == each
        assert of["router", "router"].layer_parameters == experts * config["hidden_size"]
    assert ("lm_head", "lm_head") in of or config["tie_word_embeddings"]
    assert sum(w.parameters for w in of.values()) == program.parameters
    for how in (
        "dce",
        "quantize{weights=fp8}",
        "quantize{weights=int4}",
        "unroll",
        "fuse,stages{pp=2},shard{tp=2}",
    ):
        other = llmir.run(program, how)
        assert sum(w.parameters for w in weights(other)) == program.parameters
        if how.startswith("quantize"):
            assert sum(w.bytes for w in weights(other)) == llmir.analyze(other, "h100").weight_bytes
        else:
            assert [(w.name, w.layers, w.bytes) for w in weights(other)] == [
                (w.name, w.layers, w.bytes) for w in weights(program)
            ]
