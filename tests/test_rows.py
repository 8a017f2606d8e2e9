"""Rows add up: those of ops, of the engine's overhead and of bubbles, to the step on every stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.analysis.report import Report
from llmir.backends.cost import TRAFFIC
from llmir.graph import Program

from .strategies import FUSIONS, LOGITS, configs, degrees, points
from .test_shard import wide
from .test_stages import cuts

EXACT = {"rel": 1e-12, "abs": 1e-15}
READ, WRITTEN = TRAFFIC[:3], TRAFFIC[3:]
FIGURES = ("flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes")
PRESETS = ("llama3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "llama3.1-405b")
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
        program = llmir.run(llmir.load(draw(st.sampled_from(PRESETS))), [llmir.DEFAULT_PIPELINE, how])
    at = draw(points())
    at["batch"] *= program.micro_batches * program.mesh.degree("dp")
    return llmir.analyze(program, **draw(BASIS), **at)


def total(rows: Iterable[Any], figure: str) -> Any:
    return sum(row.repeat * getattr(row, figure) for row in rows)


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


@given(steps())
@settings(max_examples=60)
def test_bytes_come_apart_by_role(step: Report) -> None:
    for row in step.ops:
        assert sum(getattr(row, f"{role}_bytes") for role in READ) == pytest.approx(row.read_bytes, rel=1e-14)
        assert sum(getattr(row, f"{role}_bytes") for role in WRITTEN) == row.write_bytes
    for role in TRAFFIC:
        assert step.bytes_by_role[f"{role}_bytes"] == pytest.approx(total(step.ops, f"{role}_bytes"))
    for figure in FIGURES:
        assert getattr(step, figure) == pytest.approx(total(step.ops, figure), rel=1e-14)


def test_decode_reads_each_weight_once_and_each_cached_token_once() -> None:
    """By closed form: every parameter but the embedding's idle rows; keys and values of the context and of
    the new token read, of the new one written."""
    step = llmir.analyze(
        llmir.run(llmir.load("llama3.1-8b"), llmir.DEFAULT_PIPELINE), "h100", batch=8, context=999
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
    step = llmir.analyze(block(), "h100", batch=8, engine=engine)
    assert [row.kind for row in step.ops] == ["gemm", "elementwise", "gemm", "elementwise"]
    assert total(step.ops, "time_s") == pytest.approx(step.time_s, **EXACT)
    assert (step.overhead_s, step.bound["overhead"] < 1) == (0, True)


@given(BASIS)
def test_an_op_takes_the_same_time_alone_and_inside_a_model(basis: dict[str, Any]) -> None:
    model = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention")
    at = {"batch": 8, "new": 1, "context": 777}
    inside = {row.name.rpartition(".")[2]: row for row in llmir.analyze(model, **basis, **at).ops}
    for alone, name in (
        ("up_proj", "up_proj"),
        ("down_proj", "down_proj"),
        ("silu", "silu"),
        ("add", "mlp_add"),
    ):
        (row,) = (r for r in llmir.analyze(block(), **basis, **at).ops if r.name == alone)
        assert (row.time_s, row.error, row.basis) == (
            inside[name].time_s,
            inside[name].error,
            inside[name].basis,
        )


def test_hidden_launches_are_in_the_overhead() -> None:
    """The overhead is what the host adds less what a graph of kernels hides; it may be below zero."""
    step = llmir.analyze(
        llmir.run(llmir.load("llama3.1-405b"), [llmir.DEFAULT_PIPELINE, "stages{pp=2}"]), "h100"
    )
    host = step.plan.model.host
    assert host is not None
    first, last = (row for row in step.ops if row.name.endswith("engine_overhead"))
    assert first.time_s - last.time_s == pytest.approx(host.beside(1), rel=0.1)
    assert last.time_s < 0 < step.overhead["host_s"]
    hidden = sum(
        row.repeat * min(host.hidden * getattr(price, "launch_s", 0.0), op.time_s - op.ideal_time_s)
        for row, price, op in zip(
            step.plan.rows, (p.of(step.at) for p in step.plan.prices), step.work, strict=True
        )
    )
    assert step.overhead["hidden_s"] == pytest.approx(-hidden)
