"""An explanation says the same numbers as the report, and its symbols evaluate to its numbers."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

import llmir
from llmir.backends.compare.explain import Explanation, explain
from llmir.backends.step.report import Report
from llmir.base.errors import InputError
from llmir.cli.main import cli
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import parse
from tests.flat import records

MODELS = ("llama3.1-8b", "qwen3-30b-a3b")
PIPELINES = ("", llmir.pipeline_of())
LAID = f"{llmir.pipeline_of()},stages{{pp=2, micro_batches=3}},shard"
CASES = (
    *((model, pipeline) for model in MODELS for pipeline in PIPELINES),
    ("llama3.1-8b", f"{LAID}{{tp=4, sp=1}}"),
    *(("qwen3-30b-a3b", LAID + how) for how in ("{tp=4, ep=2}", "{tp=2, dp=3, ep=2}", "{dp=2, ep=2}")),
)


def steps(model: str, pipeline: str, cost: str | None = None) -> list[Report]:
    program = llmir.run(llmir.load(model), pipeline)
    points = ({"new": 100, "context": 0}, {"new": 1, "context": 99})
    return [
        llmir.analyze(program, "h100-sxm", **records(llmir.analyze, batch=3, **at, cost=cost))
        for at in points
    ]


def explanations(model: str, pipeline: str, cost: str | None = None) -> list[tuple[Report, Any, Explanation]]:
    return [(step, op, explain(step, op.name)) for step in steps(model, pipeline, cost) for op in step.work]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "pipeline"), CASES)
def test_an_explanation_has_the_numbers_of_the_report(model: str, pipeline: str) -> None:
    for step, op, e in explanations(model, pipeline):
        assert (e.name, e.kind, e.block, e.repeat) == (op.name, op.kind, op.block, op.repeat)
        assert (e.time_s, e.share, e.total_time_s) == (op.time_s, op.share, op.repeat * op.time_s)
        assert e.share == pytest.approx(e.total_time_s / (e.stages * e.step_time_s), rel=1e-12, abs=0)
        assert e.step_time_s == step.time_s
        assert sum(a.value for a in e.flops) == op.flops
        assert e.flops[0].value == op.matmul_flops
        assert sum(a.value for a in e.reads) == op.read_bytes
        assert sum(a.value for a in e.writes) == op.write_bytes


@pytest.mark.mostly_slow(8)
@pytest.mark.parametrize(("model", "pipeline"), CASES)
def test_symbols_evaluate_to_the_numbers_beside_them(model: str, pipeline: str) -> None:
    for _, _, e in explanations(model, pipeline):
        at = Binding(**e.binding)
        assert all(at(parse(a.expression)) == a.size for a in e.axes)
        for amount in (*e.flops, *e.reads, *e.writes, *e.results):
            assert at(parse(amount.expression)) == amount.value
        assert all(at(parse(x.expression)) == x.amount for x in e.limits)


@pytest.mark.parametrize("model", MODELS)
def test_the_time_is_the_largest_of_the_limits(model: str) -> None:
    for step, op, e in explanations(model, llmir.pipeline_of(), "ideal"):
        (decides,) = (x for x in e.limits if x.decides)
        assert all(x.time_s == pytest.approx(x.amount / x.rate, rel=1e-12, abs=0) for x in e.limits)
        assert decides.time_s == max(x.time_s for x in e.limits)
        assert decides.time_s == pytest.approx(op.time_s, rel=1e-12, abs=0)
        assert decides.bound == op.bound
        assert all(x.source == step.device.source(x.constant) for x in e.limits)


def test_a_projection_by_hand() -> None:
    prefill, _ = steps("llama3.1-8b", "")
    e = explain(prefill, "k_proj")
    assert e.equation == "b t h, h g d -> b t g d"
    assert [(a.name, a.role, a.expression) for a in e.axes] == [
        ("b", "mapped", "B"),
        ("t", "mapped", "T"),
        ("h", "contracted", "4096"),
        ("g", "mapped", "8"),
        ("d", "mapped", "128"),
    ]
    assert (e.repeat, e.layers, e.binding) == (32, "layers 0–31", {"B": 3, "T": 100, "C": 0})
    assert e.flops[0].value == 2 * 3 * 100 * 4096 * 1024
    assert [(a.role, a.value) for a in e.reads] == [
        ("activation", 3 * 100 * 4096 * 2),
        ("weight", 4096 * 1024 * 2),
    ]
    assert [a.value for a in e.results] == [3 * 100 * 1024 * 2]


def test_the_cache_is_read_as_cache_and_written_in_place() -> None:
    _, decode = steps("llama3.1-8b", llmir.pipeline_of())
    core = explain(decode, "flash_attention")
    assert {a.role: a.value for a in core.reads}["cache"] == 3 * 100 * 8 * 128 * 2
    append = explain(decode, "layer.rope_append")
    assert [a.role for a in append.results][1:] == ["in the place of %k_cache", "in the place of %v_cache"]
    assert [(a.role, a.value) for a in append.writes][1:] == [("cache", 3 * 8 * 128 * 2)] * 2


@pytest.mark.parametrize(
    ("pipeline", "name", "part"),
    [
        (llmir.pipeline_of(), "qkv_prj", "did you mean qkv_proj"),
        (llmir.pipeline_of(), "", "list: embedding"),
        (llmir.pipeline_of(), "k_cache", "takes no time"),
        (llmir.pipeline_of(), "layer", "takes no time"),
        ("unroll", "q_proj", r"ambiguous: layer.0.q_proj, .*\(32 in all\)"),
    ],
)
def test_an_op_that_is_not_one_is_an_error(pipeline: str, name: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        explain(steps("llama3.1-8b", pipeline)[0], name)


def test_an_op_is_found_by_path_or_last_part_or_as_ir_writes_it() -> None:
    step = steps("llama3.1-8b", "unroll")[0]
    assert explain(step, "layer.3.q_proj").layers == ""
    assert explain(step, "3.q_proj") == explain(step, "%layer.3.q_proj")


def test_a_grid_is_not_explained() -> None:
    step = llmir.analyze(llmir.load("llama3.1-8b"), "h100", batch=[1, 2])
    with pytest.raises(InputError, match="one point"):
        explain(step, "lm_head")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["explain", *arguments])
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    return said.out


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_command_agrees_with_analyze(phase: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--hw", "a100", "--batch", "4", "--prompt", "300", "--generate", "9")
    data = json.loads(
        run(capsys, "qwen3-30b-a3b", "experts_gate_up", "--phase", phase, *options, "--format", "json")
    )
    with pytest.raises(SystemExit):
        cli.main(["analyze", "qwen3-30b-a3b", *options, "--format", "json"])
    report = json.loads(capsys.readouterr().out)["phases"][phase]
    (op,) = (op for op in report["ops"] if op["name"] == "layer.experts_gate_up")
    assert data["phase"] == phase
    assert data["binding"] == {"B": 4, **({"T": 300, "C": 0} if phase == "prefill" else {"T": 1, "C": 307})}
    assert (data["time_s"], data["share"], data["repeat"]) == (op["time_s"], op["share"], op["repeat"])
    assert sum(a["value"] for a in data["reads"]) == op["read_bytes"]


def test_the_command_shows_each_step_of_the_reasoning(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "llama3.1-8b", "qkv_proj", "--prompt", "2048", "--cost", "ideal")
    for part in (
        "layer.qkv_proj of Llama-3.1-8B on H100-SXM, prefill",
        "b t h, h g r d, h g d, h g d -> b t g r d, b t g d, b t g d",
        "h  contracted  4,096",
        "B = 1, T = 2,048, C = 0",
        "50331648*B*T",
        "103,079,215,104",
        "103 GFLOP / 989 TFLOP/s",
        "← decides",
        "NVIDIA H100 whitepaper",
        "104 µs × 32 = 3.33 ms",
    ):
        assert part in shown


def test_an_op_that_passes_have_merged_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["explain", "llama3.1-8b", "q_proj"])
    assert ended.value.code == 2
    assert "--pipeline '' leaves it as it was" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["explain", "llama3.1-8b", "q_proj", "--pipeline", ""])
    shown = capsys.readouterr()
    assert ended.value.code == 0 and "q_proj" in shown.out
    assert shown.err.startswith("note: no pass has run") and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("device", "batch", "way", "sent", "hops"),
    [
        ("h100-pcie", 8, "tree", 2, 6),
        ("h100-pcie", 64, "ring", Fraction(7, 4), 14),
        ("a100", 8, "two-shot", Fraction(7, 4), 2),
        ("h100-sxm", 8, "in-network", 1, 2),
    ],
)
def test_a_collective_says_what_it_sends_and_how(
    device: str, batch: int, way: str, sent: Fraction, hops: int
) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention,fuse,shard{tp=8}")
    report = llmir.analyze(program, device, batch=batch, new=16, estimation=llmir.Estimation(cost="ideal"))
    found = explain(report, "all_reduce_o_proj")
    payload = batch * 16 * 4096 * 2
    assert [a.value for a in found.sends] == [2 * 7 * payload // 8, sent * payload]
    [cost] = [op for op in report.ops if op.name == "layer.all_reduce_o_proj"]
    assert cost.comm_bytes == found.sends[0].value
    name, link = report.device.link(8)
    assert cost.time_s == pytest.approx(
        hops * link.latency_s + float(sent) * payload / link.Bps, rel=1e-12, abs=0
    )
    [fastest] = [r for r in found.routes if r.fastest]
    assert (fastest.name, fastest.time_s) == (way, min(r.time_s for r in found.routes))
    [limit] = [x for x in found.limits if x.bound == "network"]
    assert (limit.constant, limit.latency_s) == (f"links.{name}", fastest.latency_s)
    assert limit.time_s == pytest.approx(limit.latency_s + limit.amount / limit.rate, rel=1e-12, abs=0)


def test_a_collective_across_nodes_says_both_its_links(capsys: pytest.CaptureFixture[str]) -> None:
    """Within a node the payload of 2 × 64 × 16384 bytes, between two of them an eighth of it."""
    options = ("--cluster", "dgx-h100", "--tp", "16", "--prompt", "64", "--batch", "2")
    shown = run(capsys, "llama3.1-70b", "layer.all_reduce_o_proj", *options)
    for part in (
        "16384*B*T  = 2,097,152",
        "2048*B*T   = 262,144",
        "3.90 µs + 262 kB",
        "max(2.10",
        "= 9.14 µs  ← fastest",
        "one-shot to all  ",
        "node.network: NVIDIA DGX H100 datasheet",
    ):
        assert part in shown


@pytest.mark.parametrize(
    ("phase", "family"), [({"new": 512, "context": 0}, "prefill"), ({"new": 1, "context": 512}, "decode")]
)
def test_attention_says_which_of_its_kernels_holds(phase: dict[str, int], family: str) -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    found = explain(
        llmir.analyze(program, "h100", **records(llmir.analyze, batch=2, **phase)), "flash_attention"
    )
    assert found.kernel and found.kernel.family == f"attention_{family}"
    assert found.error == found.kernel.error or family == "prefill"
