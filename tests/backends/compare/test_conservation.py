"""What sharding conserves, over random models and meshes: FLOPs, weights, caches, and bytes on the wire."""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.base.errors import PassError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from tests.commands import Run, config
from tests.flat import records
from tests.passes.test_shard import BEFORE
from tests.strategies import configs, degrees, wide

DENSE = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def laid(config: dict[str, Any], program: Program, data: st.DataObject) -> Program:
    """The program over ranks that its sizes divide, and its rows too: by chance some rank has more."""
    if any(n.op.routing for graph in program.graphs.values() for n in graph.nodes):
        program = llmir.run(program, "route{routing=even}")
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or program.active_parameters < program.parameters))
    return llmir.run(program, how)


@pytest.mark.slow
@given(configs(), BEFORE, st.data(), st.integers(1, 3), st.integers(1, 5))
def test_all_ranks_are_one_device_and_what_is_named(
    config: dict[str, Any], before: str, data: st.DataObject, batch: int, new: int
) -> None:
    """The sum comes out, figures are those of reports, and only what must be is replicated."""
    config = wide(config, 12)
    program = llmir.run(llmir.load(config, logits="all"), before)
    after = laid(config, program, data)
    ranks, dp, tp = after.mesh.devices, after.mesh.degree("dp"), after.mesh.degree("tp")
    point = {"batch": batch * dp, "new": new * ranks}  # sizes divide
    held = conservation(program, after, **point)
    assert held.problems == ()
    one, each = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, after))
    for what, figure in (
        ("weights", "weight_bytes"),
        ("kv_cache", "kv_cache_bytes"),
        ("matmul_flops", "matmul_flops"),
    ):
        total = held.totals[what]
        assert (total.unsharded, total.ranks) == (getattr(one, figure), getattr(each, figure) * ranks)
        assert total.ranks == total.unsharded + total.replicated + total.uneven
        named = sum(s.whole * (s.copies - 1) for s in held.replicated if s.what == what)
        assert total.replicated == named
        if "quantize" not in before:
            assert total.uneven == 0
    surplus = tp // min(tp, config["num_key_value_heads"])
    for share in held.replicated:
        if share.what == "weights":
            # Norms, the router and biases of sums on every rank; attention, embedding, head once a batch;
            # experts nowhere but where ep says.
            allowed = {ranks} if share.block in ("norm", "router") else {dp, dp * surplus, ranks}
            assert share.block != "routed_experts"
            assert share.copies in allowed, share
        elif share.what == "kv_cache":
            assert share.copies == surplus
        else:
            assert share.copies == (tp if share.block == "router" else surplus), share


@pytest.mark.slow
@given(configs(DENSE), st.data())
@settings(max_examples=30)
def test_weights_are_named_by_closed_form(config: dict[str, Any], data: st.DataObject) -> None:
    """Of a dense model without dp: norms and biases of sums tp times, key/value heads beyond their number."""
    config = wide(config, 12)
    program = llmir.load(config)
    assume((tp := data.draw(st.sampled_from((2, 3, 4, 6)))) and allowed(program, tp))
    held = conservation(program, llmir.run(program, f"shard{{tp={tp}}}"), batch=1, new=tp)
    size = 4 if "32" in config["torch_dtype"] else 2
    kv = config["num_key_value_heads"]
    copies = max(tp // kv, 1)
    kinds = program.parameters_by_kind
    weights = [n for g in program.graphs.values() for n in g.nodes if n.op.opcode == "weight"]
    count = Binding()
    layers = config["num_hidden_layers"]
    shared = layers * sum(
        count(n.results[0].elements) for n in weights if n.name.split(".")[0] in ("k_proj", "v_proj")
    )
    summed = layers * sum(
        count(n.results[0].elements)
        for n in weights
        if n.name.split(".")[0] in ("o_proj", "down_proj") and "bias" in n.name
    )
    expected = (tp - 1) * (kinds["norm"] + summed) + (copies - 1) * shared
    assert held.totals["weights"].replicated == size * expected


@pytest.mark.slow
@given(configs(), st.data(), st.integers(1, 2), st.integers(1, 3))
@settings(max_examples=40)
def test_stages_hold_a_tied_embedding_twice_and_nothing_else(
    config: dict[str, Any], data: st.DataObject, parts: int, new: int
) -> None:
    config = wide(config, 12)
    program = llmir.load(config)
    stages = data.draw(st.integers(1, config["num_hidden_layers"]))
    staged = llmir.run(program, f"stages{{pp={stages}, micro_batches={parts}}}")
    after = laid(config, staged, data)
    dp, ranks = after.mesh.degree("dp"), after.mesh.devices
    point = {"batch": 2 * parts * dp, "new": new * ranks}
    held = conservation(program, after, **point)
    flat = conservation(program, llmir.run(after, "unroll"), **point)
    assert held.problems == flat.problems == ()
    tied = config["tie_word_embeddings"] and stages > 1
    [table] = [s for s in held.shares if s.name.endswith("embed.weight")]
    assert table.copies == dp * (2 if tied else 1)
    assert all(s.copies <= ranks for s in held.shares if s is not table)
    one = llmir.analyze(program, "h100", **records(llmir.analyze, **point))
    assert held.totals["matmul_flops"].unsharded == one.matmul_flops
    for what, total in held.totals.items():
        assert total == flat.totals[what]
        assert total.ranks == total.unsharded + total.replicated


def allowed(program: Program, tp: int) -> bool:
    try:
        llmir.run(program, f"shard{{tp={tp}}}")
    except PassError:
        return False
    return True


@pytest.mark.slow
@given(configs(), BEFORE, st.data(), st.integers(1, 6), st.integers(1, 6))
def test_each_collective_sends_its_share_of_its_payload(
    config: dict[str, Any], before: str, data: st.DataObject, batch: int, new: int
) -> None:
    """2(n−1)/n of the payload for an all_reduce, half of that for its halves, by a rank's own sizes."""
    config = wide(config, 12)
    after = laid(config, llmir.run(llmir.load(config), before), data)
    step = llmir.analyze(after, "h100", batch=batch, new=new)
    at, mesh = Binding(B=batch, T=new, C=0), after.mesh
    sent = {op.name: op.comm_bytes for op in step.ops if op.kind == "collective"}
    for node in after.instances():
        if node.node.op.kind != "collective":
            continue
        [x], [y] = node.graph.operand_types(node.node), node.node.results
        n = mesh.size(getattr(node.node.op, "over", ()))
        share = {"all_reduce": 2 * (n - 1), "slice": 0}.get(node.node.op.opcode, n - 1)
        there = node.node.op.opcode == "all_gather" or getattr(node.node.op, "to", "") == "experts"
        payload = at((y if there else x).local(mesh).bytes)
        assert sent[node.path] == ceil(share * payload / n)


@pytest.mark.slow
@given(configs(DENSE), BEFORE, st.data(), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=40)
def test_sequence_parallelism_sends_the_bytes_of_the_sums_it_replaces(
    config: dict[str, Any], before: str, data: st.DataObject, batch: int, new: int
) -> None:
    """Inside dense layers, where tokens divide."""
    config = wide(config, 12)
    program = llmir.run(llmir.load(config), before)
    tp = data.draw(st.sampled_from((2, 3, 4, 6)))
    assume(allowed(program, tp))
    found = []
    for sp in (0, 1):
        after = llmir.run(program, f"shard{{tp={tp}, sp={sp}}}")
        step = llmir.analyze(after, "h100", batch=batch, new=new * tp)
        inside = [
            op for op in step.ops if op.kind == "collective" and op.block not in ("embedding", "lm_head")
        ]
        found.append(sum(op.comm_bytes * op.repeat for op in inside if "final_norm" not in op.name))
    assert found[0] == found[1] > 0


@pytest.mark.slow
@given(configs(), BEFORE, st.data())
@settings(max_examples=40)
def test_sharding_in_two_steps_is_sharding_in_one(
    config: dict[str, Any], before: str, data: st.DataObject
) -> None:
    config = wide(config, 12)
    program = llmir.run(llmir.load(config), before)
    name, first, second = data.draw(
        st.sampled_from((("tp", 2, 2), ("tp", 2, 3), ("dp", 2, 2), ("dp", 3, 2), ("tp", 1, 2)))
    )
    sp = data.draw(st.integers(0, int(name == "tp" and first > 1)))
    assume(name == "dp" or (allowed(program, first * second) and allowed(program, first)))
    whole = try_run(program, f"shard{{{name}={first * second}, sp={sp}}}")
    assume(whole is not None)
    twice = llmir.run(program, f"shard{{{name}={first}, sp={sp}}},shard{{{name}={second}}}")
    assert twice == whole


def try_run(program: Program, how: str) -> Program | None:
    try:
        return llmir.run(program, how)
    except PassError:
        return None


@pytest.mark.slow
@given(configs(), BEFORE)
@settings(max_examples=40)
def test_bytes_of_a_rank_never_rise_with_tp(config: dict[str, Any], before: str) -> None:
    config = wide(config, 12)
    program = llmir.run(llmir.load(config), before)
    found = []
    for tp in (1, 2, 3, 4, 6, 12):
        if after := try_run(program, f"shard{{tp={tp}}}"):
            step = llmir.analyze(after, "h100", batch=3, new=1, context=7)
            found.append((step.weight_bytes, step.kv_cache_bytes))
    assert all(a >= b for x, y in pairwise(found) for a, b in zip(x, y, strict=True))


SCANS = ("zamba2-1.2b", "nemotron-h-8b", "qwen3.5-9b", "minimax-m1", "kimi-linear-48b-a3b")


@pytest.mark.parametrize("model", SCANS)
def test_a_scan_is_split_over_its_heads(model: str) -> None:
    """All but the scores of one group, whose B and C every head reads (Zamba2): on each rank."""
    program = llmir.run(llmir.load(model), llmir.pipeline_of())
    after = llmir.run(program, "shard{tp=4, dp=2}")
    held = conservation(program, after, batch=2, new=130)
    assert held.problems == ()
    one, each = (llmir.analyze(p, "h100-sxm", batch=2, new=130, context=0) for p in (program, after))
    flops = held.totals["matmul_flops"]
    assert (flops.unsharded, flops.ranks) == (one.matmul_flops, each.matmul_flops * 8)
    scans = {s.name.rpartition(".")[2] for s in held.replicated if ".scan" in s.name}
    assert scans == ({"scan#0"} if model == "zamba2-1.2b" else set())


def test_another_model_is_not_conserved() -> None:
    small, large = llmir.load("qwen3-0.6b"), llmir.load("qwen3-1.7b")
    held = conservation(small, llmir.run(large, "shard{tp=2}"))
    assert [p.partition(":")[0] for p in held.problems] == ["weights", "matmul_flops"]


def test_check_says_it(run: Run) -> None:
    """tiny: 2 layers, hidden 64, 4 heads of 16 and 2 key/value heads, bf16."""
    ran = run("check", "tiny.json", "--tp", "4", "--format", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["conserved"], found["problems"]) == (0, True, [])
    assert found["parallel"] == {"tp": 4, "pp": 1, "ep": 1, "dp": 1, "sp": False}
    norms, key_values = 5 * 64, 2 * 2 * 64 * 32
    weights = found["totals"]["weights"]
    assert weights["replicated"] == 2 * (3 * norms + key_values)
    assert weights["ranks"] == weights["unsharded"] + weights["replicated"]
    assert {s["name"] for s in found["replicated"] if s["what"] == "kv_cache"} == {
        "layer.k_cache",
        "layer.v_cache",
    }
    table = run("check", "tiny.json", "--tp", "4", "--weights", "fp8")
    assert table.code == 0
    assert "verdict  conserved" in table.out


def test_check_exits_1_when_something_is_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmir.cli import inputs

    other = llmir.load(config(Path.cwd(), num_hidden_layers=1))
    programs = inputs.before_and_after
    monkeypatch.setattr(inputs, "before_and_after", lambda given: (other, programs(given)[1]))
    ran = run("check", "tiny.json", "--tp", "2")
    assert ran.code == 1
    assert "NOT CONSERVED" in ran.out
    assert "in the sharded program" in ran.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "requires --index FILE, or more than one rank"),
        (("--tp", "3"), "allowed: 1, 2, 4"),
        (("--index", "index.json", "--tp", "2"), "--tp: has no effect with --index"),
        (("--pp", "2", "--micro-batches", "2", "--batch", "3"), "a multiple of the 2 micro-batches, got 3"),
        (("--pp", "3"), "has only 2 layers"),
        (("-p", "shard{tp=2}", "--tp", "2"), "is sharded over 2 ranks; expected a program on one"),
        (("--tp", "2", "--collectives", "fp9"), "unknown dtype 'fp9'"),
    ],
)
def test_what_check_cannot_do_is_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    ran = run("check", "tiny.json", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
