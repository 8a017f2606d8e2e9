"""Write the types of the ops as methods of a Builder, and the index of the ops' modules.

python scripts/opmethods.py
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from llmir.ir.core.equation import equation
from llmir.ir.core.op import OPS, Op

IR = Path(__file__).resolve().parent.parent / "llmir" / "ir"
HOME = "llmir.ir.ops."

STUB = '''\
"""The ops as methods of a Builder, for type checkers; `python scripts/opmethods.py` wrote this file."""

from typing import Any

from llmir.ir.core.graph import Value
from llmir.ir.core.tensor import Tensor

class OpMethods:
    """A method for each op; `name` is the new op's, `block` the part of the model that it belongs to."""
'''

INDEX = '''\
"""The module that defines each op; `python scripts/opmethods.py` wrote this file."""

# Each line: a module of this package, and ops that it defines.
_OPS = """
{}
"""
_LINES = [line.split() for line in _OPS.strip().splitlines()]
MODULES = {{op: f"llmir.ir.ops.{{module}}" for module, *ops in _LINES for op in ops}}
'''


def texts() -> dict[Path, str]:
    """The generated files and their texts."""
    own = sorted(
        (kind for kind in OPS.values() if kind.__module__.startswith(HOME) and not kind.source),
        key=lambda kind: (kind.__module__, kind.opcode),
    )
    lines = [
        line
        for module, kinds in groupby(own, key=lambda kind: kind.__module__.removeprefix(HOME))
        for line in wrap(
            " ".join(kind.opcode for kind in kinds),
            109,
            initial_indent=f"{module} ",
            subsequent_indent=f"{module} ",
        )
    ]
    methods = map(method, sorted(own, key=lambda kind: kind.opcode))
    return {
        IR / "tools" / "op_methods.pyi": STUB + "".join(methods),
        IR / "ops" / "index.py": INDEX.format("\n".join(lines)),
    }


def method(kind: type[Op]) -> str:
    """One op as a method, on one line."""
    operands = [f"{name}: Value" for name in kind.takes]
    # what follows `*values` is by name anyway
    marks = [] if kind.takes[-1].startswith("*") else ["/", "*"]
    attributes = [parameter(field) for field in fields(kind) if field.name != "block"]
    inside = ["self", *operands, *marks, *attributes, 'name: str = ""', "block: str | None = None"]
    summary = " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    rule = f" `{kind.rule}`" if kind.rule else ""
    return f'    def {kind.opcode}({", ".join(inside)}) -> {gives(kind)}: """{summary}{rule}"""\n'


def parameter(field: Field[Any]) -> str:
    """An attribute, with its default if it has one."""
    return f"{field.name}: {field.type}{'' if field.default is MISSING else f' = {field.default!r}'}"


def gives(kind: type[Op]) -> str:
    """The type of the result: unknown where the attributes say how many there are."""
    if kind.rule:
        count = len(equation(kind.rule.replace("*", "")).results)
    else:
        count = 1 if kind.takes == ("x",) else 0
    return "Any" if not count else "Value" if count == 1 else f"tuple[{', '.join(['Value'] * count)}]"


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, "utf-8")
