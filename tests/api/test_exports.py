"""The names that `llmir` and `llmir.ir` export: each resolves, and imports only what its module does."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import llmir
import llmir.ir

PACKAGES = [llmir, llmir.ir]


def run_python(code: str) -> str:
    """The output of some code in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_exported_name_is_that_of_its_module(package: ModuleType) -> None:
    assert {*package.__all__} - {"__version__"} == {*package._LAZY} == {*dir(package)} - {"__version__"}
    run_python(f"""
from importlib import import_module
import {package.__name__} as package
for name, module in package._LAZY.items():
    defined = getattr(import_module(f"{{package.__name__}}.{{module}}"), name)
    assert getattr(package, name) is defined, name
""")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_type_checkers_see_the_names_that_python_finds(package: ModuleType) -> None:
    name, path = package.__name__, package.__file__
    blocks = [n for n in ast.parse(Path(path).read_text("utf-8")).body if isinstance(n, ast.If)]
    imports = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    seen = {alias.name: str(n.module).removeprefix(f"{name}.") for n in imports for alias in n.names}
    assert seen == package._LAZY


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'llmir\.ir' has no attribute 'Nothing'"):
        getattr(llmir.ir, "Nothing")  # noqa: B009 (a checker knows that there is none)


def test_the_package_alone_imports_no_module_of_the_ir() -> None:
    code = "import sys, llmir.ir; print(*(m for m in sys.modules if m.startswith('llmir.ir.')))"
    assert run_python(code).split() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Dim", "DType", "Tensor", "Op", "Program", "Builder", "Pass", "Rule"])
def test_a_name_imports_what_its_module_imports(name: str) -> None:
    module = f"llmir.ir.{llmir.ir._LAZY[name]}"
    shown = "print(*sorted(m for m in sys.modules if m.startswith('llmir.')))"
    lazy = run_python(f"import sys, llmir.ir; llmir.ir.{name}; {shown}")
    assert lazy == run_python(f"import sys, {module}; {shown}")


def test_ops_and_passes_are_the_registries_of_their_modules() -> None:
    assert llmir.ir.OPS is import_module("llmir.ir.core.op").OPS
    assert llmir.ir.PASSES["dce"].__name__ == "DeadCode"
