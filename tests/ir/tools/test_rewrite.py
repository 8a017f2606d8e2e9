"""Rewrite rules and pipelines: what they find, what they leave alone, and what they refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given

import llmir
from llmir.base.errors import LlmirError, PassError, VerifyError
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import PASSES, parse_pipeline
from llmir.ir.tools.rewrite import Rule, rewrite
from tests.strategies import configs


def opcodes(program: Program, graph: str = "layer") -> Counter[str]:
    return Counter(n.op.opcode for n in program[graph].nodes)


def test_an_engine_has_eight_kernels_a_llama_layer() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    ops = [n.name for n in program["layer"].nodes if n.op.opcode not in ("input", "weight", "cache")]
    assert ops == [
        "input_norm",
        "qkv_proj",
        "rope_append",
        "flash_attention",
        "o_proj",
        "add_post_norm",
        "gate_up_proj",
        "silu_mul",
        "down_proj",
        "mlp_add",
    ]


@pytest.mark.slow
@given(configs())
def test_fusion_finds_every_layer_and_leaves_no_eager_op(config: dict[str, object]) -> None:
    program = llmir.run(llmir.load(config), llmir.pipeline_of())
    for name in (n for n, graph in program.graphs.items() if not graph.loops):
        found = opcodes(program, name)
        assert found["flash_attention"] == found["rope_append"] == 1
        assert found["silu_mul"] == 1 + found["sigmoid_mul"]  # which a shared expert has
        assert found["add_rms_norm"] == 1
        eager = (
            "attention_scores",
            "softmax",
            "attention_mix",
            "rope",
            "append",
            "silu",
            "mul",
            "top_k",
            "cast",
        )
        assert not any(found[op] for op in eager)


def test_fusing_twice_changes_nothing() -> None:
    once = llmir.run(llmir.load("qwen3-30b-a3b"), llmir.pipeline_of())
    assert llmir.run(once, llmir.pipeline_of()) is once


def test_fusing_before_or_after_unrolling_gives_the_same_kernels_but_one() -> None:
    """Flat, the last add of a layer meets the first norm of the next, which a loop body cannot show."""
    program = llmir.load("llama3.2-1b")
    rolled = llmir.run(program, "fuse-attention,fuse,unroll")
    flat = llmir.run(program, "unroll,fuse-attention,fuse")
    more = opcodes(flat, "main") - opcodes(rolled, "main")
    assert more == Counter(add_rms_norm=16)
    assert opcodes(rolled, "main") - opcodes(flat, "main") == Counter(add=16, rms_norm=16)


def relu_square(p: llmir.Builder, x: Value) -> Value:
    y: Value = p.silu(x)
    return p.mul(y, y, label="mul")  # type: ignore[no-any-return]


def build(*, escapes: bool) -> Program:
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    y = b.silu(x)
    z = b.mul(y, y)
    b.output(z, y) if escapes else b.output(z)
    return Program("small", {"main": b.graph()})


RULE = Rule("square", relu_square, lambda b, match, x: b.silu_mul(x, x, name="fused"))


def test_a_value_used_twice_in_a_pattern_must_be_one() -> None:
    graph = rewrite(build(escapes=False).graphs["main"], [RULE])
    assert [n.op.opcode for n in graph.nodes] == ["input", "silu_mul"]
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    b.output(b.mul(b.silu(x), b.silu(x)))
    other = b.graph()
    assert rewrite(other, [RULE]) is other


def test_what_a_replacement_declines_is_tried_with_other_users() -> None:
    """Of five products of one value in two blocks, each block's are merged (Command-R)."""
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    found: list[Value] = []
    for block, names in (("attention", "qkv"), ("mlp", "gu")):
        with b.block(block):
            products = [
                b.linear(x, b.weight("bf16[8, 8]", name=f"w{n}"), einsum="b t h, h f -> b t f") for n in names
            ]
            found += products
    b.output(*found)
    graph = llmir.run(Program("five", {"main": b.graph()}), "fuse")["main"]
    assert [n.name for n in graph.nodes if n.op.runs] == ["qkv_proj", "gate_up_proj"]


def test_an_inner_value_that_is_needed_outside_stops_the_match() -> None:
    graph = build(escapes=True).graphs["main"]
    assert rewrite(graph, [RULE]) is graph


def test_a_replacement_must_keep_the_type() -> None:
    rule = Rule("bad", relu_square, lambda b, match, x: b.cast(x, to="fp32"))
    with pytest.raises(VerifyError, match=r"rule bad: returns \[fp32\[B, T, 8\]\], must return \[bf16"):
        rewrite(build(escapes=False).graphs["main"], [rule])


def test_a_match_that_would_run_before_its_operands_is_left_alone() -> None:
    """gate and up share x, but up's weight is computed from gate's result."""
    b = llmir.Builder()
    x = b.input("bf16[B, 8]", name="x")
    gate = b.linear(x, b.weight("bf16[8, 8]", name="w"), einsum="b h, h f -> b f")
    late = b.linear(gate, gate, einsum="b h, b f -> h f")
    b.output(b.linear(x, late, einsum="b h, h f -> b f"), gate)
    graph = b.graph()
    program = Program("late", {"main": graph})
    assert llmir.run(program, "fuse") == program


def test_dead_code_goes_and_the_rest_stays() -> None:
    program = build(escapes=False)
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    unused = b.input("bf16[B]", name="unused")
    b.silu(unused)
    b.output(b.silu(x))
    after = llmir.run(
        Program(
            "dead",
            {"main": b.graph(), "orphan": Graph("orphan", program["main"].nodes, program["main"].outputs)},
        ),
        "dce",
    )
    assert list(after.graphs) == ["main"]
    assert [n.name for n in after["main"].nodes] == ["x", "unused", "silu_2"]


def test_options_round_trip() -> None:
    for name, kind in PASSES.items():
        assert [str(p) for p in parse_pipeline(name)] == [name] == [kind.name]
    assert parse_pipeline("") == []


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        ("fuse{", "a closing brace is missing"),
        ("shard{tp=2, tp=4}", "pass shard: option 'tp' is given twice"),
        ("fuse{deep=3}", "option 'deep' does not exist; it has none"),
        ("fuse,,dce", "unknown pass ''"),
    ],
)
def test_bad_pipelines(pipeline: str, says: str) -> None:
    with pytest.raises(PassError) as error:
        llmir.run(build(escapes=False), pipeline)
    assert says in str(error.value)


def test_a_pass_that_does_not_exist_is_answered_by_those_that_do() -> None:
    with pytest.raises(PassError) as error:
        llmir.run(build(escapes=False), "fuse-atention")
    says = "unknown pass 'fuse-atention'; did you mean fuse-attention"
    assert str(error.value).startswith(says)


def test_a_pass_that_breaks_the_ir_is_named() -> None:
    def break_it(program: Program) -> Program:
        return program.replace(entries=("nowhere",))

    with pytest.raises(PassError, match=r"no graph @nowhere.*\[in pass 2 of dce,break_it\]"):
        llmir.run(build(escapes=False), ["dce", break_it])
    with pytest.raises(PassError, match="a pass returns a Program, got int"):
        llmir.run(build(escapes=False), lambda program: 3)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("build_it", "says"),
    [
        (
            lambda b, x: b.linear(x, x, einsum="b t h, h f -> b t f"),
            "an operand of 2 axes cannot be bf16[B, T, 8]",
        ),
        (lambda b, x: b.silu(Value("y")), "%y is not a value of graph @main"),
        (lambda b, x: b.top_k(x, k=9), "cannot choose 9 of 8"),
        (lambda b, x: b.weight("bf16[8", name="w"), "type 'bf16[8'"),
        (lambda b, x: b.cast(x, to="fp31"), "dtype 'fp31' is unknown"),
    ],
)
def test_a_builder_names_what_is_wrong(build_it: object, says: str) -> None:
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    with pytest.raises(LlmirError) as error:
        build_it(b, x)  # type: ignore[operator]
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_queries_are_narrowed_where_the_cache_is_in_fp8() -> None:
    model = llmir.load("llama3.1-8b")
    narrow = llmir.run(model, "quantize{kv=fp8},fuse-attention{q=fp8},fuse")
    plain = llmir.run(model, "quantize{kv=fp8},fuse-attention,fuse")
    times = {}
    for name, program in (("narrow", narrow), ("plain", plain)):
        step = llmir.analyze(
            program, "h100-sxm", batch=4, new=2048, estimation=llmir.Estimation(engine="trtllm")
        )
        times[name] = {op.name: op for op in step.ops if op.block == "attention_core"}
        assert any(op.name.startswith("layer.rope_append") for op in step.ops)
        last = step.plan.program.graphs["layer"]["flash_attention"].results[0]
        assert last.dtype.name == "bf16"
    assert times["narrow"].keys() == times["plain"].keys() | {"layer.quantize_rope_q"}
    both = [times[name]["layer.flash_attention"] for name in ("narrow", "plain")]
    assert both[0].time_s < both[1].time_s
    assert both[0].flops == both[1].flops
    for pipeline in ("fuse-attention{q=fp8}", "quantize{kv=int8},fuse-attention{q=fp8}"):
        with pytest.raises(PassError, match=r"no fused attention of program .* reads a cache in fp8"):
            llmir.run(model, pipeline)
    with pytest.raises(PassError, match="q: expected fp8, got 'fp4'"):
        llmir.run(model, "fuse-attention{q=fp4}")


def test_pipelines_that_begin_alike_share_what_they_have_made() -> None:
    program = llmir.load("qwen3-0.6b")
    fused = llmir.run(program, "fuse-attention,fuse")
    assert llmir.run(program, "fuse-attention,fuse") is fused
    assert llmir.run(llmir.load("qwen3-0.6b"), "fuse-attention,fuse") is fused
    sharded = llmir.run(program, "fuse-attention,fuse,shard{tp=2}")
    assert llmir.run(fused, "shard{tp=2}") is sharded
    assert llmir.run(fused, "shard{tp=4}") != sharded
    with pytest.raises(PassError, match=r"in pass 2 of fuse,shard\{tp=3\}"):
        llmir.run(program, "fuse,shard{tp=3}")


def test_a_pass_with_more_than_options_runs_each_time() -> None:
    """Of which an equal one may do another thing; so may a function."""

    class Named(llmir.Pass):
        def __init__(self, to: str) -> None:
            vars(self)["to"] = to

        def __call__(self, program: Program) -> Program:
            return program.replace(name=vars(self)["to"])

    @dataclass(frozen=True)
    class Listed(llmir.Pass):
        names: Any = ()

        def __call__(self, program: Program) -> Program:
            return program.replace(name=self.names.pop())

    program, names = llmir.load("qwen3-0.6b"), ["c", "b"]
    assert [llmir.run(program, [Named(to)]).name for to in "ab"] == ["a", "b"]
    assert [llmir.run(program, [Listed(names)]).name for _ in "bc"] == ["b", "c"]
    calls = iter("ab")
    renamed = [llmir.run(program, [lambda p: p.replace(name=next(calls))]).name for _ in "ab"]
    assert renamed == ["a", "b"]
