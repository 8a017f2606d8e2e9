"""How tokens choose experts, against plain loops that do what the papers say."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmir.base.errors import VerifyError
from llmir.ir.core.op import ExecutionPlace
from llmir.ir.core.program import Program
from llmir.ir.ops.top_k import SigmoidTopK, SoftmaxTopK, TopK
from llmir.ir.tools.build import Builder
from llmir.ir.tools.text import parse_program, print_program
from llmir.passes.fuse import Fuse

ROUTERS = st.integers(1, 4).flatmap(
    lambda groups: st.tuples(
        st.just(groups), st.integers(1, groups), st.integers(2, 5), st.integers(1, 2), st.booleans()
    )
)


def chosen_by_hand(
    scores: list[float], bias: list[float], op: TopK
) -> tuple[list[float], list[int]]:  # DeepSeek-V3, arXiv:2412.19437, section 2.1.2
    size = len(scores) // op.groups
    choice = [s + b for s, b in zip(scores, bias, strict=True)]
    worth = {
        g: math.fsum(sorted(choice[g * size : (g + 1) * size], reverse=True)[: op.best])
        for g in range(op.groups)
    }
    kept = sorted(worth, key=lambda g: -worth[g])[: op.kept]
    candidates = [i for i in range(len(scores)) if i // size in kept]
    chosen = sorted(candidates, key=lambda i: -choice[i])[: op.k]
    total = math.fsum(scores[i] for i in chosen) if op.normalize else 1.0
    return [scores[i] / total * op.scale for i in chosen], chosen


@given(ROUTERS, st.sampled_from((TopK, SoftmaxTopK, SigmoidTopK)), st.data())
def test_the_choice_is_that_of_plain_loops(router: Any, kind: type[TopK], data: st.DataObject) -> None:
    groups, kept, size, best, biased = router
    k = data.draw(st.integers(1, kept * size))
    op = kind(k, data.draw(st.booleans()), groups, kept, best, 2.5)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    logits, bias = rng.normal(size=(2, 3, groups * size)) + 3 * (kind is TopK), rng.normal(size=groups * size)
    operands = [logits, bias] if biased else [logits]
    values, chosen = op.evaluate(operands, (), ExecutionPlace())
    for row, value, which in zip(
        logits.reshape(6, -1), values.reshape(6, -1), chosen.reshape(6, -1), strict=True
    ):
        powers = [math.exp(x) for x in row]
        scores = {
            TopK: list(row),
            SoftmaxTopK: [p / math.fsum(powers) for p in powers],
            SigmoidTopK: [1 / (1 + math.exp(-x)) for x in row],
        }[kind]
        weights, experts = chosen_by_hand(scores, list(bias) if biased else [0.0] * len(row), op)
        assert list(which) == experts
        np.testing.assert_allclose(value, weights, rtol=1e-9)


def router(score: str, biased: bool, **how: Any) -> Program:
    b = Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    scores = getattr(b, score)(b.cast(x, to="fp32"))
    bias = [b.buffer("fp32[8]", name="bias")] if biased else []
    b.output(*b.top_k(scores, *bias, k=2, **how))
    return Program("router", {"main": b.graph()})


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
def test_engines_route_in_one_kernel_whatever_the_choice(score: str, biased: bool) -> None:
    program = router(score, biased, groups=4, kept=2, best=2, scale=1.5, normalize=True)
    fused = Fuse()(program)
    kernels = [n.op for n in fused["main"].nodes if not n.op.source]
    assert [op.opcode for op in kernels] == [f"{score}_top_k"]
    (chosen,) = (n.op for n in program["main"].nodes if n.op.opcode == "top_k")
    names = [f.name for f in fields(chosen)]
    assert [getattr(kernels[0], name) for name in names] == [getattr(chosen, name) for name in names]
    assert print_program(parse_program(print_program(fused))) == print_program(fused)


def test_a_buffer_is_bytes_and_no_parameter() -> None:
    program = router("sigmoid", True)
    assert program.parameters == 0
    assert [str(at.node.results[0]) for at in program.weights()] == ["fp32[8]"]


@settings(max_examples=50)
@given(st.integers(-30, 30))
def test_a_softmax_of_the_chosen_logits_is_a_normalized_one_of_all(seed: int) -> None:
    logits = np.random.default_rng(abs(seed)).normal(size=(1, 5, 12)) * (1 + abs(seed))
    values, chosen = SoftmaxTopK(3, normalize=True).evaluate([logits], (), ExecutionPlace())
    picked = np.take_along_axis(logits, chosen, axis=-1)
    powers = np.exp(picked - picked.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(values, powers / powers.sum(axis=-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"groups": 3}, "top_k: 8 candidates are not 3 groups of 1 or more"),
        ({"groups": 4, "kept": 4, "best": 3}, "top_k: 8 candidates are not 4 groups of 3 or more"),
        ({"groups": 2, "kept": 3}, "top_k: cannot keep 3 of 2 groups"),
        ({"groups": 8}, "top_k: cannot choose 2 of 1"),
    ],
)
def test_groups_that_cannot_be(how: dict[str, int], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        router("softmax", False, **how)
