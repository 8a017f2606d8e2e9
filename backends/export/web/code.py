"""Functions of several programs as one piece of JavaScript: each source once, whoever calls it."""

from __future__ import annotations

from llmir.backends.cost.tape import Function
from llmir.backends.cost.tape.languages import JAVASCRIPT, called

_NAME = "f"
BEFORE = "const { ceil, floor, sqrt, cbrt, hypot, expm1, abs } = Math;\n"
AFTER = "globalThis.llmirFunctions = {{ {} }};\n"


class Functions:
    """Those that were added, by name: `f0`, `f1` and so on, of which equal sources have one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by source
        self._known: dict[Function, str] = {}
        self._asked: dict[str, None] = {}

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
            source = JAVASCRIPT.text(function, "{}", calls, alone).partition("(")[2]
            self._known[function] = self._names.setdefault(source, f"{_NAME}{len(self._names)}")
        return self._known[function]

    @property
    def source(self) -> str:
        """All of them, and those that were added by name in `llmirFunctions`."""
        functions = (f"function {name}({source}" for source, name in self._names.items())
        return "".join([BEFORE, *functions, AFTER.format(", ".join(self._asked))])
