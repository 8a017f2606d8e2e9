"""The script of `make mutants`: what it changes, and that the list of equivalent mutants is of real ones."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script, which finds the other by its side."""
    spec = spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec and spec.loader
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        found = sys.modules["mutants"] = module_from_spec(spec)
        spec.loader.exec_module(found)
        yield found


def test_each_kind_of_change_is_made(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(
        '"""Doc 1."""\ndef f(a: int = 1, b=True):\n    if a < 2 and not b:\n'
        '        raise ValueError(f"{a + 1}")\n'
        "    return [x for x in a if x]\n"
    )
    found = [m.new.strip() for m in script.mutants(file, tmp_path)]
    assert found == [
        "def f(a: int = (2), b=True):",
        "def f(a: int = 1, b=(False)):",
        "if (not (a < 2 and (not b))):",
        "if (a < 2 or not b):",
        "if (not b):",
        "if (a < 2):",
        "if (a <= 2) and not b:",
        "if (a >= 2) and not b:",
        "if a < (3) and not b:",
        "if a < 2 and (b):",
        "pass",
        "return None",
        "return ([x for x in a])",
    ]


def test_a_change_of_a_script_leaves_its_strings_and_comments(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "part.js"
    file.write_text('const f = (a) => a >= 1 && a.b !== "x >= 1"; // a && b\n', encoding="utf-8")
    assert [m.new for m in script.mutants(file, tmp_path)] == [
        'const f = (a) => a > 1 && a.b !== "x >= 1"; // a && b',
        'const f = (a) => a >= (1 + 1) && a.b !== "x >= 1"; // a && b',
        'const f = (a) => a >= 1 || a.b !== "x >= 1"; // a && b',
        'const f = (a) => a >= 1 && a.b === "x >= 1"; // a && b',
    ]


def test_a_mutant_has_the_tests_that_run_its_line(script: ModuleType, tmp_path: Path) -> None:
    """Quick ones first, no more than there is time for; else those that run something of its file."""
    file = tmp_path / "part.py"
    file.write_text("x = 1\n\n\ndef f(a):\n    return a + 1\n", encoding="utf-8")
    module, *_, inside = script.mutants(file, tmp_path)
    runs = {
        "slow": script.Run(2.0, frozenset({("part.py", 5)}), frozenset({"part.py"})),
        "long": script.Run(script.ENOUGH, frozenset({("part.py", 5)}), frozenset({"part.py"})),
        "quick": script.Run(1.0, frozenset({("part.py", 4)}), frozenset({"part.py"})),
        "other": script.Run(0.1, frozenset(), frozenset({"other.py"})),
    }
    assert script.tests_of(inside, runs) == ["slow"]
    assert script.tests_of(module, runs) == ["quick", "slow"]
    assert script.tests_of(module, {"other": runs["other"]}) == []


def test_an_attribute_of_a_class_has_the_tests_that_are_named_after_it(
    script: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "part.py"
    file.write_text('class ReluMul:\n    opcode = "relu_mul"\n    flops = 2\n', encoding="utf-8")
    (flops,) = script.mutants(file, tmp_path)
    tests = ["a.py::test_work[relu_mul]", "a.py::test_relu_mul_is_fast", "a.py::test_work[relu]"]
    runs = {test: script.Run(0.1, frozenset(), frozenset()) for test in tests}
    assert script.tests_of(flops, runs) == tests[:2]


def test_marks_say_which_lines_of_functions_run(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the code without marks runs, and the results are the same."""
    text = (
        'x = 1\n\n\ndef f(a):\n    """Doc."""\n    if a:\n        b = 2\n    elif x:\n        b = 3\n'
        "    else:\n        b = 4\n    for i in (\n        a,\n        b,\n    ):\n        b += i\n"
        "    return b\n"
    )
    ran: list[int] = []
    monkeypatch.setattr("builtins._a_line_of_a_mutant_runs", lambda _, line: ran.append(line), raising=False)
    tree = script._Marks("part.py", frozenset(range(1, 20))).visit(ast.parse(text))
    space: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), "part.py", "exec"), space)
    assert space["f"](1) == 5
    assert ran == [0, 6, 7, 12, 13, 14, 15, 16, 16, 17]
    ran.clear()
    assert space["f"](0) == 6
    assert ran == [0, 6, 8, 9, 12, 13, 14, 15, 16, 16, 17]
    assert space["f"].__doc__ == "Doc." and space["f"].__code__.co_firstlineno == 4


def test_only_functions_that_a_mutant_changes_are_changed_in_memory(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mutated_part.py"
    file.write_text("x = 1\n\n\ndef f(a):\n    return a + x\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = import_module("mutated_part")
    module, *inside = script.mutants(file, tmp_path)
    assert module.line == 1
    assert not script.changed_functions(module, tmp_path)
    minus = next(m for m in inside if "a - x" in m.new)
    ((function, code),) = script.changed_functions(minus, tmp_path)
    assert function is part.f
    before, function.__code__ = function.__code__, code
    assert part.f(5) == 4
    function.__code__ = before


def test_who_tests_nothing_fails(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An area without mutants, and one without tests."""
    monkeypatch.setattr(script, "copies", lambda *_: [tmp_path])
    monkeypatch.setattr(script, "traced", lambda area, chosen, folder: ({}, {}, list(chosen)))
    for files in ((), ("passes/route.py",)):
        share, line = script.judge(script.Area("none", files, ()), 3, 0, 1, tmp_path)
        assert share == 0
        assert "0 of" in line


def test_each_area_has_modules_and_tests(script: ModuleType) -> None:
    assert [area.name for area in script.AREAS] == [
        *("ir", "ops", "passes", "frontends", "step", "simulate", "search", "page")
    ]
    for area in script.AREAS:
        assert len(script.files_of(area)) > 5
        assert all((ROOT / test).exists() for test in area.tests)


@pytest.mark.slow
def test_what_is_listed_as_equivalent_is_a_mutant_with_a_reason(script: ModuleType) -> None:
    files = {file for area in script.AREAS for file in script.files_of(area)}
    made = {m.key for file in files for m in script.mutants(file, ROOT)}
    listed = script.equivalent()
    assert listed
    assert not set(listed) - made
    assert all(len(why) > 20 for why in listed.values())
