"""Derivatives on the tape are differences, away from kinks."""

from __future__ import annotations

import random

import pytest

import llmir
from llmir.backends.tape import python
from llmir.backends.tape.derivatives import derivatives
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS


def test_rules_are_those_of_calculus() -> None:
    """By hand: each function of the tape at a point where it is smooth."""
    tape = Tape(SCALARS)
    x, xp = tape.symbol("x"), tape.namespace
    cases = {
        x * x + 3 * x - 1: 2 * 2.5 + 3,
        1 / x: -1 / 2.5**2,
        x**3: 3 * 2.5**2,
        -x: -1,
        abs(-x): 1,
        xp.sqrt(x): 0.5 / 2.5**0.5,
        xp.cbrt(x): 2.5 ** (-2 / 3) / 3,
        xp.hypot(x, 2): 2.5 / (2.5**2 + 4) ** 0.5,
        xp.expm1(x): 2.718281828459045**2.5,
        xp.minimum(x, 2): 0,
        xp.maximum(x, 2): 1,
        xp.where(x < 2, x, 2 * x): 2,
        xp.ceil(x) * x: 3,
        xp.ceildiv(x, 2) + x // 2: 0,
    }
    found = python.compiled(derivatives(Function.of(tape, "x", cases), "x"))(2.5)
    assert found == pytest.approx(tuple(cases.values()), rel=1e-12, abs=0)
    with pytest.raises(TypeError, match="exponent changes"):
        derivatives(Function.of(tape, "x", [2**x]), "x")


@pytest.mark.mostly_slow(9)
@pytest.mark.parametrize("model", ["llama3.1-8b", "gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize("by", ["batch", "new", "context"])
def test_of_steps_are_differences(model: str, by: str) -> None:
    """Where the differences on either side agree, there is no kink between them."""
    step = llmir.compile(llmir.run(llmir.load(model), llmir.pipeline_of()), "h100-sxm")
    rng, smooth = random.Random(model + by), 0
    whole = step._code(step.program, False).whole.function
    run = python.compiled(whole)
    found = python.compiled(derivatives(whole, {"batch": "B", "new": "T", "context": "C"}[by]))
    for _ in range(12):
        # Between integers, at which sequences are rounded up.
        sizes = {"batch": (2, 300), "new": (9, 900), "context": (1, 20_000)}
        at = {name: rng.randrange(*ends) + 0.37 * (name == by) for name, ends in sizes.items()}
        near = 1e-6 * at[by]
        below, here, above = (run(*(at | {by: at[by] + d}).values())[0] for d in (-near, 0, near))
        left, right = (here - below) / near, (above - here) / near
        if left == pytest.approx(right, rel=1e-4, abs=1e-14):
            smooth += 1
            assert found(*at.values())[0] == pytest.approx((left + right) / 2, rel=2e-4, abs=1e-13)
    assert smooth >= 4


def test_a_step_says_what_one_more_token_takes() -> None:
    step = llmir.compile(llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of()), "h100-sxm")
    at = {"batch": 64, "new": 1}
    more = step.slope("context", **at, context=9000)
    before, after = (step(**at, context=context) for context in (8900, 9100))
    assert more.time_s == pytest.approx((after.time_s - before.time_s) / 200, rel=1e-3)
    assert more.peak_memory_bytes == (after.peak_memory_bytes - before.peak_memory_bytes) / 200
