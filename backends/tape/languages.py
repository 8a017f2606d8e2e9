"""Print functions of a tape in other languages: Python, JavaScript and JavaScript's BigInt.

A `Language` contains the text of each operation and of a function definition. `called_functions` orders the
functions that a function calls, `integer_outputs` finds outputs that are integers. A `Printer` prints and
compiles a function for use in this process; `PRINTERS` has `python` and `numpy` (see also `numba.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from . import numpy, python
from .record import TRUTHS, Constant, Function

# Functions that are whole numbers of whole numbers.
WHOLE = {
    *("add", "subtract", "multiply", "minimum", "maximum", "negative", "absolute"),
    *("ceildiv", "floor_divide", "where", "ceil", "floor"),
}


def _number(value: Constant) -> str:
    """A constant of JavaScript's numbers, which are float64."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("inf", "Infinity")


def _bigint(value: Constant) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{int(value)}n"


class Language(NamedTuple):
    """How a language writes operations, constants, function definitions and several outputs.

    If the name of an input is one of the `reserved` words, an underscore is added.
    """

    words: Mapping[Any, str]
    constant: Callable[[Constant], str]
    head: str
    line: str
    tail: str
    several: str
    reserved: frozenset[str] = frozenset()

    def text(
        self,
        function: Function,
        name: str,
        calls: Mapping[Function, str] | None = None,
        alone: bool = True,
    ) -> str:
        """The source of a function whose arguments are the inputs in order; `calls` contains the names of the
        functions that it calls.

        It returns the sequence of its outputs; if `alone` is true, it returns its only output.
        """
        inputs = {n: f"{of}_" if of in self.reserved else of for n, of in function.inputs.items()}
        function, words = Function(function.tape, inputs, function.outputs), self.words
        if calls:
            said = {of: f"{own}({', '.join(['{}'] * len(of.inputs))})" for of, own in calls.items()}
            words = {**words, **said}
        named, outputs = python.statements(function, words, self.constant)
        several = self.several.format("".join(f"{output}, " for output in outputs))
        found = outputs[0] if alone and len(outputs) == 1 else several
        lines = [self.line.format(*each) for each in named]
        return "\n".join(
            [self.head.format(name, ", ".join(inputs.values())), *lines, self.tail.format(found)]
        )


PYTHON = Language(python.TEXT, repr, "def {}({}):", "    {} = {}", "    return {}\n", "({})")
JAVASCRIPT = Language(
    {
        **python.TEXT,
        **{"floor_divide": "floor({} / {})", "ceildiv": "ceil({} / {})"},
        **{"equal": "{} == {}", "logical_and": "{} && {}", "logical_or": "{} || {}"},
        **{"logical_xor": "!{} != !{}", "where": "{} ? {} : {}"},
        **{"minimum": "{1} < {0} ? {1} : {0}", "maximum": "{1} > {0} ? {1} : {0}"},
    },
    _number,
    "function {}({}) {{",
    "  const {} = {};",
    "  return {};\n}}\n",
    "[{}]",
    frozenset(("case", "default", "delete", "do", "function", "in", "new", "switch", "this", "var", "with")),
)
# For integers of any size; `floordiv` and `ceildiv` belong to the module.
BIGINT = JAVASCRIPT._replace(
    words={
        **JAVASCRIPT.words,
        **{"floor_divide": "floordiv({}, {})", "ceildiv": "ceildiv({}, {})"},
        **{"absolute": "absolute({})", "ceil": "{}", "floor": "{}"},
    },
    constant=_bigint,
)


def called_functions(functions: Iterable[Function]) -> tuple[Function, ...]:
    """All functions that are called, directly or indirectly: each once, after the functions that it calls."""
    found: dict[Function, None] = {}

    def visit(function: Function) -> None:
        for number in function.live:
            of = function.tape.nodes[number].function
            if isinstance(of, Function) and of not in found:
                visit(of)
                found[of] = None

    for function in functions:
        visit(function)
    return tuple(found)


def integer_outputs(function: Function) -> frozenset[int]:
    """The outputs that are integers if the inputs are integers."""
    nodes = function.tape.nodes
    found = set(function.inputs)

    def known(number: int) -> bool:
        kind, of = nodes[number]
        return number in found or (kind == "constant" and isinstance(of[0], int))

    for number in function.live:
        kind, of = nodes[number]
        if kind in WHOLE | TRUTHS and all(map(known, of)):
            found.add(number)
    return frozenset(filter(known, function.outputs))


class Printer(Protocol):
    """A language for printing functions of a tape, and how Python compiles them."""

    def text(self, function: Function, name: str = "run") -> str:
        """The source of a function of that name."""

    def compiled(self, function: Function) -> Callable[..., tuple[Any, ...]]:
        """The function, of its inputs in order."""


PRINTERS: dict[str, Printer] = {"python": python, "numpy": numpy}
