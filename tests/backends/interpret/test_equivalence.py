"""What passes keep is found equal, at the sizes of real models; what a wrong one breaks is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.base.errors import InputError
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.op import Op
from llmir.ir.core.program import Program
from llmir.ir.tools.rewrite import Rule, rewrite
from tests.commands import TINY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "pipeline"),
    [
        ("llama3.1-8b", "fuse-attention,fuse,dce,shard{tp=8}"),
        ("qwen3-30b-a3b", "fuse-attention,fuse,shard{tp=4, ep=4}"),
        ("qwen2.5-7b", "stages{pp=4, micro_batches=2}"),
        ("llama3.2-1b", "unroll"),
        ("gpt3-175b", "fuse-attention,fuse,shard{tp=8},stages{pp=4}"),
        ("gpt-j-6b", "fuse-attention,fuse,shard{tp=4}"),
        ("starcoder-15.5b", "fuse-attention,fuse,shard{tp=8}"),
        ("bloom-7b1", "fuse-attention,fuse,shard{tp=4, sp=1}"),
        ("falcon-40b", "fuse-attention,fuse,shard{tp=8}"),
        ("pythia-6.9b", "fuse-attention,fuse,dce,unroll"),
        ("mpt-7b", "fuse-attention,fuse,shard{tp=2, dp=2}"),
    ],
)
def test_models_of_any_size_are_held_against_each_other(model: str, pipeline: str) -> None:
    program = llmir.load(model)
    found = llmir.equivalent(program, llmir.run(program, pipeline))
    assert (found.equal, found.first) == (True, "")


def changed(program: Program, opcode: str, **attributes: Any) -> Program:
    """With other attributes of the ops of one kind."""

    def other(op: Op) -> Op:
        return replace(op, **attributes) if op.opcode == opcode else op

    return program.replace(
        graphs={
            name: Graph(name, [Node(n.name, other(n.op), n.operands, n.results) for n in g.nodes], g.outputs)
            for name, g in program.graphs.items()
        }
    )


def unmasked(program: Program) -> Program:
    rule = Rule("unmask", lambda p, scores: p.attention_mask(scores), lambda b, match, scores: scores)
    return program.replace(graphs={name: rewrite(g, [rule]) for name, g in program.graphs.items()})


def test_what_differs_first_is_named() -> None:
    program = llmir.load(TINY)
    for other, first in (
        (changed(program, "attention_scores", scale=1.0), "op layer.0.scores"),
        (changed(program, "rms_norm", eps=0.1), "op layer.0.input_norm"),
        (unmasked(program), "op layer.0.cast"),
    ):
        found = llmir.equivalent(program, other)
        assert not found
        assert found.first.startswith(first)
        assert found.difference > 1e-6
        assert f"DIFFERENT, first {first}" in str(found)
        assert found.to_dict()["first"] == found.first


def test_a_little_may_be_allowed() -> None:
    program = llmir.load(TINY)
    other = changed(program, "rms_norm", eps=1.01e-6)
    found = llmir.equivalent(program, other)
    assert 0 < found.difference < 1e-6
    assert not found
    assert llmir.equivalent(program, other, tolerance=2 * found.difference)


def cached(*, twice: bool) -> Program:
    """What was there before a step is attended to; the step's own rows are written for the next."""
    b = llmir.Builder()
    x = b.input("bf16[B, T, 2, 4]", name="x")
    q = b.input("bf16[B, T, 2, 1, 4]", name="q")
    kept = b.cache("bf16[B, C, 2, 4]", name="kept")
    b.append(kept, b.add(x, x) if twice else x)
    b.output(b.attention_mix(b.attention_scores(q, kept), kept))
    return Program("cached", {"main": b.graph()})


def test_what_a_step_leaves_behind_counts() -> None:
    assert llmir.equivalent(cached(twice=True), cached(twice=True))
    assert not llmir.equivalent(cached(twice=True), cached(twice=False))


def linear(einsum: str, w: str, x: str = "x") -> Program:
    b = llmir.Builder()
    b.output(b.linear(b.input("bf16[B, T, 64]", name=x), b.weight(w, name="w"), einsum=einsum))
    return Program("linear", {"main": b.graph()})


def test_programs_that_take_or_give_something_else_differ() -> None:
    plain = linear("b t h, h f -> b t f", "bf16[64, 32]")
    assert llmir.equivalent(plain, plain)
    for other, first in (
        (linear("b t h, h f -> b t f", "bf16[64, 32]", x="y"), "input y"),
        (linear("b t h, h f -> b f t", "bf16[64, 32]"), "outputs, by their shapes"),
        (linear("b t h, h f -> b t f", "bf16[64, 16]"), "outputs, by their shapes"),
    ):
        found = llmir.equivalent(plain, other)
        assert (found.equal, found.first, found.to_dict()["difference"]) == (False, first, None)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"batch": True},
        {"new": 1.5},
        {"new": 10**9},
        {"tolerance": -1},
        {"tolerance": np.nan},
        {"tolerance": "x"},
    ],
)
def test_what_no_step_is_is_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        llmir.equivalent(llmir.load(TINY), llmir.load(TINY), **options)
    with pytest.raises(InputError):
        llmir.equivalent(llmir.load(TINY), 3)  # type: ignore[arg-type]  # the mistake that is tested


def test_interpret_takes_weights_and_gives_what_the_next_step_needs() -> None:
    program = llmir.load(TINY)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 100, (2, 6))
    (whole,), _ = llmir.interpret(program, {"tokens": tokens})
    _, caches = llmir.interpret(program, {"tokens": tokens[:, :4]})
    (pieces,), _ = llmir.interpret(program, {"tokens": tokens[:, 4:]}, caches=caches, context=4)
    assert np.allclose(whole, pieces, rtol=1e-9)
    (zero,), _ = llmir.interpret(program, {"tokens": tokens}, lambda name, type: np.zeros(type.shape))
    assert not zero.any()
