"""Layers one after the other: equal ones share a body, and periods of them are bodies of repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from llmir.build import Builder
from llmir.dtype import DType
from llmir.graph import Graph, Value

from .blocks import Norm
from .layers import Layer, states
from .pattern import Times, fold


class Stack:
    """A model's layers, each with what sets it apart; `bodies` are made where they are first repeated.

    What follows them are the arguments of `Layer.graph`.
    """

    def __init__(
        self, layers: Sequence[tuple[Layer, Hashable]], stem: str, hidden: int, dtype: DType, normal: Norm
    ) -> None:
        numbers: dict[tuple[Layer, Hashable], int] = {}
        known: dict[tuple[int, Hashable], int] = {}  # most layers are one object, which takes no hash to see
        for layer, apart in layers:
            if (id(layer), apart) not in known:
                known[id(layer), apart] = numbers.setdefault((layer, apart), len(numbers))
        self._pattern = tuple(known[id(layer), apart] for layer, apart in layers)
        self._kinds = [layer for layer, _ in numbers]
        self._names: dict[int | tuple[Times, ...], str] = dict(enumerate(_names(self._kinds)))
        self._given = stem, hidden, dtype, normal
        self.bodies: dict[str, Graph] = {}

    def build(self, b: Builder, x: Value) -> Value:
        """What the last layer gives; x enters the first, and is what shared blocks see beside."""
        return self._repeats(b, x, x, fold(self._pattern))

    def _repeats(self, b: Builder, x: Value, embedded: Value, parts: tuple[Times, ...]) -> Value:
        for times, of in parts:
            body = self._body(of)
            captured = [embedded] if self._shares(of) else []
            x = b.repeat(x, *captured, body=body, times=times, name=body)
        return x

    def _shares(self, of: int | tuple[Times, ...]) -> bool:
        """Whether a layer, or one of a period, sees the embedding."""
        if isinstance(of, tuple):
            return any(self._shares(inner) for _, inner in of)
        return self._kinds[of].shared is not None

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
        b, (_, hidden, dtype, _) = Builder(name), self._given
        x = states(b, "hidden", hidden, dtype)
        embedded = states(b, "embedded", hidden, dtype) if self._shares(parts) else x
        b.output(self._repeats(b, x, embedded, parts))
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
