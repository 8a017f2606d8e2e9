"""The names that `llmir` and `llmir.ir` export: each resolves, imports little, and is documented."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import llmir
import llmir.ir
from llmir.api.options import RECORDS

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


def exports() -> list[tuple[str, Any]]:
    """The full names of all exports, and the objects."""
    names = {f"{package.__name__}.{name}": package for package in PACKAGES for name in package.__all__}
    return [(full, getattr(package, full.rpartition(".")[2])) for full, package in names.items()]


def entries(docstring: str) -> set[str]:
    """The parameters that the section `Args:` of a docstring describes."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", docstring + "\n", re.MULTILINE)
    lines = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): \S", section[1] if section else "", re.MULTILINE)
    return {name.lstrip("*") for line in lines for name in line.split(", ")}


def gaps(full: str, thing: Any) -> set[str]:
    """The parts of an export that its docstring does not describe."""
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):  # a union of types
        return set()
    text = inspect.getdoc(thing) or ""
    missing = set() if text else {"docstring"}
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        missing |= signature.parameters.keys() - entries(text)
        missing |= {"Returns:"} if "Returns:" not in text and signature.return_annotation != "None" else set()
        missing |= (
            {"Raises:"} if "Raises:" not in text and full.count(".") == 1 else set()
        )  # llmir checks all
        missing |= {"an example"} if ">>>" not in text else set()
    elif inspect.isclass(thing):
        public = {name: getattr(thing, name) for name in vars(thing) if not name.startswith("_")}
        code = {name: each for name, each in public.items() if callable(each) or isinstance(each, property)}
        missing |= {name for name, each in code.items() if not inspect.getdoc(each)}
    return missing


def test_each_exported_function_documents_parameters_results_and_errors_with_an_example() -> None:
    found = {full: gaps(full, thing) for full, thing in exports() if not full.endswith("__version__")}
    assert {full: missing for full, missing in found.items() if missing} == {}
    assert gaps("llmir.f", lambda size: size) == {"docstring", "size", "Returns:", "Raises:", "an example"}


def test_each_record_documents_its_options() -> None:
    for record in RECORDS:
        assert entries(record.__doc__ or "") == {option.name for option in record.options}
