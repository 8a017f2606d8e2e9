"""Each registered name is found in a process that has imported only the module of its registry."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.project.test_structure import SOURCES, module_of

# Looks up each name in a forked process that has imported only the module of the registry.
LOOK_UP = """
import importlib, json, os, sys
module, variable, *names = sys.argv[1:]
kind = getattr(importlib.import_module(module), variable)
missing = []
for name in names:
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps(name in kind and kind[name] is not None).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        missing += [] if answer.read() == "true" else [name]
    os.waitpid(child, 0)
print(json.dumps(missing))
"""
ALL = """
import importlib, json, sys
print(json.dumps(list(getattr(importlib.import_module(sys.argv[1]), sys.argv[2]))))
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
    names = python(ALL, module, variable)
    assert names
    assert python(LOOK_UP, module, variable, *names) == []
