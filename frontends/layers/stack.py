"""Layers one after the other: equal ones share a body, and periods of them are bodies of repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Graph, Value
from llmir.ir.tools.build import Builder

from .beside import Beside, Port
from .blocks import Blocks, Norm
from .layer import Whole
from .pattern import Times, fold


class Body(NamedTuple):
    """A layer or a period: what it takes beside hidden states, and what it hands out."""

    graph: Graph
    takes: tuple[str, ...]
    hands: tuple[str, ...]


class Stack:
    """A model's layers, each with what sets it apart; bodies are made where they are first repeated.

    Checkpoints call a layer `stem`; `normal` is the norm of all.
    """

    def __init__(
        self, layers: Sequence[tuple[Whole, Hashable]], stem: str, hidden: int, dtype: DType, normal: Norm
    ) -> None:
        numbers: dict[tuple[Whole, Hashable], int] = {}
        known: dict[tuple[int, Hashable], int] = {}  # most layers are one object, which takes no hash to see
        for layer, apart in layers:
            if (id(layer), apart) not in known:
                known[id(layer), apart] = numbers.setdefault((layer, apart), len(numbers))
        self._pattern = tuple(known[id(layer), apart] for layer, apart in layers)
        self._kinds = [layer for layer, _ in numbers]
        self._names: dict[int | tuple[Times, ...], str] = dict(enumerate(_names(self._kinds)))
        self._stem, self._hidden, self._dtype, self._normal = stem, hidden, dtype, normal
        self._made: dict[str, Body] = {}

    @property
    def bodies(self) -> dict[str, Graph]:
        """The graphs that are repeated, by name."""
        return {name: body.graph for name, body in self._made.items()}

    def build(self, beside: Beside, x: Value, axes: tuple[str, ...] = ("batch", "seq", "embed")) -> Value:
        """What the last layer gives of hidden states of these axes."""
        self._port = Port(beside.b.type(x), axes)
        return self._repeats(beside, x, fold(self._pattern))

    def _repeats(self, beside: Beside, x: Value, parts: tuple[Times, ...]) -> Value:
        for times, of in parts:
            name = self._name(of)
            if name not in self._made:
                self._made[name] = self._body(name, of, beside.known)
            graph, takes, hands = self._made[name]
            gives = tuple(map(graph.type, graph.outputs[1:]))
            taken = (beside[take] for take in takes)
            given = beside.b.repeat(x, *taken, body=name, times=times, gives=gives, name=name)
            x, *handed = given if hands else (given,)
            for hand, value in zip(hands, handed, strict=True):
                beside.hand(hand, value, beside.known[hand].axes)
        return x

    def _name(self, of: int | tuple[Times, ...]) -> str:
        """What the body of a layer or a period is called."""
        if of not in self._names:
            periods = sum(isinstance(known, tuple) for known in self._names)
            self._names[of] = f"period_{periods + 1}" if periods else "period"
        return self._names[of]

    def _body(self, name: str, of: int | tuple[Times, ...], known: dict[str, Port]) -> Body:
        b = Builder(name)
        beside, x = Beside(b, known), b.input(self._port.type, name="hidden", axes=self._port.axes)
        if isinstance(of, tuple):
            x = self._repeats(beside, x, of)
        else:
            blocks = Blocks(b, self._dtype, self._normal, self._stem, h=self._hidden)
            blocks.beside = beside
            x = self._kinds[of].build(blocks, x)
        b.output(x, *(beside[name] for name in beside.handed))
        return Body(b.graph(), tuple(beside.taken), tuple(beside.handed))


def _names(layers: Sequence[Whole]) -> list[str]:
    """What the body of each kind of layer is called: by what it has, and a number if it must."""
    parts = list(zip(*(layer.kinds for layer in layers), strict=True))
    names, count = [], Counter[str]()
    for layer in layers:
        words = zip(layer.kinds, parts, strict=True)
        name = "_".join([*(word for word, all in words if word and len(set(all)) > 1), "layer"])
        count[name] += 1
        names.append(f"{name}_{count[name]}" if count[name] > 1 else name)
    return names
