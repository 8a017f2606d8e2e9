"""Code is what prices are: to 1e-12 in every op's time, to the byte in memory, over programs of all kinds."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.step import evaluate
from llmir.backends.step import functions as module
from llmir.backends.step.evaluate import OpGroup
from llmir.backends.step.functions import JitFunction, StepFunction
from llmir.backends.tape.record import Function, Tape, tape_of
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import InputError
from llmir.ir.sizes.binding import Binding
from tests.flat import records

from .code_cases import cases, differences, plans

SOME = 12  # programs; `python -m tests.backends.step.code_cases` takes as many as it is told


def some() -> list[Any]:
    known = ((case, plans(case)) for case in cases())
    return list(itertools.islice(((case, plan) for case, plan in known if plan), SOME))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_code_is_what_prices_are(part: int) -> None:
    for case, known in some()[part::4]:
        for new, plan in known.items():
            op, step, memory = differences(plan, new)
            assert op < 1e-12, case
            assert step < 1e-12, case
            assert memory == 0, case


@pytest.fixture(scope="module")
def program() -> llmir.Program:
    return llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of())


def test_compiled_steps_are_those_of_reports(program: llmir.Program) -> None:
    step = llmir.compile(program, "h100-sxm", estimation=llmir.Estimation(engine="vllm"))
    for at in ((1, 1, 0), (8, 1, 1000), (8, 1, 1001), (3, 65, 0), (8, 1, 1000)):
        report = llmir.analyze(
            program,
            "h100-sxm",
            **records(
                llmir.analyze, engine="vllm", **dict(zip(("batch", "new", "context"), at, strict=True))
            ),
        )
        assert step(*at) == (report.time_s, report.peak_memory_bytes)
    batch, context = np.arange(1, 6)[:, None], np.array([[0, 7, 4096]])
    report = llmir.analyze(
        program, "h100-sxm", batch=batch, context=context, estimation=llmir.Estimation(engine="vllm")
    )
    found = step(batch, 1, context)
    assert found.time_s == pytest.approx(report.time_s, rel=1e-12, abs=0)
    assert (found.peak_memory_bytes == report.peak_memory_bytes).all()


@pytest.mark.parametrize("new", [1, 40])
def test_rows_are_the_same_before_and_after_they_are_code(
    program: llmir.Program, monkeypatch: pytest.MonkeyPatch, new: int
) -> None:
    at: dict[str, Any] = {"batch": 3, "new": new, "context": 1000}
    step = llmir.analyze(program, "h20", **records(llmir.analyze, **at))
    rows, error = repr(step.ops), step.error
    monkeypatch.setattr(module, "OFTEN", 0)
    asked: list[int] = []
    monkeypatch.setattr(type(step.plan), "figures", lambda *_: asked.append(1))
    again = llmir.analyze(program, "h20", **records(llmir.analyze, **at))
    monkeypatch.undo()
    assert (repr(again.ops), again.error, asked) == (rows, error, [])


@pytest.mark.slow
@pytest.mark.parametrize("device", ["h100-sxm", "h20", "mi300x"])
def test_many_points_of_several_lengths_are_code_too(
    program: llmir.Program, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    random = np.random.default_rng(3)
    ranges = {"batch": (1, 40), "new": (1, 12), "context": (0, 5000)}
    flat = {name: random.integers(*ends, 300) for name, ends in ranges.items()}
    grid = {"batch": np.arange(1, 21)[:, None], "new": 64, "context": np.arange(15)[None] * 99}
    staged = llmir.run(program, "stages{pp=2}")
    for at in (flat, grid):
        known = llmir.analyze(staged, device, **records(llmir.analyze, **at))
        expected, alone = known.time_s, known.overhead_s
        monkeypatch.setattr(evaluate, "MANY", 10)
        monkeypatch.setattr(OpGroup, "sums", counted := Counted(OpGroup.sums))
        found = llmir.analyze(staged, device, **records(llmir.analyze, **at))
        assert found.time_s == pytest.approx(expected, rel=1e-12, abs=0)
        assert found.overhead_s == pytest.approx(alone, rel=1e-11, abs=1e-15)
        assert counted.shapes <= {()}  # symbols alone, if those were not met before
        monkeypatch.undo()


class Counted:
    """A method, and the shapes of the bindings that it was called with."""

    def __init__(self, method: Any) -> None:
        self.method, self.shapes = method, set[tuple[int, ...]]()

    def __get__(self, group: Any, kind: Any = None) -> Any:
        def call(how: str, at: Binding) -> Any:
            self.shapes.add(at.shape)
            return self.method(group, how, at)

        return call


def test_stages_and_micro_batches_are_those_of_reports(program: llmir.Program) -> None:
    staged = llmir.run(program, "stages{pp=2, micro_batches=4}")
    step = llmir.compile(staged, "h100-sxm")
    for context in (100, 101):
        report = llmir.analyze(staged, "h100-sxm", batch=8, context=context)
        assert step(8, 1, context) == (report.time_s, report.peak_memory_bytes)
    with pytest.raises(InputError, match="expected a multiple of the 4 micro-batches, got 6"):
        step(6, 1, 100)


def test_what_is_no_step_is_refused(program: llmir.Program) -> None:
    step = llmir.compile(program, "h100-sxm")
    step()
    for bad in ({"batch": 0}, {"new": 0}, {"context": -1}, {"batch": 1.5}, {"batch": "8"}, {"batch": True}):
        with pytest.raises(InputError, match=next(iter(bad))):
            step(**bad)  # type: ignore[arg-type]
    for new, context in (([1, 2, 3], 0), (1, [1, 2, 3])):
        with pytest.raises(InputError, match="do not broadcast together"):
            step([1, 2], new, context)

    class Flat:
        def price(self, row: Any) -> Any:
            return lambda at: 1e-6

    with pytest.raises(InputError, match="cost: Flat"):
        llmir.compile(program, "h100-sxm", estimation=llmir.Estimation(cost=Flat()))
    with pytest.raises(InputError, match="printer"):
        step.text("cobol")


def test_code_is_made_anew_in_another_process(program: llmir.Program) -> None:
    step = llmir.compile(program, "h100-sxm", estimation=llmir.Estimation(engine="sglang"))
    again = pickle.loads(pickle.dumps(step))
    assert again(4, 1, 100) == step(4, 1, 100)
    assert repr(again) == repr(step) == f"<StepCode {program.name} on H100-SXM>"


def test_text_is_a_program_by_itself(program: llmir.Program) -> None:
    """What is printed needs `math` alone, and gives the figures."""
    import math

    step = llmir.compile(program, "h100-sxm")
    names: dict[str, Any] = {"cbrt": lambda x: x ** (1 / 3), **vars(math)}
    exec(step.text(), names)
    assert names["late"](1000, *names["early"](8, 1)) == pytest.approx(step(8, 1, 1000), rel=1e-15, abs=0)


@pytest.mark.slow
def test_points_share_what_their_batches_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs of B and T are computed once, wherever they lie; many as they are."""
    code = StepFunction(
        lambda at: (at.xp.sqrt(at.symbols["B"] * 3 + at.symbols["T"] * 1.0) * at.symbols["C"],)
    )
    asked: list[tuple[str, int]] = []
    code.after = 1 << 30
    compiled = code.whole.run

    def counted(part: str, printer: str = "python") -> Any:
        run = compiled(part, printer)

        def over(*inputs: Any) -> Any:
            found = run(*inputs)
            asked.append((part, max(map(np.size, found), default=0)))
            return found

        return over

    monkeypatch.setattr(code.whole, "run", counted)
    random = np.random.default_rng(1)
    batch, new, context = random.integers(1, 9, 500), random.integers(1, 4, 500), random.integers(0, 99, 500)
    for given in (
        (batch, 2.0, context),
        (batch, new, context),
        (batch[:, None], 2, context[None]),
        (7, new, context),
        (7, 2, context),
        (np.arange(1.0, 501), new, context),
    ):
        b, t, c = (np.asarray(x, dtype=float) for x in given)
        (found,) = code.grid(*given)
        assert found == pytest.approx(np.sqrt(b * 3 + t) * c, rel=1e-14, abs=0)
    assert asked == [
        *(("early", 8), ("late", 500)),
        *(("early", 24), ("late", 500)),
        *(("of_new", 1), ("of_batch", 500), ("of_context", 500), ("last", 250_000)),
        *(("early", 3), ("late", 500)),
        *(("early", 1), ("late", 500)),
        ("whole", 500),
    ]


def test_pairs_that_no_float_tells_apart_are_left_as_they_are() -> None:
    batch, new = np.array([3e9] * 4), np.array([4e6 + 1, 4e6 + 2] * 2)
    code = StepFunction(lambda at: (at.symbols["B"] + at.symbols["T"] + 0 * at.symbols["C"],))
    assert code.grid(batch, new, np.zeros(4))[0].tolist() == (batch + new).tolist()


def test_figures_become_code_after_many_points_and_stay_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def figures(at: Binding) -> tuple[Any, ...]:
        calls.append(1)
        return (at.xp.cbrt(at.symbols["B"] / 3) + at.symbols["C"],)

    often = JitFunction(figures, StepFunction)
    monkeypatch.setattr(module, "OFTEN", 3)
    monkeypatch.setattr(module, "MANY", 100)
    found = [often(Binding(B=5, T=1, C=7)) for _ in range(9)]
    assert len(set(found)) == 1
    assert len(calls) == 4  # three points, and once on symbols
    columns = {"B": np.arange(1.0, 201), "T": 1, "C": 7}
    assert often(Binding(**columns))[0] == pytest.approx(np.cbrt(columns["B"] / 3) + 7, rel=1e-14, abs=0)
    assert len(calls) == 4


def test_after_more_points_code_is_short() -> None:
    """What decides nothing is looked for where many pairs of B and T are priced, and not before."""
    tape = Tape(SCALARS)
    size, xp = tape.symbol("n"), tape.namespace
    kernel = Function.of(tape, "n", [xp.minimum(size + 100, 2 * size + 7)])

    def figures(at: Binding) -> tuple[Any, ...]:
        return (tape_of(at.symbols.values()).call(kernel, at.symbols["B"]) + at.symbols["C"],)  # type: ignore[union-attr]

    code = StepFunction(figures, 1, after=4)
    made = []
    for size in (1, 92, 93, 94, 94, 10, 20_000, 100_000):
        assert code.point(size, 1, 3) == (min(size + 100, 2 * size + 7) + 3,)
        made.append("short" in vars(code))
    assert made == [False] * 5 + [True] * 3
    assert "whole" not in vars(code)


def test_what_does_not_read_contexts_is_there_at_every_point() -> None:
    code = StepFunction(
        lambda at: (at.symbols["B"] * 3 + at.xp.ceil(at.symbols["T"] / 2), at.symbols["C"] * 2)
    )
    batch, context = np.array([1, 2, 1, 2, 1, 1.0]), np.arange(6.0)
    for given in ((batch, 1, context), (batch, np.ones(6), context), (batch[:, None], 1, context[None])):
        small, late = code.grid(*given)
        assert np.array_equal(small, np.broadcast_to(given[0] * 3 + 1, small.shape))
        assert np.array_equal(late, np.broadcast_to(given[2] * 2, late.shape))
        assert small.shape == late.shape


def test_a_number_that_contexts_decide_is_not_bounded_as_a_count() -> None:
    """What is 0 or 1 by the context, and is asked for later, as the kernel that holds is for its error."""

    def figures(at: Binding) -> tuple[Any, ...]:
        batch, context = at.symbols["B"], at.symbols["C"]
        first = at.xp.where(context < batch, 1, 0)
        return (at.xp.where(first == 0, 10.0, 20.0),)

    code = StepFunction(figures, after=0)
    assert [code.point(8, 1, context)[0] for context in (0, 7, 8, 9)] == [20, 20, 10, 10]
