"""Run the code cells of a notebook, and write their outputs into it.

    python scripts/run_notebook.py notebooks/tutorial.ipynb

A notebook is JSON, so this needs no Jupyter. `tests/project/test_notebook.py` compares the outputs in the
file with those of a new run.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a code cell.

    Args:
        source: The code of the cell.
        names: The variables of the notebook, which the cell reads and changes.

    Returns:
        The outputs as a notebook stores them: printed text, then the value of the last expression.
    """
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        kind = {"execution_count": None, "metadata": {}, "output_type": "execute_result"}
        outputs.append({"data": data, **kind})
    return outputs


def lines(text: str) -> list[str]:
    """The lines of a text as a notebook stores them, with their ends."""
    return text.splitlines(keepends=True)


def run_all(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run all code cells of a notebook in order, and return the outputs of each."""
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [run("".join(cell["source"]), names) for cell in cells]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        notebook = json.loads(path.read_text("utf-8"))
        outputs = iter(run_all(notebook))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = next(outputs), None
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
