"""Functions of several programs as one piece of JavaScript: each source once, whoever calls it.

`llmirFunctions` gives them by name for what is told of the outside, such as a device's rates: what is made of
that alone is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from llmir.backends.tape.languages import JAVASCRIPT, called
from llmir.backends.tape.outside import names, outside
from llmir.backends.tape.record import Constant, Function, Tape

_NAME, _TOLD, _MADE = "f", "r", "d"
BEFORE = """const {{ ceil, floor, sqrt, cbrt, hypot, expm1, abs }} = Math;
globalThis.llmirFunctions = ([{}]) => {{
{}"""
AFTER = "return {{ {} }};\n}};\n"


class Uses:
    """Functions, and what they ask for: `told` are the names of what the outside tells, in their order."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self._uses: dict[Function, frozenset[str]] = {}

    def uses(self, functions: Iterable[Function]) -> list[str]:
        """What of the outside these ask for, by name."""
        found: set[str] = set()
        for function in functions:
            for each in (function, *called([function])):
                found |= self._used(each)
        return [name for name in self.told if name in found]

    def _used(self, function: Function) -> frozenset[str]:
        if function not in self._uses:
            nodes = function.tape.nodes
            operands = {n for number in function.live for n in nodes[number].of} | set(function.outputs)
            values = (nodes[n].of[0] for n in operands if nodes[n].function == "constant")
            self._uses[function] = frozenset(chain.from_iterable(map(names, filter(outside, values))))
        return self._uses[function]


class Functions(Uses):
    """Those that were added, by name: `f0`, `f1` and so on, of which equal sources have one."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}  # by source
        self._known: dict[Function, str] = {}
        self._asked: dict[str, None] = {}
        self._made: dict[str, str] = {}  # by what is made of what is told
        self._variables: dict[tuple[Tape, int], str] = {}
        self._language = JAVASCRIPT._replace(constant=self._constant)

    def add(self, function: Function) -> str:
        """The name of a function that gives all its outputs in an array."""
        for inner in called([function]):
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
        return self._variable(value.tape, value.number) if outside(value) else JAVASCRIPT.constant(value)

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
        """All of them, in what gives those that were added."""
        functions = [f"function {name}({source}" for source, name in self._names.items()]
        made = "".join(f"const {name} = {said};\n" for said, name in self._made.items())
        before = BEFORE.format(", ".join(self.told.values()), made)
        return "".join([before, *functions, AFTER.format(", ".join(self._asked))])
