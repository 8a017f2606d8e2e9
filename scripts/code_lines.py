"""Code lines of folders and files: neither blank, nor comments, nor docstrings.

python scripts/code_lines.py backends/cost backends/silicon
"""

from __future__ import annotations

import ast
import sys
import tokenize
from pathlib import Path

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def count(text: str) -> int:
    """Lines of a file that hold code."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            said.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - said)


def main(folders: list[str]) -> None:
    """A line for each folder, and the sum."""
    counts = {}
    for name in folders:
        files = [Path(name)] if Path(name).is_file() else Path(name).rglob("*.py")
        counts[name] = sum(count(file.read_text()) for file in files)
    for name, lines in (*counts.items(), ("in all", sum(counts.values()))):
        print(f"{lines:7}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
