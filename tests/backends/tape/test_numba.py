"""Loops that numba compiles are the arithmetic of the tape, at each point of a grid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.step.functions import GRID, StepFunction
from llmir.backends.tape import numba as loops
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import InputError
from tests.backends.step.code_cases import cases, looped, plans

from .test_tape import draw_function

SOME = 3  # programs; `python -m tests.backends.step.code_cases` takes more


@pytest.fixture
def numba(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("LLMIR_CACHE", str(tmp_path))
    return pytest.importorskip("numba")


def test_each_function_has_a_text() -> None:
    assert set(loops.TEXT) == {*python.TEXT, *loops.EXACT.values()}


@given(st.data(), st.booleans())
def test_a_loop_is_the_function_at_each_point(data: st.DataObject, truth: bool) -> None:
    """Run as the Python that it is: inputs of rows and of columns, of which each may be a truth."""
    tape = Tape(SCALARS)
    x, y = tape.symbol("x"), tape.symbol("y")
    output = draw_function(data.draw, tape.namespace, [x, y])  # type: ignore[arg-type]
    late = tape.namespace.where(tape.symbol("k"), output, output + x)
    function = Function.of(tape, "xyk", [output, late, x < y])
    numbers = st.floats(-50, 50) | st.integers(-3, 3)
    rows, columns = (np.array(data.draw(st.lists(numbers, min_size=1, max_size=3)), float) for _ in "xy")
    said = loops.loop(function, {"x", "k"})
    assert said.rows == (True, False, True)
    names: dict[str, Any] = {"np": np}
    exec(said.source, names)
    results = np.empty((3, len(rows), len(columns)))
    table = np.array([rows, np.full(len(rows), float(truth))])
    with np.errstate(all="ignore"):
        names["run"](table, columns[None], np.array(said.constants), results)
    expected = numpy.compiled(function)(rows[:, None], columns, truth)
    for found, value in zip(results, expected, strict=True):
        assert found == pytest.approx(value.astype(float), rel=1e-14, abs=0, nan_ok=True)


def test_constants_are_given() -> None:
    """Two models of a family, on two devices: one text, with other numbers."""
    found = []
    for model, device in (("llama3.1-8b", "h100-sxm"), ("llama3.1-70b", "h200")):
        step = llmir.compile(llmir.run(llmir.load(model), llmir.pipeline_of()), device)
        step(8, 1, 0)
        (code,) = step._codes.values()
        depends, late = code.short.function.depending("C"), code.short["last"]
        found.append(loops.loop(late, [name for n, name in late.inputs.items() if n not in depends]))
    assert found[0].source == found[1].source
    assert found[0].constants != found[1].constants


@pytest.mark.usefixtures("numba")
def test_grids_by_numba_are_what_prices_are() -> None:
    compared = 0
    for case in cases():
        for new, plan in plans(case).items():
            off, memory = looped(plan, new)
            assert off < 1e-12, case
            assert memory == 0, case
            compared += 1
        if compared >= SOME:
            break


def test_rows_and_columns_may_lie_along_any_axes(numba: Any) -> None:
    tape = Tape(SCALARS)
    k, c, d = (tape.symbol(name) for name in "kcd")
    function = Function.of(tape, "kcd", [k * c / 3 - d, (k < c) & (d < 2), k + 1])
    run, expected = loops.compiled(function, {"k"}), numpy.compiled(function)
    column = np.arange(5.0)
    for given_ in (
        (np.arange(3.0)[:, None], column, 7),
        (np.arange(3.0), column[:, None], np.ones((5, 1))),
        (np.arange(6.0).reshape(2, 1, 3), column[:, None], 1.5),
        (2, column, np.ones((4, 1))),
        (True, 3, 4),
        (np.arange(5.0), column, 1),  # an axis that both have
    ):
        found = run(*given_)
        for one, other in zip(found, expected(*given_), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert (one == other).all()


def test_what_is_compiled_is_kept(numba: Any, tmp_path: Path) -> None:
    tape = Tape(SCALARS)
    function = Function.of(tape, "c", [tape.symbol("c") * 5 + 0.125])
    for misses in (1, 0):
        loops._machine.cache_clear()
        assert loops.compiled(function)(np.arange(3.0))[0].tolist() == [0.125, 5.125, 10.125]
        machine: Any = loops._machine(loops.loop(function, ()).source)
        assert sum(machine.stats.cache_misses.values()) == misses
    assert [path.suffix for path in tmp_path.iterdir() if path.is_file()] == [".py"]


def test_numba_is_imported_for_large_grids_alone(numba: Any) -> None:
    source = f"""
import sys, numpy as np, llmir
step = llmir.compile(llmir.run(llmir.load("gpt2"), llmir.pipeline_of()), "h100-sxm", by="numba")
for batch in (100, 1000):
    step(np.arange(1, batch + 1)[:, None], 1, np.arange({GRID} // 1000)[None])
    print("numba" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_where_numba_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "find_spec", lambda _: None)
    program = llmir.run(llmir.load("gpt2"), llmir.pipeline_of())
    with pytest.raises(InputError, match=r"by: numba is not installed: pip install 'llmir\[numba\]'"):
        llmir.compile(program, "h100-sxm", by="numba")
    with pytest.raises(InputError, match="by"):
        llmir.compile(program, "h100-sxm", by="fortran")


def test_code_by_numba_is_numpys_below_large_grids() -> None:
    code = StepFunction(lambda at: (at.symbols["B"] * at.symbols["C"],), by="numba")
    assert code.grid(np.arange(3)[:, None], 1, np.arange(2))[0].tolist() == [[0, 0], [0, 1], [0, 2]]
    assert {printer for _, printer in code.whole._compiled} == {"numpy"}
