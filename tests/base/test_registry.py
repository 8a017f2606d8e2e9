"""Names are found in a process that has imported only the module of their registry."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.project.test_structure import SOURCES, module_of

# Looks up the names of each module in a forked process that has imported only the module of the registry.
LOOK_UP = """
import importlib, json, os, sys
module, variable, *groups = sys.argv[1:]
kind = getattr(importlib.import_module(module), variable)
missing = []
for names in map(json.loads, groups):
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps([n for n in names if n not in kind or kind[n] is None]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        missing += json.loads(answer.read() or json.dumps(names))
    os.waitpid(child, 0)
print(json.dumps(missing))
"""
ALL = """
import importlib, json, sys
kind = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
groups = {}
for name in kind:
    groups.setdefault(kind._makers.get(name, (name,))[0], []).append(name)
print(json.dumps(list(map(json.dumps, groups.values()))))
"""


def registries() -> list[tuple[str, str]]:
    """Module and variable of each registry in the source."""
    found = []
    for path in SOURCES:
        for node in ast.parse(path.read_text("utf-8")).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=variable), value=ast.Call(func=ast.Name(id="Kind"))):
                    found.append((f"llmir.{module_of(path)}", variable))
    return found


def python(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    answer: list[str] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return answer


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process for each name needs os.fork")
@pytest.mark.parametrize(("module", "variable"), registries())
def test_every_name_is_found_in_a_fresh_process(module: str, variable: str) -> None:
    groups = python(ALL, module, variable)
    assert groups
    assert python(LOOK_UP, module, variable, *groups) == []
