"""Very many points, in as few bytes as they need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from llmir.base.array_namespace import Number
from llmir.base.values import FrozenDict, read_only

from .binding import Binding, Places, part

_MANY = 1 << 20  # numbers from which their memory counts: 8 MiB


class Packed(Binding):
    """Counts at very many points, which are held as `packed` has them.

    Blocks of it have float64. So have its `symbols`, which are made when they are asked for.
    """

    _packed: Mapping[str, Number]

    def __init__(self, **counts: Number) -> None:
        super().__init__()
        del vars(self)["symbols"]
        vars(self)["_packed"] = FrozenDict(counts)

    @cached_property
    def symbols(self) -> Mapping[str, Number]:  # type: ignore[override] # made late
        """The values in float64."""
        return Binding(**self._packed).symbols

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that they broadcast to."""
        return np.broadcast_shapes(*map(np.shape, self._packed.values()))

    def block(self, rows: slice | Places) -> Binding:
        """The values at some of the points, in float64."""
        return Binding(**{name: part(value, rows, len(self.shape)) for name, value in self._packed.items()})


def packed(counts: Number) -> Number:
    """Very many counts in the smallest type that has them, read-only; anything else as it is.

    >>> packed(np.arange(2.0**20) % 300).dtype, packed(np.arange(3.0)).dtype
    (dtype('uint16'), dtype('float64'))
    """
    if not isinstance(counts, np.ndarray) or counts.size < _MANY:
        return counts
    return read_only(counts.astype(np.min_scalar_type(int(counts.max()))))


def is_packed(value: Any) -> bool:
    """Whether `packed` made it."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "u"
