"""The steps of one structure: a program on a device, at the points of a grid together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.op_time import Model
from llmir.backends.cost.registry import whose
from llmir.base.errors import LlmirError
from llmir.base.values import Array
from llmir.hw.spent import spent
from llmir.ir.core.program import Program

from .axes import POINTS, Value
from .figures import BYTES, SHARES, WORK, Figures
from .fits import Fits

SPENT = "cost_usd_per_mtok", "energy_j_per_token"
NUMBERS = ("time_s", "ideal_time_s", "error", *BYTES, *WORK, *SHARES, *SPENT)
FIGURES = ("devices", "fits", *NUMBERS)

BLOCK = 1 << 18  # points that are evaluated together, and written: 60 MB of figures

Points = tuple[tuple[int, ...], ...]  # the values of `POINTS`, in their order
Grid = tuple[Array, ...]  # the same as arrays of three dimensions, which broadcast together


class Part(NamedTuple):
    """Rows of one structure: its values, and an array for each axis of points and each figure.

    Arrays broadcast to `shape`, whose last axis varies fastest. `refused` says of each row why there is none
    of its figures; where a structure itself is refused it has one row, without points. `basis` is the cost
    model and whose kernels it has.
    """

    structure: Mapping[str, Value]
    shape: tuple[int, ...]
    columns: Mapping[str, Any]
    basis: str = ""

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def column(self, name: str) -> Array:
        """A figure or an axis of points, of each row."""
        return np.broadcast_to(self.columns[name], self.shape).reshape(-1)

    def constant(self, name: str) -> Value:
        """What all of its rows have: an axis of structures, or `basis`."""
        return (self.basis or None) if name == "basis" else self.structure[name]

    @property
    def alone(self) -> bool:
        """Whether it stands for a structure that is refused, which has no points."""
        return bool(np.isnan(np.ravel(self.columns["batch"])[0]))

    @property
    def refusals(self) -> int:
        """How many rows have no figures."""
        said = self.columns["refused"]
        return int(np.count_nonzero(said != "")) if said.ndim else len(self) * bool(said)

    @property
    def why(self) -> str | None:
        """The first reason, if a row has none."""
        return next((str(why) for why in self.columns["refused"].ravel() if why), None)


def refused(structure: Mapping[str, Value], why: object) -> Part:
    """The row of a structure that cannot be."""
    columns: dict[str, Any] = dict.fromkeys((*POINTS, *FIGURES), np.nan)
    return Part(structure, (1, 1, 1), {**columns, "refused": np.array(str(why), dtype=object)})


def grids(points: Points, most: int) -> Iterator[Grid]:
    """The points in pieces of so many, each a grid of its own, in the order of rows."""
    axes = [np.array(values, dtype=np.int64) for values in points]
    sizes = [len(axis) for axis in axes]
    # The first axis that is cut: those before it go one by one, those after it are whole.
    cut = next((i for i in range(len(sizes)) if np.prod(sizes[i + 1 :]) <= most), len(sizes) - 1)
    each = max(1, most // int(np.prod(sizes[cut + 1 :])))
    for outer in np.ndindex(*sizes[:cut]):
        for first in range(0, sizes[cut], each):
            piece = [
                *(axis[i : i + 1] for axis, i in zip(axes, outer, strict=False)),
                axes[cut][first : first + each],
                *axes[cut + 1 :],
            ]
            yield np.meshgrid(*piece, indexing="ij", sparse=True)


class Steps:
    """The steps of a program on a device, as a sweep asks for them."""

    def __init__(self, structure: Mapping[str, Value], program: Program, model: Model) -> None:
        self.structure, self.program, self.model = structure, program, model
        self.figures, self.fits = Figures(program, model), Fits(program, model)

    def part(self, grid: Grid) -> Part:
        """All points of a grid."""
        shape = np.broadcast_shapes(*(axis.shape for axis in grid))
        given = {**dict(zip(POINTS, grid, strict=True)), "devices": self.program.devices}
        found = self._alike(grid)
        if found is None:
            found = {name: np.full(shape, np.nan) for name in NUMBERS}
            found |= {"fits": np.full(shape, np.nan), "refused": np.full(shape, "", dtype=object)}
            self._fill(found, [np.arange(n) for n in shape], grid)
        return Part(self.structure, shape, {**given, **found}, whose(self.model))

    def _alike(self, grid: Grid) -> dict[str, Any] | None:
        """The figures of points that are all of one phase, and none of which is refused."""
        ones = grid[1] == 1
        if np.any(ones) and not np.all(ones):
            return None
        try:
            return {"refused": np.array("", dtype=object), **self._figures(*grid)}
        except LlmirError:
            return None

    def _fill(self, found: Mapping[str, Array], at: Sequence[Array], grid: Grid) -> None:
        """The figures of the points at these places; where not all can be priced, of halves of them."""
        shape = [len(places) for places in at]
        few = self._alike(grid)
        if few is not None:
            for name, values in few.items():
                found[name][np.ix_(*at)] = values
            return
        if why := self._why(grid):
            found["refused"][np.ix_(*at)] = why
            return
        new = grid[1].ravel()
        if 0 < np.count_nonzero(new == 1) < new.size:
            axis, halves = 1, [np.flatnonzero(new == 1), np.flatnonzero(new != 1)]
        else:
            axis = next(i for i, n in enumerate(shape) if n > 1)
            halves = np.array_split(np.arange(shape[axis]), 2)
        for half in halves:
            places, points = [*at], [*grid]
            places[axis], points[axis] = at[axis][half], np.take(grid[axis], half, axis)
            self._fill(found, places, tuple(points))

    def _why(self, grid: Grid) -> str:
        """Why all points of one batch and length are refused, if they are for one reason; else nothing."""
        batch, new, context = (axis.ravel() for axis in grid)
        if batch.size > 1 or new.size > 1:
            return ""
        said = {self._refusal(int(batch[0]), int(new[0]), int(c)) for c in (context[0], context[-1])}
        return said.pop() if len(said) == 1 else ""

    def _refusal(self, batch: int, new: int, context: int) -> str:
        try:
            self._figures(*(np.array(n) for n in (batch, new, context)))
        except LlmirError as error:
            return str(error)
        return ""

    def _figures(self, batch: Array, new: Array, context: Array) -> dict[str, Any]:
        """What `analyze` says of steps, whether they fit, and their price."""
        found: dict[str, Any] = dict(self.figures(batch, new, context))
        with np.errstate(divide="ignore"):  # steps without ops
            rate = batch * new / found.pop("interval_s")
        each = spent(self.model.device, self.program.devices, rate)
        for name, figure in zip(SPENT, (each.usd_per_mtok, each.joules_per_token), strict=True):
            found[name] = np.nan if figure is None else figure
        return {**found, "fits": self.fits(batch, new + context)}
