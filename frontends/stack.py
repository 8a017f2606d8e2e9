"""Layers one after the other: equal ones share a body, and periods of them are bodies of repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

from llmir.build import Builder
from llmir.dim import Size, T
from llmir.dtype import DType
from llmir.graph import Graph, Value

from .blocks import Norm
from .layers import Layer, state, told
from .pattern import Times, fold

NOTHING: Mapping[str, Value] = MappingProxyType({})


class Stack:
    """A model's layers, each with what sets it apart; `bodies` are made where they are first repeated.

    What follows them are the arguments of `Layer.graph`.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Layer, Hashable]],
        stem: str,
        hidden: int,
        dtype: DType,
        normal: Norm,
        tokens: Size = T,
    ) -> None:
        numbers: dict[tuple[Layer, Hashable], int] = {}
        known: dict[tuple[int, Hashable], int] = {}  # most layers are one object, which takes no hash to see
        for layer, apart in layers:
            if (id(layer), apart) not in known:
                known[id(layer), apart] = numbers.setdefault((layer, apart), len(numbers))
        self._pattern = tuple(known[id(layer), apart] for layer, apart in layers)
        self._kinds = [layer for layer, _ in numbers]
        self._names: dict[int | tuple[Times, ...], str] = dict(enumerate(_names(self._kinds)))
        self._given = stem, hidden, dtype, normal, tokens
        self._state = state(self._kinds[0].streams, hidden, dtype, tokens)
        self.bodies: dict[str, Graph] = {}

    def build(self, b: Builder, x: Value, given: Mapping[str, Value] = NOTHING) -> Value:
        """What the last layer gives; layers are told what they need of what is `given`."""
        return self._repeats(b, x, given, fold(self._pattern))

    def _repeats(self, b: Builder, x: Value, given: Mapping[str, Value], parts: tuple[Times, ...]) -> Value:
        for times, of in parts:
            body = self._body(of)
            more = (given[name] for name in self._told(of))
            x = b.repeat(x, *more, body=body, times=times, name=body)
        return x

    def _told(self, of: int | tuple[Times, ...]) -> tuple[str, ...]:
        """What a layer is told, or one of a period."""
        if isinstance(of, tuple):
            return tuple(dict.fromkeys(name for part in of for name in self._told(part.of)))
        return self._kinds[of].told

    def _body(self, of: int | tuple[Times, ...]) -> str:
        """The name of the body of a layer or a period."""
        if of not in self._names:
            periods = sum(isinstance(known, tuple) for known in self._names)
            self._names[of] = f"period_{periods + 1}" if periods else "period"
        name = self._names[of]
        if name not in self.bodies:
            made = (
                self._period(name, of) if isinstance(of, tuple) else self._kinds[of].graph(name, *self._given)
            )
            self.bodies[name] = made
        return name

    def _period(self, name: str, parts: tuple[Times, ...]) -> Graph:
        b, (type, axes), (_, hidden, dtype, _, tokens) = Builder(name), self._state, self._given
        x = b.input(type, name="hidden", axes=axes)
        given = told(b, self._told(parts), hidden, dtype, tokens)
        b.output(self._repeats(b, x, given, parts))
        return b.graph()


def _names(layers: Sequence[Layer]) -> list[str]:
    """What the body of each kind of layer is called: by what it has, and a number if it must."""
    parts = list(zip(*(layer.kinds for layer in layers), strict=True))
    names, count = [], Counter[str]()
    for layer in layers:
        words = zip(layer.kinds, parts, strict=True)
        name = "_".join([*(word for word, all in words if word and len(set(all)) > 1), "layer"])
        count[name] += 1
        names.append(f"{name}_{count[name]}" if count[name] > 1 else name)
    return names
