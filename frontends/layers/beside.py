"""What goes between a model's graphs beside hidden states, such as keys that later layers read too."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.tensor import Tensor
from llmir.ir.tools.build import Builder


class Port(NamedTuple):
    """The type of a value that a graph takes, and the logical names of its axes."""

    type: Tensor
    axes: tuple[str, ...]


@dataclass
class Beside:
    """By name, the values of one graph.

    Of what it has none of yet, it takes an input of the `known` type, in order; `handed` is what others may
    take from it, and `known` by all graphs of a model.
    """

    b: Builder
    known: dict[str, Port]
    values: dict[str, Value] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    handed: dict[str, None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        if name not in self.values:
            type, axes = self.known[name]
            with self.b.block(""):
                self.values[name] = self.b.input(type, name=name, axes=axes)
            self.taken.append(name)
        return self.values[name]

    def hand(self, name: str, value: Value, axes: tuple[str, ...]) -> None:
        """Let others take a value; of what is handed twice the last."""
        assert name not in self.taken, f"{name} of an iteration before"
        self.known[name] = Port(self.b.type(value), axes)
        self.values[name] = value
        self.handed[name] = None
