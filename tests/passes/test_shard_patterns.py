"""Small models split in every way at once: collectives of published designs, and the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import llmir
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from tests.commands import TINY

MOE: dict[str, Any] = TINY | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
SHARED = MOE | {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 32}
del SHARED["head_dim"]
BEFORE = ("", llmir.pipeline_of())
# Megatron-LM (arXiv:1909.08053): a sum after attention and one after the MLP; and as its sequence parallelism
# has them, in two halves (arXiv:2205.05198).
SUMS = ["all_reduce tp0"] * 2
HALVES = ["all_gather tp0", "reduce_scatter tp0"] * 2
WAYS: list[tuple[dict[str, Any], str, list[str]]] = [
    (TINY, "tp=2", SUMS),
    (TINY, "tp=2, sp=1", HALVES),
    (TINY, "dp=2", []),
    (TINY, "dp=2, tp=2, sp=1", HALVES),
    (MOE, "tp=2", SUMS),
    (
        MOE,
        "tp=4, ep=2",
        [x.replace("tp0", "tp0.tp1") for x in SUMS],
    ),  # each rank takes the rows of its experts
    # GShard (arXiv:2006.16668): rows go to their experts, with the expert that each is for, and back.
    (MOE, "dp=2, ep=2", ["all_to_all dp0"] * 3),
    (MOE, "dp=2, tp=2, ep=2", [SUMS[0], *["all_to_all dp0"] * 3, SUMS[1]]),
    (MOE, "dp=2, tp=2, ep=4", [SUMS[0], *["all_to_all dp0"] * 3, SUMS[1]]),
    (MOE, "dp=4, tp=2, ep=8", [SUMS[0], *["all_to_all dp0.dp1"] * 3, SUMS[1]]),
    (MOE, "tp=2, ep=2, sp=1", [*HALVES[:2], *["all_to_all tp0"] * 3]),
    (MOE, "dp=2, tp=2, ep=4, sp=1", [*HALVES[:2], *["all_to_all dp0.tp0"] * 3]),
    # Ranks that share an expert gather what it works on: tokens, choices and the rows' weights.
    (MOE, "dp=2", [*["all_gather dp0"] * 3, "reduce_scatter dp0"]),
    (
        MOE,
        "dp=4, ep=2",
        [
            *["all_gather dp1"] * 2,
            *["all_to_all dp0"] * 2,
            "all_gather dp1",
            "all_to_all dp0",
            "reduce_scatter dp1",
        ],
    ),
    # What the shared expert gives is added to what the routed ones give before the sum over ranks is made.
    (SHARED, "tp=2", SUMS),
    (SHARED, "tp=2, ep=2", SUMS),
    (SHARED, "tp=2, sp=1", HALVES),
    (SHARED, "dp=2, tp=2, ep=4", [SUMS[0], *["all_to_all dp0"] * 3, SUMS[1]]),
    (SHARED, "dp=2, tp=2", [SUMS[0], *["all_gather dp0"] * 3, "reduce_scatter dp0", SUMS[1]]),
]
IDS = [f"{'shared' if c is SHARED else 'moe' if c is MOE else 'dense'} {how}" for c, how, _ in WAYS]


def sent(program: Program, graph: str) -> list[str]:
    nodes = [n.op for n in program[graph].nodes if n.op.kind == "collective" and n.op.opcode != "slice"]
    return [f"{op.opcode} {'.'.join(op.over)}" for op in nodes]


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("before", BEFORE, ids=["eager", "fused"])
@pytest.mark.parametrize(("config", "how", "expected"), WAYS, ids=IDS)
def test_a_layer_sends_what_the_designs_send_and_computes_the_same(
    config: dict[str, Any], how: str, expected: list[str], before: str
) -> None:
    program = llmir.run(llmir.load(config), before)
    sharded = llmir.run(program, f"shard{{{how}}}")
    layer = next(name for name in sharded.graphs if name.endswith("layer"))
    assert sent(sharded, layer) == expected
    # Around the layers: a sum over the vocabulary's parts, and a gather of logits; the batch stays split.
    ends = ["reduce_scatter", "all_gather", "all_gather"] if "sp=1" in how else ["all_reduce", "all_gather"]
    atoms = ".".join(sharded.mesh.atoms("tp"))
    assert sent(sharded, "main") == ([f"{opcode} {atoms}" for opcode in ends] if atoms else [])
    [logits] = (sharded["main"].type(v) for v in sharded["main"].outputs)
    assert logits.placements == (sharded.mesh.atoms("dp"), ())
    assert llmir.equivalent(program, sharded, batch=4, new=3)
    assert llmir.check(sharded, program).agrees


def test_rows_that_are_sent_know_how_they_were_routed() -> None:
    program = llmir.run(llmir.load(MOE), "route{skew=1}")
    sharded = llmir.run(program, "shard{dp=2, ep=2}")
    layer = next(name for name in sharded.graphs if name.endswith("layer"))
    there = [n.op for n in sharded[layer].nodes if n.op.opcode == "all_to_all"][:2]
    assert [(op.top_k, op.experts, op.routing) for op in there] == [(2, 8, "zipf(1.0)")] * 2


def test_a_pass_twice_is_degrees_multiplied() -> None:
    program = llmir.load(MOE)
    twice = llmir.run(program, "shard{dp=2, ep=2},shard{tp=2, ep=2, sp=1}")
    assert llmir.equivalent(program, twice, batch=4, new=4)
    assert str(twice.parallelism) == "tp 2, ep 4, dp 2, sp"
    assert llmir.run(program, "shard{}") == program


def activations(mix: Callable[[Builder, Value, Value], Value]) -> Program:
    """Two linears side by side, split by tp along their results, and what is made of these."""
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x", axes=("batch", "seq", "embed"))
    wide = [b.weight("bf16[8, 12]", name=f"w{i}", axes=("embed", "mlp"), param=f"w{i}") for i in range(2)]
    one, other = (b.linear(x, w, einsum="b t h, h f -> b t f") for w in wide)
    b.output(mix(b, one, other))
    return Program("mix", {"main": b.graph()})


MIXES: dict[str, tuple[Callable[[Builder, Value, Value], Value], list[str]]] = {
    # Two axes that lie over one mesh axis: one of them must be gathered, and then the result.
    "outer": (lambda b, u, v: b.linear(u, v, einsum="b t f, b t g -> b f g"), ["all_gather tp0"] * 2),
    # An axis that must stay whole.
    "softmax": (lambda b, u, v: b.softmax(b.mul(u, v)), ["all_gather tp0"]),
    # A first axis of the result that is not the batch.
    "turned": (lambda b, u, v: b.linear(u, v, einsum="b t f, b t f -> f b"), ["all_gather tp0"]),
    "sum": (lambda b, u, v: b.linear(u, v, einsum="b t f, b t f -> b t"), ["all_reduce tp0"]),
    # A sum twice used is added up once.
    "twice": (
        lambda b, u, v: b.silu(b.add(s := b.linear(u, v, einsum="b t f, b s f -> b t s"), b.softmax(s))),
        ["all_reduce tp0"],
    ),
}


@pytest.mark.parametrize("mix", MIXES)
def test_what_no_rank_can_do_alone_is_gathered_first(mix: str) -> None:
    how, expected = MIXES[mix]
    program = activations(how)
    for degrees in ("tp=2", "dp=2, tp=2", "tp=4"):
        sharded = llmir.run(program, f"shard{{{degrees}}}")
        assert llmir.equivalent(program, sharded, batch=4, new=3)
        atoms = ".".join(sharded.mesh.atoms("tp"))
        over_tp = [x for x in sent(sharded, "main") if "tp" in x]
        assert over_tp == [x.replace("tp0", atoms) for x in expected]


@pytest.mark.parametrize("einsum", ["b t h, h f -> b t f", "b t h, h f -> f b t", "b t h, h f -> b f t"])
def test_tokens_are_gathered_before_an_op_that_turns_them(einsum: str) -> None:
    """With sequence parallelism: of a result that has them elsewhere, no rank could say which are its own."""
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x", axes=("batch", "seq", "embed"))
    up = b.weight("bf16[8, 12]", name="up", axes=("embed", "mlp"), param="up")
    down = b.weight("bf16[12, 8]", name="down", axes=("mlp", "embed"), param="down")
    other = b.weight("bf16[8, 4]", name="other", axes=("embed", "other"), param="other")
    y = b.linear(b.linear(x, up, einsum="b t h, h f -> b t f"), down, einsum="b t f, f h -> b t h")
    b.output(b.linear(y, other, einsum=einsum))
    program = Program("turned", {"main": b.graph()})
    sharded = llmir.run(program, "shard{tp=2}")
    assert llmir.equivalent(program, sharded, batch=4, new=4)
    sharded = llmir.run(program, "shard{tp=2, sp=1}")
    assert llmir.equivalent(program, sharded, batch=4, new=4)
    assert ("reduce_scatter tp0" in sent(sharded, "main")) == (einsum == "b t h, h f -> b t f")


@pytest.mark.parametrize("turned", [False, True], ids=["x + y", "y + x"])
def test_terms_of_a_sum_go_where_the_one_lies_that_is_split_most(turned: bool) -> None:
    """A partial sum over the ranks that the other term is split over is scattered to them."""
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x", axes=("batch", "seq", "embed"))
    w = b.weight("bf16[8, 16, 4]", name="w", axes=("embed", "mlp", "expert"), param="w")
    v = b.weight("bf16[16, 4, 8]", name="v", axes=("mlp", "expert", "embed"), param="v")
    routed = b.linear(b.linear(x, w, einsum="b t h, h f e -> b t f e"), v, einsum="b t f e, f e h -> b t h")
    b.output(b.add(x, routed) if turned else b.add(routed, x))
    program = Program("terms", {"main": b.graph()})
    split = llmir.run(program, "shard{dp=2}")
    assert sent(split, "main") == ["all_gather dp0", "reduce_scatter dp0"]
    assert llmir.equivalent(program, split, batch=4, new=3)
