"""Up to so many tokens a step's code is without what decides nothing there, and equal at each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.kernels.base import recording
from llmir.backends.step.functions import MOST, StepFunction
from llmir.backends.tape import numpy, python
from llmir.backends.tape.outline import Outline, inline_calls, prune
from llmir.backends.tape.outline import blocks as cover
from llmir.backends.tape.pruning import BOUNDS, Choices, Range
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS
from llmir.ir.sizes.binding import Binding

from .test_tape import draw_function

TOKENS = np.arange(1.0, MOST + 1)


def test_every_function_has_bounds() -> None:
    assert set(python.TEXT) == set(BOUNDS)


@pytest.mark.parametrize("most", [1, 2, 31, 32, 33, 100, 1000, MOST])
def test_blocks_have_each_whole_number_once(most: int) -> None:
    found = cover(most)
    assert found.low[0] == 1
    assert found.high[-1] == most
    assert (found.low[1:] == found.high[:-1] + 1).all()


ENDS = st.tuples(st.floats(-1e3, 1e3), st.floats(0, 100) | st.just(0.0))


@given(st.data(), ENDS, ENDS)
def test_what_is_bounded_lies_within(data: st.DataObject, x: Any, y: Any) -> None:
    tape = Tape(SCALARS)
    symbols = [tape.symbol(name) for name in "xy"]
    output = draw_function(data.draw, tape.namespace, list(symbols))  # type: ignore[arg-type]
    function = Function.of(tape, "xy", [output])
    ends = [(np.array(low), np.array(low + wide)) for low, wide in (x, y)]
    (number,) = function.outputs
    inputs = {s.number: Range.of(*pair) for s, pair in zip(symbols, ends, strict=True)}
    bound = Choices(function).ranges(inputs)[number]
    shares = np.linspace(0, 1, 7)
    points = [np.minimum(low + shares * (high - low), high) for low, high in ends]
    (values,) = numpy.compiled(function)(points[0][:, None], points[1][None])
    assert not (values < bound.low).any()
    assert not (values > bound.high).any()
    assert not bound.positive or not (values < 0).any()


@pytest.mark.parametrize(
    ("function", "operands", "low", "high"),
    [
        ("divide", ((1, 2), (-1, 1)), -np.inf, np.inf),
        ("divide", ((1, 2), (-4, -2)), -1, -0.25),
        ("multiply", ((-2, 3), (-5, 7)), -15, 21),
        ("absolute", ((-3, 2),), 0, 3),
        ("power", ((0.5, 0.5), (1, 3)), 0.125, 0.5),
        ("less", ((1, 2), (2, 3)), 0, 1),
        ("less_equal", ((1, 2), (2, 3)), 1, 1),
        ("equal", ((1, 1), (1, 1)), 1, 1),
        ("not_equal", ((1, 2), (3, 4)), 1, 1),
        ("logical_xor", ((1, 1), (0, 1)), 0, 1),
        ("logical_xor", ((1, 1), (1, 1)), 0, 0),
        ("where", ((0, 1), (1, 2), (7, 8)), 1, 8),
        ("where", ((1, 1), (1, 2), (7, 8)), 1, 2),
        ("ceildiv", ((7, 8), (4, 4)), 2, 2),
        ("floor_divide", ((7, 8), (4, 4)), 1, 2),
    ],
)
def test_bounds_are_as_close_as_by_hand(function: str, operands: Any, low: float, high: float) -> None:
    with np.errstate(all="ignore"):
        found = BOUNDS[function](*(Range.of(*map(np.asarray, ends)) for ends in operands))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-14, abs=0)


@pytest.mark.slow
@given(st.data(), st.integers(2, 300))
def test_what_is_left_out_decides_nothing(data: st.DataObject, most: int) -> None:
    """Of any arithmetic that is called: to the last bit at all whole numbers up to the most."""
    callee = Tape(SCALARS)
    symbols = [callee.symbol(name) for name in "nk"]
    output = draw_function(data.draw, callee.namespace, list(symbols))  # type: ignore[arg-type]
    function = Function.of(callee, "nk", [output])
    tape = Outline(SCALARS)
    size, constants = tape.symbol("n"), data.draw(st.lists(st.integers(1, 500), min_size=2, max_size=3))
    calls = [tape.call(function, size * 2, k) for k in constants]
    late = tape.symbol("c") * tape.namespace.maximum(calls[0], calls[1])
    outline = Function.of(tape, "nc", [*calls, late])
    found, every = prune(outline, ["n"], most), inline_calls(outline)
    assert len(found.function.live) <= len(every.live)
    short, full = python.compiled(found.function), python.compiled(every)
    for count in range(1, most + 1):
        assert np.array_equal(short(count, 2.0), full(count, 2.0), equal_nan=True)


def test_of_variants_those_stay_that_are_once_the_least() -> None:
    """By hand: the least of lines through n = 10, 100 and 1000, of which one lies above; beyond, fewer."""
    tape = Tape(SCALARS)
    n, xp = tape.symbol("n"), tape.namespace
    lines = [5000 + n, 3000 + 3 * n, 10 * n, 9000 + 2 * n]
    low = xp.minimum(xp.minimum(xp.minimum(lines[0], lines[1]), lines[2]), lines[3])
    function = Function.of(tape, "n", [xp.maximum(low, 4)])
    outline = Outline(SCALARS)
    asked = Function.of(outline, "n", [outline.call(function, outline.symbol("n"))])
    for most, minima, maxima in ((10_000, 2, 0), (900, 1, 0), (400, 0, 0)):
        found = prune(asked, ["n"], most).function
        assert (found.count("minimum"), found.count("maximum")) == (minima, maxima)


@pytest.fixture(scope="module", params=["llama3.1-8b", "Qwen3-30B-A3B"])
def plan(request: pytest.FixtureRequest) -> Any:
    program = llmir.run(llmir.load(request.param), llmir.pipeline_of())
    return llmir.analyze(
        program, "h100-sxm", batch=8, new=64, estimation=llmir.Estimation(engine="vllm")
    ).plan


@pytest.mark.slow
@pytest.mark.parametrize("new", [1, None])
def test_a_step_is_equal_at_all_tokens_of_the_range(plan: Any, new: int | None) -> None:
    """Both codes at 1 to 65,536 tokens; the short one has less than two thirds of the operations.

    To the last bit of single points; numpy's cube root of an array is not always that of a constant.
    """
    code = StepFunction(lambda at: (plan.timing(at, plan.busy(at)).step,), new)
    functions = code.short.function, code.whole.function
    assert 3 * len(functions[0].live) < 2 * len(functions[1].live)
    short, full = map(numpy.compiled, functions)
    for batch, each in ((TOKENS, 1.0), (1.0, TOKENS)) if new is None else ((TOKENS, 1.0),):
        assert short(batch, each, 4096.0)[0] == pytest.approx(full(batch, each, 4096.0)[0], rel=1e-14, abs=0)
    short, full = map(python.compiled, functions)
    for tokens in (*range(1, 1100), *range(1100, MOST, 61), MOST):
        assert short(tokens, 1, 4096) == full(tokens, 1, 4096)


def test_beyond_the_range_prices_are_those_of_all_variants(plan: Any) -> None:
    def figures(at: Binding) -> tuple[Any, ...]:
        return (plan.timing(at, plan.busy(at)).step,)

    code, always = StepFunction(figures, after=0), StepFunction(figures, 1, after=0)
    for step in ((1, MOST, 0), (1, MOST + 1, 0), (8, MOST, 77), (MOST * 4, 2, 9)):
        expected = figures(Binding(**dict(zip("BTC", step, strict=True))))
        assert code.point(*step) == code.point(*step) == expected
    batch = np.array([1.0, 2 * MOST])
    assert always.grid(batch, 1, 100)[0] == pytest.approx(
        figures(Binding(B=batch, T=1, C=100))[0], rel=1e-12, abs=0
    )


def test_a_kernel_is_recorded_once_for_all_programs() -> None:
    def code(name: str, passes: str) -> StepFunction:
        program = llmir.run(llmir.run(llmir.load(name), llmir.pipeline_of()), passes)
        plan = llmir.analyze(program, "h200", batch=8).plan
        return StepFunction(lambda at: (plan.timing(at, plan.busy(at)).step,), 1)

    code("llama3.1-8b", "shard{tp=2}")
    before = recording.cache_info().misses
    code("llama3.1-70b", "shard{tp=2}")
    assert recording.cache_info().misses == before
