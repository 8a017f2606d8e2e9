"""Write llmir/ir/tools/op_methods.py: ops as methods of a Builder, for editors and type checkers."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from llmir.ir.core.equation import equation
from llmir.ir.core.op import OPS, Op

TARGET = Path(__file__).resolve().parent.parent / "llmir" / "ir" / "tools" / "op_methods.py"
WIDTH = 110
NEWLINE = "\n"

FOOT = """

# which module defines an op, so that no other is imported
MODULES = {{
{}}}
"""

HEAD = '''\
"""The ops as methods of a Builder; `python scripts/opmethods.py` wrote this file from their classes."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmir.ir.core.graph import Value
from llmir.ir.core.tensor import Tensor


class OpMethods:
    """A method for each op; `name` is the new op's, `block` the part of the model that it belongs to."""

    _op: Callable[..., Any]
'''


def text() -> str:
    """The whole file."""
    own = sorted(
        (kind for kind in OPS.values() if kind.__module__.startswith("llmir.ir.ops.") and not kind.source),
        key=lambda kind: kind.opcode,
    )
    modules = (f'    "{kind.opcode}": "{kind.__module__}",\n' for kind in own)
    return HEAD + "".join(map(method, own)) + FOOT.format("".join(modules))


def method(kind: type[Op]) -> str:
    """One op as a method."""
    attributes = [f for f in fields(kind) if f.name != "block"]
    operands = [f"{name}: Value" for name in kind.takes]
    # what follows `*values` is by name anyway
    marks = [] if kind.takes[-1].startswith("*") else ["/", "*"]
    stated = [*map(parameter, attributes), 'name: str = ""', "block: str | None = None"]
    head = call(f"def {kind.opcode}(", ["self", *operands, *marks, *stated], f") -> {gives(kind)}:", 4)
    values = f"({', '.join(kind.takes)}{',' if len(kind.takes) == 1 else ''})"
    if len(values) + 13 > WIDTH:  # with the comma after it, 12 columns in
        values = "\n".join(["(", *(f"        {name}," for name in kind.takes), "    )"])
    given = [f'"{kind.opcode}"', values, "name", "block", *(f"{f.name}={f.name}" for f in attributes)]
    body = call("return self._op(", given, ")", 8)
    return f"\n{indent(head, ' ' * 4)}\n{indent(docstring(kind), ' ' * 8)}\n{indent(body, ' ' * 8)}\n"


def call(start: str, arguments: list[str], end: str, margin: int) -> str:
    """A call or signature: on one line, or all arguments on a line of their own, or each on one."""
    inside = ", ".join(arguments)
    if len(start + inside + end) + margin <= WIDTH:
        return start + inside + end
    if len(inside) + margin + 4 <= WIDTH:
        return f"{start}\n    {inside}\n{end}"
    return "\n".join([start, *(f"    {a}," for a in arguments), end])


def parameter(field: Field[Any]) -> str:
    """An attribute, with its default if it has one."""
    default = "" if field.default is MISSING else f" = {literal(field.default)}"
    return f"{field.name}: {field.type}{default}"


def literal(value: object) -> str:
    """A default as Python spells it, text in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def gives(kind: type[Op]) -> str:
    """The type of the result: unknown where the attributes say how many there are."""
    if kind.rule:
        count = len(equation(kind.rule.replace("*", "")).results)
    else:
        count = 1 if kind.takes == ("x",) else 0
    return "Any" if not count else "Value" if count == 1 else f"tuple[{', '.join(['Value'] * count)}]"


def docstring(kind: type[Op]) -> str:
    """That of the class, and its equation."""
    paragraphs = [" ".join(p.split()) for p in cleandoc(kind.__doc__ or "").split("\n\n")]
    paragraphs += [f"`{kind.rule}`"] if kind.rule else []
    lines = "\n\n".join(fill(p, WIDTH - 11) for p in paragraphs)
    return f'"""{lines}{NEWLINE if len(paragraphs) > 1 else ""}"""'


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
