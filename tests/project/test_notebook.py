"""The notebooks run, and their outputs are those in the file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("run_notebook", ROOT / "scripts" / "run_notebook.py")
assert SPEC is not None and SPEC.loader is not None
run_notebook = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_notebook)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.name)
def test_the_outputs_of_a_notebook_are_those_of_a_run(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    committed = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(committed) > 3 and all(committed)
    assert run_notebook.run_all(notebook) == committed, f"python scripts/run_notebook.py {path}"


def test_a_cell_has_its_printed_text_and_the_value_of_its_last_line() -> None:
    names: dict[str, object] = {}
    assert run_notebook.run("x = 2", names) == []
    printed, value = run_notebook.run("print('a\\nb')\nx + 1", names)
    assert printed["text"] == ["a\n", "b\n"]
    assert value["data"] == {"text/plain": ["3"]}
