"""A sweep: every step of every structure, as tidy columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import repeat
from math import prod
from typing import Any

import numpy as np

from llmir.base.errors import InputError
from llmir.base.formats import Paged, Result
from llmir.base.values import Array, Immutable

from .axes import COUNTS, POINTS, Value
from .part import FIGURES, NUMBERS, Part

_EXACT = {*POINTS, "devices", *(name for name in FIGURES if name.endswith(("_bytes", "flops")))}
_WHOLE = {*COUNTS, *POINTS, "devices"}
_AT_ONCE = 1 << 13  # rows whose cells are in memory together


class Sweep(Immutable, Result, Paged):
    """The rows of a sweep, in the order of its axes: what varies first varies slowest.

    `axes` are the values of each axis, `basis` the cost models that price the rows and whose kernels they
    have, `columns` an array for each axis and figure, in SI units: NaN where `refused` says why. `error` is
    the mean relative error that is known of such times, `fits` whether so many requests of `new` + `context`
    tokens have room by the engine's rule, each `…_share` the part of the step that a bound accounts for,
    `cost_usd_per_mtok` what a million tokens of such steps cost, where the device has a price, and
    `energy_j_per_token` their energy with all boards at the limit of their power, where that is known.
    """

    axes: Mapping[str, tuple[Value, ...]]
    parts: tuple[Part, ...]
    model: str

    def __init__(self, axes: Mapping[str, tuple[Value, ...]], parts: Sequence[Part], model: str = "") -> None:
        vars(self).update(axes=dict(axes), parts=tuple(parts), model=model)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns: axes, figures, `basis`, `refused`."""
        return _names(self.axes)

    @property
    def basis(self) -> tuple[str, ...]:
        """The cost models that price its rows, and whose kernels they have."""
        return tuple(dict.fromkeys(part.basis for part in self.parts if part.basis))

    @cached_property
    def columns(self) -> Mapping[str, Array]:
        """An array for each name, put together when it is first asked for."""
        return _Columns(self.names, self._column)

    def _column(self, name: str) -> Array:
        if name in self.parts[0].columns:
            found = [part.column(name) for part in self.parts]
        else:
            found = [np.full(len(part), part.constant(name), dtype=object) for part in self.parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def refusals(self) -> int:
        """How many rows have no figures."""
        return sum(part.refusals for part in self.parts)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by name, as JSON has it: counts as integers, None for what there is none of."""
        for part in self.parts:
            arrays = {name: part.column(name) for name in self.names if name in part.columns}
            for first in range(0, len(part), _AT_ONCE):
                last = min(first + _AT_ONCE, len(part))
                cells = [
                    _cells(name, arrays[name][first:last])
                    if name in arrays
                    else repeat(part.constant(name), last - first)
                    for name in self.names
                ]
                for values in zip(*cells, strict=True):
                    yield dict(zip(self.names, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Its axes, and its rows."""
        return {
            "model": self.model,
            "basis": list(self.basis),
            "axes": {name: list(values) for name, values in self.axes.items()},
            "rows": list(self.rows()),
        }

    def to_pandas(self) -> Any:
        """A pandas DataFrame, with integers and booleans that may be NA (pandas must be installed)."""
        with _needed("to_pandas", "pandas"):
            import pandas
        frame = pandas.DataFrame(dict(self.columns))
        frame["refused"] = frame["refused"].where(frame["refused"] != "", None)
        whole = {name: "Int64" for name in self.names if name in _WHOLE}
        return frame.astype({**whole, "fits": "boolean"})

    def to_polars(self) -> Any:
        """A polars DataFrame, with null for what a row has none of (polars must be installed)."""
        with _needed("to_polars", "polars"):
            import polars
        columns = self.columns.items()
        values = {name: each.tolist() if each.dtype == object else each for name, each in columns}
        frame = polars.DataFrame(values, strict=False, nan_to_null=True)
        whole: dict[Any, Any] = {name: polars.Int64 for name in self.names if name in _WHOLE}
        said = polars.when(polars.col("refused") != "").then(polars.col("refused"))
        return frame.cast({**whole, "fits": polars.Boolean}).with_columns(refused=said)

    def to_arrow(self) -> Any:
        """A pyarrow Table, which Parquet and Arrow files hold (pyarrow must be installed)."""
        with _needed("to_arrow", "pyarrow"):
            import pyarrow
        whole = schema(self.axes)
        tables = ([_arrow(part, name, whole.field(name).type) for name in self.names] for part in self.parts)
        return pyarrow.concat_tables(pyarrow.table(columns, schema=whole) for columns in tables)

    def _gridded(self, part: Part, name: str) -> Array:
        """A column of a part; the one row of a structure that is refused is at all of its points."""
        column = np.array([part.basis], dtype=object) if name == "basis" else part.column(name)
        points = prod(len(self.axes[point]) for point in POINTS)
        return np.broadcast_to(column, points if part.alone else len(part))

    def to_xarray(self) -> Any:
        """An xarray Dataset with the axes as labelled dimensions (xarray must be installed)."""
        with _needed("to_xarray", "xarray"):
            import xarray
        structure = [name for name in self.axes if name not in POINTS]
        points = [self.axes[name] for name in POINTS]
        outer, inner = [len(self.axes[name]) for name in structure], [len(values) for values in points]
        figures = {}
        for name in (*FIGURES, "basis", "refused"):
            every = [self._gridded(part, name) for part in self.parts]
            figures[name] = ([*structure, *POINTS], np.concatenate(every).reshape(*outer, *inner))
        labels = {name: ["" if v is None else v for v in self.axes[name]] for name in (*structure, *POINTS)}
        return xarray.Dataset(figures, coords=labels)


class _Columns(Mapping[str, Array]):
    def __init__(self, names: Sequence[str], make: Callable[[str], Array]) -> None:
        self._make: dict[str, Callable[[str], Array]] = dict.fromkeys(names, make)
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            self._made[name] = self._make[name](name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


def schema(axes: Mapping[str, object]) -> Any:
    """The names and types of the columns in Arrow, which are those of any sweep with these axes."""
    import pyarrow

    kinds = {"fits": pyarrow.bool_(), "refused": pyarrow.string(), "devices": pyarrow.int64()}
    kinds |= {name: pyarrow.int64() for name in (*COUNTS, *POINTS)}
    kinds |= dict.fromkeys(NUMBERS, pyarrow.float64())
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in _names(axes)])


def _names(axes: Mapping[str, object]) -> tuple[str, ...]:
    structure = [name for name in axes if name not in POINTS]
    return (*structure, *POINTS, *FIGURES, "basis", "refused")


def _arrow(part: Part, name: str, kind: Any) -> Any:
    """A column of a part in Arrow."""
    import pyarrow

    if name not in part.columns:
        return pyarrow.repeat(pyarrow.scalar(part.constant(name), kind), len(part))
    values = part.column(name)
    if name == "refused":
        return pyarrow.array(values, kind, mask=np.equal(values, ""))
    if values.dtype != np.float64:
        return pyarrow.array(values, kind)
    missing = np.isnan(values)
    if pyarrow.types.is_floating(kind):
        return pyarrow.array(values, kind, mask=missing)
    whole = np.where(missing, 0, values).astype(bool if name == "fits" else np.int64)
    return pyarrow.array(whole, kind, mask=missing)


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
