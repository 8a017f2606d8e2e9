"""The steps of one structure: a program on a device, at all points of a grid together."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost import Model
from llmir.errors import LlmirError
from llmir.frozen import Array
from llmir.graph import Program

from .axes import POINTS, Value
from .figures import BYTES, SHARES, WORK, figures
from .fits import fits

NUMBERS = ("time_s", "ideal_time_s", "error", *BYTES, *WORK, *SHARES, "cost_usd_per_mtok")
FIGURES = ("devices", "fits", *NUMBERS)

Points = tuple[tuple[int, ...], ...]  # the values of `POINTS`, in their order


class Part(NamedTuple):
    """The rows of one structure: its values, and a column for each axis of points and each figure.

    `refused` says of each row why there is none of its figures; where a structure itself is refused there is
    one row, without points.
    """

    structure: Mapping[str, Value]
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["refused"])


def part(structure: Mapping[str, Value], program: Program, model: Model, points: Points) -> Part:
    """All points of a structure: their product, the last axis fastest."""
    grid = np.meshgrid(*(np.array(values, dtype=np.int64) for values in points), indexing="ij")
    at = dict(zip(POINTS, (axis.ravel() for axis in grid), strict=True))
    size = at["batch"].size
    columns = {**at, "devices": np.broadcast_to(program.devices, size)}
    columns["refused"] = np.full(size, "", dtype=object)
    decodes = {n == 1 for n in points[1]}
    if len(decodes) == 1:  # all of them in one phase
        with suppress(LlmirError):
            return Part(structure, {**columns, **_nothing(size), **_figures(program, model, **at)})
    columns |= {name: values.copy() for name, values in _nothing(size).items()}
    for one in decodes:
        _fill(columns, np.flatnonzero((at["new"] == 1) == one), program, model)
    return Part(structure, columns)


def _nothing(size: int) -> dict[str, Array]:
    """The figures of rows that have none, read-only."""
    numbers = dict.fromkeys(NUMBERS, np.broadcast_to(np.nan, size))
    return {**numbers, "fits": np.broadcast_to(np.False_, size)}


def refused(structure: Mapping[str, Value], why: object) -> Part:
    """The row of a structure that cannot be."""
    columns: dict[str, Array] = {name: np.full(1, np.nan) for name in (*POINTS, *FIGURES)}
    return Part(structure, {**columns, "refused": np.array([str(why)], dtype=object)})


def _fill(columns: dict[str, Array], rows: Array, program: Program, model: Model) -> None:
    """The figures of some rows; where not all can be priced, of each batch by itself."""
    try:
        found = _figures(program, model, *(columns[name][rows] for name in POINTS))
    except LlmirError as error:
        batches = np.unique(columns["batch"][rows])
        if batches.size == 1:
            columns["refused"][rows] = str(error)
            return
        for batch in batches:
            _fill(columns, rows[columns["batch"][rows] == batch], program, model)
        return
    for name, values in found.items():
        columns[name][rows] = values


def _figures(program: Program, model: Model, batch: Array, new: Array, context: Array) -> dict[str, Any]:
    """What `analyze` says of steps, whether they fit, and their price."""
    found = figures(program, model, batch, new, context)
    interval, hourly = found.pop("interval_s"), model.device.price_per_hour_usd
    if hourly is not None:
        found["cost_usd_per_mtok"] = 1e6 * interval * program.devices * hourly / 3600 / (batch * new)
    return {**found, "fits": fits(program, model, batch, new + context)}
