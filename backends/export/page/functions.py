"""Functions of several programs as one JavaScript text, or as data.

`Functions` prints each distinct source once. The script's function `llmirFunctions` takes external numbers,
such as the rates of a device, and computes values that depend only on them once. `Listing` stores functions
as lists of numbers; the code of a page evaluates them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from math import isfinite
from typing import Any

from llmir.backends.tape.languages import JAVASCRIPT, called_functions
from llmir.backends.tape.outline import external_names, is_external
from llmir.backends.tape.record import Constant, Function, Tape

# Functions as JavaScript

_NAME, _TOLD, _MADE = "f", "r", "d"
BEFORE = """const {{ ceil, floor, sqrt, cbrt, hypot, expm1, abs }} = Math;
globalThis.llmirFunctions = ([{}]) => {{
{}"""
AFTER = "return {{ {} }};\n}};\n"


class FunctionUses:
    """Functions, and the external numbers that they use; `told` contains the names of these numbers, in
    order.
    """

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self._uses: dict[Function, frozenset[str]] = {}

    def uses(self, functions: Iterable[Function]) -> list[str]:
        """The names of the external numbers that these functions use."""
        found: set[str] = set()
        for function in functions:
            for each in (function, *called_functions([function])):
                found |= self._used(each)
        return [name for name in self.told if name in found]

    def _used(self, function: Function) -> frozenset[str]:
        if function not in self._uses:
            nodes = function.tape.nodes
            operands = {n for number in function.live for n in nodes[number].of} | set(function.outputs)
            values = (nodes[n].of[0] for n in operands if nodes[n].function == "constant")
            self._uses[function] = frozenset(
                chain.from_iterable(map(external_names, filter(is_external, values)))
            )
        return self._uses[function]


class Functions(FunctionUses):
    """The functions that were added, by name: `f0`, `f1` and so on; functions with equal source have one
    name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}  # by source
        self._known: dict[Function, str] = {}
        self._asked: dict[str, None] = {}
        self._made: dict[str, str] = {}  # by expression of external numbers
        self._variables: dict[tuple[Tape, int], str] = {}
        self._language = JAVASCRIPT._replace(constant=self._constant)

    def add(self, function: Function) -> str:
        """The name of a function that gives all its outputs in an array."""
        for inner in called_functions([function]):
            self._name(inner, alone=True)
        name = self._name(function, alone=False)
        self._asked[name] = None
        return name

    def _name(self, function: Function, *, alone: bool) -> str:
        if function not in self._known:
            calls = {of: self._known[of] for of in function.calls}
            source = self._language.text(function, "{}", calls, alone).partition("(")[2]
            self._known[function] = self._names.setdefault(source, f"{_NAME}{len(self._names)}")
        return self._known[function]

    def _constant(self, value: Constant) -> str:
        return self._variable(value.tape, value.number) if is_external(value) else JAVASCRIPT.constant(value)

    def _variable(self, tape: Tape, number: int) -> str:
        if (tape, number) not in self._variables:
            function, of = tape.nodes[number]
            if function == "constant":
                said = JAVASCRIPT.constant(of[0])
                return f"({said})" if of[0] < 0 else said
            if function == "symbol":
                name = self.told.setdefault(of[0], f"{_TOLD}{len(self.told)}")
            else:
                said = JAVASCRIPT.words[function].format(*(self._variable(tape, n) for n in of))
                name = self._made.setdefault(said, f"{_MADE}{len(self._made)}")
            self._variables[tape, number] = name
        return self._variables[tape, number]

    @property
    def source(self) -> str:
        """JavaScript of a function that defines all functions and returns those that were passed to `add`."""
        functions = [f"function {name}({source}" for source, name in self._names.items()]
        made = "".join(f"const {name} = {said};\n" for said, name in self._made.items())
        before = BEFORE.format(", ".join(self.told.values()), made)
        return "".join([before, *functions, AFTER.format(", ".join(self._asked))])


# Functions as data


class Listing(FunctionUses):
    """The functions that were added, by name; equal functions have one list.

    A list contains the number of inputs, the constants, the operations, and the positions of the outputs.
    Values are numbered: first the inputs, then the constants, then the result of each operation. The list of
    operations is flat: the number of a function, followed by the numbers of its operands. The number of a
    function selects an operation. A number below 0, as -1 - number, selects an earlier list with one output.
    A constant in brackets is the index of an external value. External values are external numbers, constants,
    and functions of earlier external values.
    """

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, int] = {}
        self._known: dict[Function, int] = {}
        self._lists: dict[str, int] = {}  # by text
        self._outside: list[Any] = []
        self._places: dict[tuple[Tape, int], int] = {}

    def add(self, function: Function) -> str:
        """The name of a function that gives all its outputs."""
        for inner in called_functions([function]):
            self._number(inner)
        return str(self._number(function))

    def _number(self, function: Function) -> int:
        if function not in self._known:
            text = json.dumps(self._list(function), allow_nan=False)
            self._known[function] = self._lists.setdefault(text, len(self._lists))
        return self._known[function]

    def _list(self, function: Function) -> list[Any]:
        nodes, live = function.tape.nodes, function.live
        asked = {n for number in live for n in nodes[number].of} | set(function.outputs)
        places = {number: place for place, number in enumerate(function.inputs)}
        fixed = sorted(n for n in asked - places.keys() if nodes[n].function == "constant")
        for number in (*fixed, *live):
            places[number] = len(places)
        done: list[Any] = []
        for number in live:
            does, of = nodes[number]
            said = ~self._known[does] if isinstance(does, Function) else self._word(does)
            done += [said, *(places[n] for n in of)]
        constants = [self._constant(nodes[n].of[0]) for n in fixed]
        return [len(function.inputs), constants, done, [places[n] for n in function.outputs]]

    def _constant(self, value: Constant) -> Any:
        return [self._place(value.tape, value.number)] if is_external(value) else _constant_text(value)

    def _place(self, tape: Tape, number: int) -> int:
        """The position of an external value."""
        if (tape, number) not in self._places:
            function, of = tape.nodes[number]
            if function == "constant":
                made: Any = _constant_text(of[0])
            elif function == "symbol":
                self.told.setdefault(of[0], of[0])
                made = {"told": list(self.told).index(of[0])}
            else:
                made = [self._word(function), *(self._place(tape, n) for n in of)]
            self._places[tape, number] = len(self._outside)
            self._outside.append(made)
        return self._places[tape, number]

    def _word(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))

    @property
    def all(self) -> dict[str, Any]:
        """The texts, the external values, and the lists, for JSON."""
        lists = [json.loads(text) for text in self._lists]
        return {"words": list(self._words), "outside": self._outside, "lists": lists}


def _constant_text(value: Constant) -> Any:
    """A constant for JSON; infinity, which JSON does not have, is written as in JavaScript."""
    return value if isfinite(value) else str(value).replace("inf", "Infinity")
