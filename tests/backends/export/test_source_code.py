"""Modules that `emit` writes say what reports say: in JavaScript, by node, and in Python."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.export.source_code import JS, PY
from llmir.backends.request.portable import STEP
from llmir.backends.tape.languages import BIGINT, JAVASCRIPT, PYTHON, integer_outputs
from llmir.backends.tape.record import Function, Tape
from llmir.backends.work.rows import AMOUNTS
from llmir.base.arguments import MOST
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import InputError
from tests.backends.step.code_cases import STEPS, cases
from tests.commands import Run
from tests.flat import records

from . import emit_cases

SOME = 8  # programs; `python -m tests.backends.export.emit_cases` takes as many as it is told
node = pytest.mark.skipif(not emit_cases.available(), reason="needs node")


@pytest.fixture(scope="module")
def program() -> llmir.Program:
    return llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of())


@pytest.mark.slow
@node
@pytest.mark.parametrize("part", range(4))
def test_javascript_is_what_reports_are(part: int) -> None:
    found = ((case, emit_cases.compared(case, STEPS[::3])) for case in cases())
    some = list(itertools.islice(((case, off) for case, off in found if off is not None), SOME))
    for case, (relative, exact) in some[part::4]:
        assert relative < 1e-12, case
        assert exact == 0, case


@node
def test_what_verifies_drafts_decodes_in_javascript_too() -> None:
    model = llmir.run(llmir.load("deepseek-v3"), llmir.pipeline_of("vllm"))
    assert model.splits
    points = [(4, 3, 1000), (4, 3, 0), (4, 1, 10), (2, 500, 0)]
    source = llmir.emit(model, "h100-sxm", estimation=llmir.Estimation(cost="ideal"))
    assert emit_cases.off(source, model, points, hw="h100-sxm", cost="ideal") == (0, 0)


def test_python_is_what_reports_are(program: llmir.Program, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        llmir.emit(program, "h100-sxm", to="py", estimation=llmir.Estimation(engine="vllm"))
    )
    ask = "import json, model; print(json.dumps([[model.price(*at), model.ops(*at)] for at in %r]))"
    points = [(1, 1, 0), (8, 1, 1000), (3, 65, 0), (2, 1000, 4095)]
    done = subprocess.run(
        [sys.executable, "-c", ask % points], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for (batch, new, context), (step, ops) in zip(points, json.loads(done.stdout), strict=True):
        at = {"batch": batch, "new": new, "context": context}
        report = llmir.analyze(program, "h100-sxm", **records(llmir.analyze, engine="vllm", **at))
        assert step["time_s"] == pytest.approx(report.time_s, rel=1e-12, abs=0)
        assert [step[name] for name in STEP[2:]] == [getattr(report, name) for name in STEP[2:]]
        for own, row in zip(ops, (row for row in report.ops if row.kind != "overhead"), strict=True):
            assert [own[name] for name in AMOUNTS] == [getattr(row, name) for name in AMOUNTS]
            assert own["time_s"] == pytest.approx(row.time_s, rel=1e-12, abs=0)
            assert (own["name"], own["bound"], own["error"]) == (row.name, row.bound, row.error)


@node
def test_bad_sizes_are_refused_where_they_are_asked(program: llmir.Program, tmp_path: Path) -> None:
    path = tmp_path / "model.mjs"
    staged = llmir.run(program, "stages{pp=2, micro_batches=2}")
    path.write_text(llmir.emit(staged, "h100-sxm"))
    says = "import('%s').then((m) => m.price(%s)).catch((error) => console.log(error.message))"
    for sizes, expected in {
        "0": f"batch: expected a whole number from 1 to {MOST}",
        "4, 1.5": "new: expected a whole number from 1",
        "4, 1, -1": "context: expected a whole number from 0",
        "3": "batch: expected a multiple of the 2 micro-batches, got 3",
    }.items():
        ask = ["node", "-e", says % (path, sizes)]
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(expected), (sizes, done)


def test_each_kernel_is_printed_once() -> None:
    source = llmir.emit(llmir.run(llmir.load("llama3.1-405b"), llmir.pipeline_of()), "h100-sxm")
    heads = [line for line in source.splitlines() if line.startswith("function k")]
    assert 0 < len(heads) == len(set(heads)) < 12
    assert len(source) < 60_000


@node
def test_whole_numbers_of_any_size_are_exact() -> None:
    tape = Tape(SCALARS)
    x, y = tape.symbol("x"), tape.symbol("new")
    xp = tape.namespace
    values = x * y + 2**60 + 1, xp.ceildiv(x, y), -x // y, xp.minimum(x, y), xp.where(x < y, 1, x), abs(-x)
    function = Function.of(tape, ("x", "new"), values)
    assert integer_outputs(function) == set(function.outputs)
    fractions = x / y, x * 1.0, xp.where(x / y < 0.5, x, y), xp.sqrt(x)
    assert not integer_outputs(Function.of(tape, ("x", "new"), fractions))
    source = BIGINT.text(function, "run")
    for pair in ((7, 3), (2**60 + 3, 2), (6, 3), (1, 10)):
        given = ", ".join(f"{n}n" for n in pair)
        ask = f"{JS.before}{source}console.log(run({given}).join(' '))"
        done = subprocess.run(["node", "-e", ask], capture_output=True, text=True, check=True)
        first, second = pair
        least, more = min(pair), 1 if first < second else first
        expected = first * second + 2**60 + 1, -(-first // second), -first // second, least, more, first
        assert tuple(map(int, done.stdout.split())) == expected


@node
def test_what_tapes_do_is_the_same_in_each_language() -> None:
    tape = Tape(SCALARS)
    x, y, xp = tape.symbol("x"), tape.symbol("y"), tape.namespace
    values: list[Any] = [x + y, x - y, x * y, x / y, abs(x) ** 1.5, x // y, -x, abs(x), xp.minimum(x, y)]
    values += [xp.maximum(x, y), xp.ceil(x), xp.floor(y), xp.sqrt(abs(x)), xp.cbrt(y), xp.hypot(x, y)]
    values += [xp.expm1(x), xp.ceildiv(x, y), xp.where((x < y) & (x != 1), x, y)]
    values += [xp.where((x <= y) | (x == y), 1.5, y), xp.where((x < 2) ^ (y < 2), x, -y)]
    function = Function.of(tape, ("x", "y"), values)
    for at in ((1.5, 2.25), (3.0, 1.0), (-2.5, 4.0), (1.0, 7.5)):
        names: dict[str, Any] = {}
        exec(PY.before + PYTHON.text(function, "run"), names)
        ask = (
            f"{JS.before}{JAVASCRIPT.text(function, 'run')}console.log(JSON.stringify(run({at[0]}, {at[1]})))"
        )
        done = subprocess.run(["node", "-e", ask], capture_output=True, text=True, check=True)
        assert np.allclose(json.loads(done.stdout), names["run"](*at), rtol=1e-13, atol=0)


def test_what_cannot_be_emitted_is_refused(program: llmir.Program) -> None:
    class Flat:
        def price(self, row: Any) -> Any:
            return lambda at: 1e-6

    with pytest.raises(InputError, match="to: expected js or py"):
        llmir.emit(program, "h100-sxm", to="c")
    with pytest.raises(InputError, match="Flat is a custom cost model"):
        llmir.emit(program, "h100-sxm", estimation=llmir.Estimation(cost=Flat()))


def test_the_command_writes_what_the_function_says(run: Run, tmp_path: Path) -> None:
    model = ["emit", "llama3.2-1b"]
    assert not run(*model, "-o", "model.mjs").code
    source = (tmp_path / "model.mjs").read_text()
    assert source.startswith("// Prices of Llama-3.2-1B on H100-SXM")
    assert run(*model).out == source
    for more, expected in (
        (("-o", "model.mjs", "--to", "py"), "the suffix means js, but --to is py"),
        (("-o", "model.c"), "suffix '.c' is unknown; allowed are .js, .mjs, .py"),
    ):
        found = run(*model, *more)
        assert (found.code, expected in found.err) == (2, True)
