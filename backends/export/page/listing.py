"""Functions of several programs as data: lists of numbers that a page's own code works through."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from llmir.backends.tape.languages import called
from llmir.backends.tape.outside import outside
from llmir.backends.tape.record import Constant, Function, Tape

from .functions import Uses


class Listing(Uses):
    """Functions that were added, by name, of which equal ones have one list.

    A list is how many inputs there are, constants, what is done, and where the outputs stand. Values are
    numbered: inputs, constants, and then what each function of earlier values gives; what is done is flat,
    the number of a function and then those of its operands. That number is of a word, or, as -1 - number,
    of an earlier list with one output. A constant in brackets is the number of a value of the outside: one
    that is told, by its place, a number, or a function of earlier ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, int] = {}
        self._known: dict[Function, int] = {}
        self._lists: dict[str, int] = {}  # by their text
        self._outside: list[Any] = []
        self._places: dict[tuple[Tape, int], int] = {}

    def add(self, function: Function) -> str:
        """The name of a function that gives all its outputs."""
        for inner in called([function]):
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
        return [self._place(value.tape, value.number)] if outside(value) else _said(value)

    def _place(self, tape: Tape, number: int) -> int:
        """Where a value of the outside stands among them."""
        if (tape, number) not in self._places:
            function, of = tape.nodes[number]
            if function == "constant":
                made: Any = _said(of[0])
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
        """The words, values of the outside, and the lists, for JSON."""
        lists = [json.loads(text) for text in self._lists]
        return {"words": list(self._words), "outside": self._outside, "lists": lists}


def _said(value: Constant) -> Any:
    """A constant as JSON has numbers; infinity, which it does not have, as JavaScript spells it."""
    return value if isfinite(value) else str(value).replace("inf", "Infinity")
