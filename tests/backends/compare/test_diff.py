"""The difference of two programs: nothing is lost, nothing is guessed from names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.diff import FIGURES, StepDiff, WorkloadDiff, fold_changes
from llmir.base.errors import InputError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.op import OPS, Op
from llmir.ir.ops.sources import Source
from tests.flat import records
from tests.strategies import PIPELINES, configs, points

STEP = {"batch": 2, "new": 64, "context": 16}
CORE = ("scores", "mask", "cast", "softmax", "cast_2", "mix")
FUSED = {
    ("q_proj", "k_proj", "v_proj"): ("qkv_proj",),
    ("rope_q", "rope_k", "append_k", "append_v"): ("rope_append",),
    CORE: ("flash_attention",),
    ("attention_add", "post_norm"): ("add_post_norm",),
    ("silu", "gate_mul"): ("silu_mul",),
}
DENSE = {**FUSED, ("gate_proj", "up_proj"): ("gate_up_proj",)}
EXPERTS = {
    **FUSED,
    ("gate_proj", "up_proj"): ("experts_gate_up",),
    ("cast_3", "route_softmax", "top_k"): ("softmax_top_k",),
}


def passed(program: llmir.Program, pipeline: str) -> llmir.Program:
    return llmir.run(program, pipeline)


def diff(a: llmir.Program, b: llmir.Program, **at: int) -> StepDiff:
    found = llmir.diff(
        *(llmir.analyze(p, "h100-sxm", **records(llmir.analyze, **at or STEP, cost="ideal")) for p in (a, b))
    )
    assert isinstance(found, StepDiff)
    return found


def groups(found: StepDiff) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Which ops took the place of which, without the bodies that they are in."""

    def names(parts: Any) -> tuple[str, ...]:
        return tuple(p.name.rpartition(".")[2] for p in parts)

    return {names(c.before): names(c.after) for c in found.changes}


def renamed(program: llmir.Program) -> llmir.Program:
    """The program with every op called otherwise; weights, inputs and bodies keep their names."""

    def of(graph: Graph) -> Graph:
        kept = {n.name for n in graph.nodes if isinstance(n.op, Source) or n.op.opcode == "repeat"}
        new = {n.name: n.name if n.name in kept else f"x{i}" for i, n in enumerate(graph.nodes)}

        def at(value: Value) -> Value:
            return value._replace(node=new[value.node])

        nodes = [Node(new[n.name], n.op, tuple(map(at, n.operands)), n.results) for n in graph.nodes]
        return Graph(graph.name, nodes, map(at, graph.outputs))

    return program.replace(graphs={name: of(g) for name, g in program.graphs.items()})


PASSES = st.tuples(PIPELINES, st.sampled_from(("", "unroll")))


@pytest.mark.slow
@given(configs(), PASSES, PASSES, points())
def test_deltas_add_up_to_the_difference_of_the_steps(
    config: dict[str, object], before: tuple[str, str], after: tuple[str, str], at: dict[str, int]
) -> None:
    model = llmir.load(config)
    a, b = (passed(model, ",".join(filter(None, p))) for p in (before, after))
    found = diff(a, b, **at)
    for name in FIGURES:
        old, new = found.total(name)
        total = sum(c.figure(name).delta for c in found.changes)
        assert total == pytest.approx(new - old, rel=1e-9, abs=1e-12 * (old + new))
        if all(isinstance(n, int) for n in (old, new, total)):
            assert total == new - old


@pytest.mark.slow
@given(configs(), PIPELINES, PIPELINES)
def test_every_op_of_both_is_there_once(config: dict[str, object], before: str, after: str) -> None:
    a, b = (passed(llmir.load(config), p) for p in (before, after))
    found = diff(a, b)
    same = [p.name for p in found.same]
    for report, side in ((found.before, "before"), (found.after, "after")):
        names = [p.name for c in found.changes for p in getattr(c, side)]
        assert sorted(names + same) == sorted(op.name for op in report.ops)  # the engine's overhead too


@pytest.mark.slow
@given(configs(), PIPELINES, PIPELINES)
def test_the_other_way_round_is_the_mirror_image(config: dict[str, object], before: str, after: str) -> None:
    a, b = (passed(llmir.load(config), p) for p in (before, after))
    there, back = diff(a, b), diff(b, a)
    assert {(c.before, c.after) for c in there.changes} == {(c.after, c.before) for c in back.changes}


@pytest.mark.slow
@given(configs(), PIPELINES, points())
def test_a_program_does_not_differ_from_itself_nor_from_its_unrolled_form(
    config: dict[str, object], pipeline: str, at: dict[str, int]
) -> None:
    program = passed(llmir.load(config), pipeline)
    for other in (program, passed(program, "unroll")):
        assert diff(program, other, **at).changes == diff(other, program, **at).changes == ()


@pytest.mark.parametrize(("model", "expected"), [("llama3.1-8b", DENSE), ("qwen3-30b-a3b", EXPERTS)])
def test_a_fused_op_is_found_with_the_ops_that_it_replaced(
    model: str, expected: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    eager = llmir.load(model)
    found = diff(eager, passed(eager, llmir.pipeline_of()))
    assert groups(found) == expected
    assert {c.what for c in found.changes} == {"fused"}
    unfused = diff(passed(eager, llmir.pipeline_of()), eager)
    assert groups(unfused) == {after: before for before, after in expected.items()}
    assert {c.what for c in unfused.changes} == {"split"}


def test_each_side_may_be_the_fused_one() -> None:
    model = llmir.load("llama3.1-8b")
    found = groups(diff(passed(model, "fuse"), passed(model, "fuse-attention")))
    assert found[CORE] == ("flash_attention",)
    assert found["qkv_proj",] == ("q_proj", "k_proj", "v_proj")
    assert found["silu_mul",] == ("silu", "gate_mul")


@pytest.mark.parametrize(("model", "expected"), [("llama3.1-8b", DENSE), ("qwen3-30b-a3b", EXPERTS)])
def test_names_of_ops_do_not_matter(model: str, expected: dict[tuple[str, ...], tuple[str, ...]]) -> None:
    eager = llmir.load(model)
    fused = passed(eager, llmir.pipeline_of())
    called = {
        old.name: new.name
        for name, graph in renamed(fused).graphs.items()
        for old, new in zip(fused[name].nodes, graph.nodes, strict=True)
    }
    found = groups(diff(eager, renamed(fused)))
    same = {(old,): (new,) for old, new in called.items() if old != new}
    due = {before: (called[after],) for before, (after,) in expected.items()}
    assert found.items() >= due.items()
    assert found.items() - due.items() <= same.items()


@dataclass(frozen=True)
class Exchange(Op):
    opcode = "test_exchange"
    kind = "collective"
    rule = "* -> *"


del OPS["test_exchange"]  # no other test should meet it


def exchanged(program: llmir.Program, after: str) -> llmir.Program:
    """The program with a collective behind an op of its layer."""

    def moved(node: Node) -> Iterator[Node]:
        operands = tuple(v._replace(node="exchange") if v.node == after else v for v in node.operands)
        yield replace(node, operands=operands)
        if node.name == after:
            yield Node("exchange", Exchange(), node.values[:1], node.results[:1])

    layer = program["layer"]
    nodes = [n for node in layer.nodes for n in moved(node)]
    return program.replace(graphs={**program.graphs, "layer": Graph("layer", nodes, layer.outputs)})


@pytest.mark.parametrize("pipeline", ["", "fuse-attention,fuse"])
def test_a_collective_is_new_and_changes_no_group(pipeline: str) -> None:
    eager = llmir.load("llama3.1-8b")
    after = exchanged(passed(eager, pipeline), "o_proj")
    found = diff(eager, after)
    [new] = [c for c in found.changes if c.what == "new"]
    assert [p.name for p in new.after] == ["layer.exchange"]
    expected = DENSE if pipeline else {}
    assert groups(found) == {**expected, (): ("exchange",)}


@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen3-30b-a3b", "gemma3-1b", "a.x-k1"])
@pytest.mark.parametrize("before", ["", "fuse-attention,fuse"])
def test_a_fused_sum_replaces_a_sum_and_a_norm(name: str, before: str) -> None:
    """Each fused kernel stands beside one add; only the first layer adds zeros to the embedding."""
    model = llmir.load(name)
    found = diff(passed(model, before), passed(model, "rotate,fuse-attention,fuse"))
    for change in found.changes:
        parts = change.before, change.after
        assert change.what not in ("gone", "new"), str(parts)
        sums, norms = (
            [sum(p.repeat for p in side if word in p.opcode) for side in parts] for word in ("add", "norm")
        )
        assert sums[1] - sums[0] in (0, 1), str(parts)
        assert norms[0] == norms[1]
        if sums[1] > 1:
            assert change.figure("read_bytes").delta < 0
            assert change.figure("time_s").delta < 0


def test_what_dce_drops_is_gone() -> None:
    b = llmir.Builder()
    x = b.input("bf16[B, T, 64]", name="x")
    b.silu(x, name="unused")
    b.output(b.silu(x, name="used"))
    program = llmir.Program("p", {"main": b.graph()})
    found = diff(program, passed(program, "dce"))
    [gone] = found.changes
    assert (gone.what, [p.name for p in gone.before], gone.after) == ("gone", ["unused"], ())
    assert [p.name for p in found.same] == ["used"]


def test_one_layer_more_changes_the_layers_and_nothing_else() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64),
        **{"num_attention_heads": 4, "torch_dtype": "bfloat16"},
    }
    three, four = (llmir.load({**config, "num_hidden_layers": n}) for n in (3, 4))
    found = diff(three, four)
    assert {c.what for c in found.changes} == {"changed"}
    for c in found.changes:
        [old], [new] = c.before, c.after
        assert (old.repeat, new.repeat, old.flops * 4) == (3, 4, new.flops * 3)
    assert {p.name for p in found.same} == {"embedding", "final_norm", "last_token", "lm_head"}


@pytest.mark.slow
@given(configs(("Qwen3MoeForCausalLM",)), PIPELINES, PIPELINES)
def test_folding_equal_layers_loses_nothing(config: dict[str, object], before: str, after: str) -> None:
    model = llmir.load(config)
    found = diff(passed(model, before), passed(model, after))
    lines = fold_changes(found.changes)
    assert sorted(b for bodies, _ in lines for b in bodies) == sorted(
        (c.after or c.before)[0].name.rpartition(".")[0] for c in found.changes
    )
    for name in FIGURES:
        due = sum(c.figure(name).delta for c in found.changes)
        assert sum(c.figure(name).delta for _, c in lines) == pytest.approx(due, rel=1e-9, abs=1e-9)


def test_another_device_changes_times_only() -> None:
    program = llmir.load("llama3.1-8b")
    old, new = (
        llmir.analyze(program, hw, batch=1, new=1, context=9, estimation=llmir.Estimation(cost="ideal"))
        for hw in ("a100", "h100-sxm")
    )
    found = llmir.diff(old, new)
    assert isinstance(found, StepDiff)
    assert not found.same
    for c in found.changes:
        assert c.figure("time_s").delta < 0
        assert {c.figure(f).delta for f in FIGURES if f != "time_s"} == {0}


def test_the_dict_is_json_and_holds_the_reports() -> None:
    eager = llmir.load("qwen3-0.6b")
    jobs = [
        llmir.workload(p, "l4", batch=2, prompt=32, generate=4)
        for p in (eager, passed(eager, llmir.pipeline_of()))
    ]
    found = llmir.diff(*jobs)
    assert isinstance(found, WorkloadDiff)
    data = found.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for side, job in zip(("before", "after"), jobs, strict=True):
        own = job.to_dict()
        for name in ("ttft_s", "tpot_s", "e2e_s", "max_batch"):
            assert data[name][side] == own[name]
        for phase in ("prefill", "decode"):
            for name in (*FIGURES, "peak_memory_bytes"):
                assert data["phases"][phase][name][side] == own["phases"][phase][name]
    one = [llmir.workload(eager, "l4", prompt=8, generate=1)] * 2
    assert llmir.diff(*one).to_dict()["phases"]["decode"] is None


def test_notebooks_show_names_as_text() -> None:
    program = llmir.load("qwen3-0.6b").replace(name="<script>")
    job = llmir.workload(program, "cpu", prompt=8, generate=2)
    for html in (llmir.diff(job, job)._repr_html_(), diff(program, program)._repr_html_()):
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert html.count("<table>") == html.count("</table>") > 0


def test_what_cannot_be_compared_is_an_error() -> None:
    program = llmir.load("qwen3-0.6b")
    report = llmir.analyze(program, "cpu", batch=[1, 2])
    with pytest.raises(InputError, match=r"one point, got a grid \(2,\)"):
        llmir.diff(report, report)
    with pytest.raises(InputError, match=r"two programs and a device, .* got Program and Program"):
        llmir.diff(program, program)
    with pytest.raises(InputError, match="expected a Program"):
        llmir.diff(report, report, "cpu")


def test_the_overhead_of_an_engine_is_one_more_change() -> None:
    """What launching fewer kernels saves is in no op; with it the deltas are those of the step."""
    model = llmir.load("qwen3-0.6b")  # so small that the host is longer than its kernels
    fused = llmir.run(model, llmir.pipeline_of())
    old, new = (
        llmir.analyze(
            p,
            "a100",
            batch=1,
            new=1,
            context=9,
            estimation=llmir.Estimation(cost="calibrated", engine="hf-transformers"),
        )
        for p in (model, fused)
    )
    found = llmir.diff(old, new)
    assert isinstance(found, StepDiff)
    engine = [c for c in found.changes if c.after and c.after[0].kind == "overhead"]
    assert [(c.what, c.after[0].name) for c in engine] == [("changed", "launch_gap")]
    assert engine[0].figure("time_s").delta == pytest.approx(new.overhead_s - old.overhead_s)
    assert sum(c.figure("time_s").delta for c in found.changes) == pytest.approx(new.time_s - old.time_s)
