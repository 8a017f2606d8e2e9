"""Evaluate many op times together: the op times of one kernel become one op time with arrays.

Kernel laws accept arrays wherever they accept numbers, so op times that differ only in numbers become one op
time whose numbers are columns (`OpTimeStack`). `SizeStack` and `BindingStack` evaluate the sizes of several
programs. This file knows no kernel, op or device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from llmir.backends.kernels.base import Call, Shape
from llmir.backends.work.rows import Limit
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Atom, Dim, Size

from .calibrated import FastestKernel, FusedAttentionPart, KernelTime
from .op_time import OpTime, Roofline

Array = Any  # float64
_MADE_OF_NUMBERS = (KernelTime, FastestKernel, FusedAttentionPart, Roofline, Limit, Call, Shape)
_NUMBERS, _WORDS = (int, float, Dim), (str, bool, type(None))


class BindingStack(Binding):
    """The sizes of several programs at the same points; each stacked op time uses one of them."""

    each: tuple[Binding, ...]

    def __init__(self, each: Sequence[Binding]) -> None:
        super().__init__()
        self._keep(each[0].symbols, {})
        vars(self).update(each=tuple(each))


@dataclass(frozen=True, eq=False)
class SizeStack(Atom):
    """Evaluate sizes one after another, each with the binding of the given index, along a new first axis."""

    sizes_of: tuple[tuple[int, Size], ...]

    @cached_property
    def _first(self) -> dict[tuple[int, Size], int]:
        """The sizes that differ, each with its index."""
        return {pair: i for i, pair in enumerate(dict.fromkeys(self.sizes_of))}

    @cached_property
    def _places(self) -> list[int]:
        return [self._first[pair] for pair in self.sizes_of]

    def at(self, value: Any) -> Array:
        """The sizes at the points of a `BindingStack`, in the order of `sizes_of` along a new first axis."""
        values = [value.each[which](size) for which, size in self._first]
        found = np.empty((len(values), *np.broadcast_shapes((1,) * len(value.shape), *map(np.shape, values))))
        for i, one in enumerate(values):
            found[i] = one
        return found[self._places]


class OpTimeStack:
    """Op times that are evaluated together, each with the index of a binding; the points have `axes` axes."""

    def __init__(self, prices: Sequence[tuple[int, OpTime]], axes: int) -> None:
        groups: dict[object, tuple[list[int], list[list[Size]]]] = {}
        for i, (_, price) in enumerate(prices):
            numbers: list[Size] = []
            places, found = groups.setdefault(_kind(price, numbers), ([], []))
            places.append(i)
            found.append(numbers)
        self.axes, self.groups = axes, []
        for places, each in groups.values():
            which = [prices[i][0] for i in places]
            self.groups.append((places, _of(prices[places[0]][1], _columns(which, each, axes))))

    def each(self, seconds: Callable[[OpTime], Sequence[Any]]) -> Iterator[tuple[list[int], list[Array]]]:
        """The indices of the op times in each group, and the results of `seconds`: arrays with one row per op
        time.
        """
        for places, price in self.groups:
            shaped = (np.asarray(value, dtype=np.float64) for value in seconds(price))
            yield places, [_rows(value, len(places), self.axes) for value in shaped]


def _rows(value: Array, count: int, axes: int) -> Array:
    """Reshape a value to one row per op time, followed by the axes of the points."""
    value = value.reshape((1,) * (axes + 1 - value.ndim) + value.shape)
    return np.broadcast_to(value, (count, *value.shape[1:]))


def _kind(value: Any, numbers: list[Size]) -> object:
    """The structure that op times have in common if they can be stacked; numbers that may differ are added to
    `numbers`.
    """
    kind: Any = type(value)
    if kind in _NUMBERS:
        numbers.append(value)
        return None
    if kind in _WORDS:
        return value
    if kind is tuple:
        return tuple([_kind(part, numbers) for part in value])
    names = _names(kind)
    return (kind, *[_kind(getattr(value, name), numbers) for name in names]) if names else id(value)


def _columns(which: Sequence[int], numbers: Sequence[Sequence[Size]], axes: int) -> Iterator[Any]:
    """Each number of the op times: a scalar if all are equal, otherwise a column."""
    for values in zip(*numbers, strict=True):
        if any(isinstance(value, Dim) for value in values):
            yield Dim((((SizeStack(tuple(zip(which, values, strict=True))),), 1),))
        elif all(value == values[0] for value in values):
            yield values[0]
        else:
            yield np.array(values, dtype=np.float64).reshape(-1, *(1,) * axes)


def _of(value: Any, numbers: Iterator[Any]) -> Any:
    """A copy of the first op time in which numbers are columns."""
    kind: Any = type(value)
    if kind in _NUMBERS:
        return next(numbers)
    if kind is tuple:
        return tuple(_of(part, numbers) for part in value)
    names = () if kind in _WORDS else _names(kind)
    return kind(**{name: _of(getattr(value, name), numbers) for name in names}) if names else value


@lru_cache(maxsize=256)
def _names(kind: Any) -> tuple[str, ...]:
    """The numeric fields of a class; empty for classes with other fields."""
    return tuple(f.name for f in fields(kind)) if issubclass(kind, _MADE_OF_NUMBERS) else ()
