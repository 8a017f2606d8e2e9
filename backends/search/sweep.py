"""A sweep: every step of every structure, as tidy columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from llmir.errors import InputError
from llmir.frozen import Array, Immutable
from llmir.views import Result

from .axes import POINTS, Value
from .part import FIGURES, Part

_EXACT = {*POINTS, "devices", *(name for name in FIGURES if name.endswith(("_bytes", "flops")))}


class Sweep(Immutable, Result):
    """The rows of a sweep, in the order of its axes: what varies first varies slowest.

    `axes` are the values of each axis, `columns` an array for each axis and figure, in SI units: NaN where
    `refused` says why. `error` is the mean relative error that is known of such times, `fits` whether so many
    requests of `new` + `context` tokens have room by the engine's rule, each `…_share` the part of the step
    that a bound accounts for, `cost_usd_per_mtok` what a million tokens of such steps cost, where the device
    has a price.
    """

    axes: Mapping[str, tuple[Value, ...]]
    parts: tuple[Part, ...]

    def __init__(self, axes: Mapping[str, tuple[Value, ...]], parts: Sequence[Part]) -> None:
        vars(self).update(axes=dict(axes), parts=tuple(parts))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns: axes, figures, `refused`."""
        structure = [name for name in self.axes if name not in POINTS]
        return (*structure, *POINTS, *FIGURES, "refused")

    @cached_property
    def columns(self) -> Mapping[str, Array]:
        """An array for each name."""
        return {name: self._column(name) for name in self.names}

    def _column(self, name: str) -> Array:
        if name in self.parts[0].columns:
            return np.concatenate([part.columns[name] for part in self.parts])
        values = np.empty(len(self.parts), dtype=object)
        values[:] = [part.structure[name] for part in self.parts]
        return np.repeat(values, [len(part) for part in self.parts])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by name, as JSON has it: counts as integers, None for what there is none of."""
        lists = {name: _cells(name, column) for name, column in self.columns.items()}
        for values in zip(*lists.values(), strict=True):
            yield dict(zip(lists, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Its axes, and its rows."""
        return {"axes": {name: list(values) for name, values in self.axes.items()}, "rows": list(self.rows())}

    def to_pandas(self) -> Any:
        """A pandas DataFrame (pandas must be installed)."""
        with _needed("to_pandas", "pandas"):
            import pandas
        return pandas.DataFrame(dict(self.columns))

    def to_polars(self) -> Any:
        """A polars DataFrame (polars must be installed)."""
        with _needed("to_polars", "polars"):
            import polars
        return polars.DataFrame(
            {name: column.tolist() for name, column in self.columns.items()}, strict=False
        )

    def to_arrow(self) -> Any:
        """A pyarrow Table, which Parquet and Arrow files hold (pyarrow must be installed)."""
        with _needed("to_arrow", "pyarrow"):
            import pyarrow
        columns = {name: _cells(name, column) for name, column in self.columns.items()}
        return pyarrow.table(columns)

    def to_xarray(self) -> Any:
        """An xarray Dataset with the axes as labelled dimensions (xarray must be installed)."""
        with _needed("to_xarray", "xarray"):
            import xarray
        structure = [name for name in self.axes if name not in POINTS]
        points = [self.axes[name] for name in POINTS]
        outer, inner = [len(self.axes[name]) for name in structure], [len(values) for values in points]
        figures = {}
        for name in (*FIGURES, "refused"):
            each = [np.broadcast_to(_shaped(part.columns[name], inner), inner) for part in self.parts]
            figures[name] = ([*structure, *POINTS], np.stack(each).reshape(*outer, *inner))
        labels = {name: ["" if v is None else v for v in self.axes[name]] for name in (*structure, *POINTS)}
        return xarray.Dataset(figures, coords=labels)


def _shaped(column: Array, shape: Sequence[int]) -> Array:
    """A part's column on the grid of points; the one row of a structure that is refused is at all of them."""
    return column.reshape(shape) if column.size == np.prod(shape) else column.reshape([1] * len(shape))


def _cells(name: str, column: Array) -> list[Any]:
    """A column as JSON has it."""
    return [_plain(name, value) for value in column.tolist()]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, float):
        if np.isnan(value):
            return None
        exact = name in _EXACT and value.is_integer()  # what is read of experts is an expectation
        return bool(value) if name == "fits" else int(value) if exact else value
    return value or None if name == "refused" else value


@contextmanager
def _needed(method: str, package: str) -> Iterator[None]:
    """What is imported here may not be installed."""
    try:
        yield
    except ImportError:
        raise InputError(f"{method} needs {package}: pip install {package}") from None
