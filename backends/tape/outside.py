"""Numbers that are told when functions run, beside their inputs: what is made of them alone is told once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .record import Function, Symbol, Tape


class Outside(Tape):
    """A tape of such numbers, by name, with what each usually is."""

    outside = True

    def __init__(self, scalars: Any, usual: Mapping[str, float]) -> None:
        super().__init__(scalars)
        self.usual = dict(usual)

    def value(self, symbol: Symbol) -> Any:
        """What a symbol of it usually is."""
        function = Function.of(self, self.usual, [symbol])
        return function.onto(Tape(self.kind), self.usual.values())[0]


def usual(number: Any) -> Any:
    """A number, or what one of the outside usually is."""
    return number.usual if outside(number) else number


def outside(number: Any) -> bool:
    """Whether it is told when functions run."""
    return isinstance(number, Symbol) and number.tape.outside


def names(symbol: Symbol) -> frozenset[str]:
    """Of what is told of the outside, what a number is made of."""
    nodes, found, open_ = symbol.tape.nodes, set[str](), [symbol.number]
    while open_:
        function, of = nodes[open_.pop()]
        if function == "symbol":
            found.add(of[0])
        elif function != "constant":
            open_ += of
    return frozenset(found)
