"""The steps of one structure: a program on a device, at all points of a grid together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.costs import BUBBLE
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.cost import BOUNDS, Model
from llmir.errors import LlmirError
from llmir.frozen import Array
from llmir.graph import Program

from .axes import POINTS, Value

BYTES = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")
WORK = ("flops", "read_bytes", "write_bytes", "comm_bytes")
SHARES = tuple(f"{bound}_share" for bound in (*BOUNDS, BUBBLE))
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
    columns = {**at, **{name: np.full(size, np.nan) for name in NUMBERS}}
    columns |= {"devices": np.full(size, program.devices), "fits": np.zeros(size, dtype=bool)}
    columns["refused"] = np.full(size, "", dtype=object)
    for decodes in (True, False):
        rows = np.flatnonzero((at["new"] == 1) == decodes)
        if rows.size:
            _fill(columns, rows, program, model)
    return Part(structure, columns)


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
    """What `analyze` says of a step, the share of it that each bound accounts for, and its price.

    Whether it fits is whether so many requests of that length do, all together, by the engine's rule.
    """
    report = Report(program, model.device, batch=batch, new=new, context=context, model=model)
    found = {name: getattr(report, name) for name in ("time_s", "ideal_time_s", *BYTES, *WORK)}
    bounds = {f"{bound}_share": share for bound, share in report.bound.items()}
    error, hourly = report.error, model.device.price_per_hour_usd
    if hourly is not None:
        usd = report.interval_s * program.devices * hourly / 3600
        found["cost_usd_per_mtok"] = 1e6 * usd / (batch * new)
    return {
        **found,
        **bounds,
        "error": np.nan if error is None else error,
        "fits": batch <= _most(program, model, new + context),
    }


def _most(program: Program, model: Model, lengths: Array) -> Array:
    """The largest batch of requests of each length."""
    each, places = np.unique(lengths, return_inverse=True)
    batch = program.micro_batches * program.parallelism.dp
    jobs = (
        Workload(program, model.device, batch=batch, prompt=int(n), generate=1, model=model) for n in each
    )
    return np.array([job.max_batch for job in jobs])[places]
