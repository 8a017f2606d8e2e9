"""Sweeps: steps of a model in many structures at many points (`sweep`, `sweep_to`).

A structure is a program on a device. Points are batch sizes and lengths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from itertools import groupby, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from llmir.base import arguments
from llmir.base.budget import check_work
from llmir.base.errors import InputError, LlmirError
from llmir.base.names import suggest
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import steps_of

from .load import ModelSource, run
from .options import AXES, STEP_MEMORY, Memory, record_or_default

if TYPE_CHECKING:
    from llmir.backends.export.sweep import SweepFile
    from llmir.backends.search.sweep import Grid, Sweep, SweepPart, SweepSteps
    from llmir.hw.device import Device
    from llmir.ir.tools.pipeline import Step

Structure = Mapping[str, Any]
Progress = Callable[[int, int, int], object]

STRUCTURES = 100_000  # about a day of computing
ROWS = 20_000_000  # 4 GB in memory
LARGE = 1 << 20  # rows evaluated together if all rows stay in memory
ROOM = 1 << 19  # rows of workers that wait for the caller: 120 MB


def sweep(
    model: object,
    axes: Mapping[str, object],
    *,
    pipeline: Step | Sequence[Step] | None = None,
    price: Mapping[str, float] | None = None,
    memory: Memory | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Estimate the steps of a model for all combinations of several axes.

    Each row equals the result of `analyze`. An impossible structure is one row, with the reason in the column
    `refused`. So is a structure whose worker crashed twice.

    Args:
        model: A model as in `load`, or a program, which is estimated as it is.
        axes: Values by axis: numbers, names, or ranges such as `"1:64:x2"`. Axes of the structure are `hw`,
            `engine`, `cost`; the dtypes `weights`, `activations`, `kv` and `collectives`; the ranks `tp`,
            `pp`, `micro_batches`, `dp`, `ep`, `sp` and `redundant_experts`; `dispatch` and `routing`. Axes of
            points are `batch`, `new` and `context`. Without `activations`, these follow the engine.
        pipeline: The passes between dtypes and ranks. The default is the engine's passes.
        price: Dollars per hour by device name.
        memory: The usable memory, the reserves and the sequences of a step, which decide whether a point fits
            (`Memory`).
        executor: An executor of `concurrent.futures` that runs structures in parallel.
        progress: Called with the rows done, the number of rows and the rows refused.

    Returns:
        A `Sweep`.

    Raises:
        InputError: An axis or a value is invalid. `load` raises its own errors.

    >>> found = sweep("llama3.1-8b", {"tp": (1, 3), "batch": "1:16:x4", "context": 1000})
    >>> [row["batch"] for row in found.rows()]
    [1, 4, 16, None]
    >>> found.columns["refused"][-1]
    'shard: tp 3: 8 KV heads of the model cannot be split 3 ways; allowed: 1, 2, 4, 8, 16, 32'
    """
    from llmir.backends.search.sweep import Sweep

    asked = _SweepRequest(model, axes, pipeline, price, memory, executor, progress)
    if asked.size > ROWS:
        raise InputError(
            f"{asked.size:,} rows, more than the {ROWS:,} in memory; write them to a file (-o FILE, sweep_to)"
        )
    asked.check_work(ROW_S)
    found: dict[int, list[SweepPart]] = {}
    for index, part in asked.parts(LARGE):
        found[index] = [part] if part.alone else [*found.get(index, ()), part]
    parts = [part for parts in found.values() for part in parts]
    return Sweep(asked.axes, parts, asked.program.title, asked.notes)


def sweep_to(
    path: str | os.PathLike[str],
    model: object,
    axes: Mapping[str, object],
    *,
    format: str | None = None,
    pipeline: Step | Sequence[Step] | None = None,
    price: Mapping[str, float] | None = None,
    memory: Memory | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> SweepFile:
    """Write the rows of `sweep` to a file, or to a folder with one part for each structure.

    The number of rows is not limited by memory. Parts appear when they are complete. The parts of a single
    file are first written to a folder next to it, `NAME.parts`. If you repeat an interrupted call, it reads
    the complete parts and computes the others.

    Args:
        path: A file with the suffix `.csv`, `.jsonl`, `.parquet` or `.arrow`; or a folder, whose path exists
            or ends in `/`.
        model, axes: As in `sweep`.
        format: The format of a folder. The default is `parquet`.
        pipeline, price, memory, executor, progress: As in `sweep`.

    Returns:
        A `SweepFile`.

    Raises:
        OutputError: The path cannot be written.
        InputError: All rows are refused, or an argument is invalid as in `sweep`.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/grid.csv"
    >>> sweep_to(file, "llama3.1-8b", {"tp": (1, 3), "batch": "1:16:x4", "context": 1000}).rows
    4
    """
    from llmir.backends.export.sweep import SweepFolder
    from llmir.backends.search.sweep import BLOCK, content_key

    folder = SweepFolder.of(path, format)
    asked = _SweepRequest(model, axes, pipeline, price, memory, executor, progress)
    same = content_key(asked.program, asked.pipeline, asked.points, [*asked.axes], folder.form, asked.memory)
    asked.check_work(TEXT_ROW_S if folder.form in ("csv", "jsonl") else ROW_S)
    with folder.opened(asked.axes):
        try:
            for index, structure in enumerate(asked.structures()):
                if rows := folder.find(index, content_key(same, asked.basis(structure))):
                    asked.tell(prod(map(len, asked.points)), rows.refused)
            todo = [i for i in range(asked.count) if i not in folder.found]
            for index, parts in groupby(asked.parts(BLOCK, todo), key=lambda each: each[0]):
                folder.add(index, (part for _, part in parts))
            return folder.whole()
        except KeyboardInterrupt as stop:
            raise type(stop)(folder.left(asked.count)) from None


def step_memory(memory: Memory | None) -> dict[str, Any]:
    """The options of a record that decide whether a step fits; InputError for other options."""
    given = record_or_default(Memory, memory).given
    if name := next((name for name in given if name not in STEP_MEMORY), None):
        raise InputError(f"{name}: has no effect on one step; leave it out")
    return given


def axis(name: str, said: object, called: str = "") -> tuple[Any, ...]:
    """Parse the values of a sweep axis; InputError for an unknown axis. Messages name it `called`.

    >>> axis("tp", "1:8:x2"), axis("kv", "fp8,bf16")
    ((1, 2, 4, 8), ('fp8', 'bf16'))
    """
    from llmir.backends.search.sweep import axis_values

    if name not in AXES:
        raise InputError(
            f"{name!r} is not an axis of a sweep; the axes are {', '.join(AXES)}{suggest(name, AXES)}"
        )
    return axis_values(called or name, said, AXES[name].least)


# Seconds per row, in memory or a columnar file and as text, measured on a million rows. Then the number of
# structures that are timed as a sample if there are at least `MANY`.
ROW_S, TEXT_ROW_S = 1.5e-6, 2.5e-5
SAMPLE, MANY = 6, 60


class _Task(NamedTuple):
    """Some of the points of a structure."""

    at: int
    structure: Structure
    grid: Grid

    @property
    def size(self) -> int:
        return prod(len(axis.ravel()) for axis in self.grid)


class _SweepRequest:
    """The checked arguments of a sweep."""

    def __init__(
        self,
        model: object,
        axes: Mapping[str, object],
        pipeline: Step | Sequence[Step] | None,
        price: Mapping[str, float] | None,
        memory: Memory | None,
        executor: Executor | None,
        progress: Progress | None,
    ) -> None:
        from llmir.backends.search.sweep import POINTS

        said = arguments.mapping("axes", axes, "axes by name")
        if executor is not None and not isinstance(executor, Executor):
            arguments.refuse("executor", executor, "an Executor of concurrent.futures")
        if progress is not None and not callable(progress):
            arguments.refuse(
                "progress", progress, "a function of the numbers of finished, total and refused rows"
            )
        given = {**({} if "hw" in said else {"hw": "h100-sxm"}), **said}
        given = {**{name: given[name] for name in given if name not in POINTS}, **POINTS, **given}
        self.axes = {name: axis(name, value) for name, value in given.items()}
        self.names = [name for name in self.axes if name not in POINTS]
        self.points: Any = tuple(self.axes[name] for name in POINTS)
        self.count = prod(len(self.axes[name]) for name in self.names)
        self.size = self.count * prod(map(len, self.points))
        if self.count > STRUCTURES:
            raise InputError(f"{self.count:,} structures; the limit of a sweep is {STRUCTURES:,}")
        source = ModelSource.of(model)
        self.program, self.notes = source.load(), source.notes
        self.pipeline = steps_of(pipeline) if pipeline is not None else () if source.is_program else None
        self.executor, self.progress = executor, progress
        self.memory = step_memory(memory)
        self.devices = _with_prices(self.axes["hw"], {} if price is None else price)
        self.done = self.refused = 0

    def structures(self) -> Iterator[Structure]:
        """All structures; the last axis varies fastest."""
        for values in product(*(self.axes[name] for name in self.names)):
            yield dict(zip(self.names, values, strict=True))

    def check_work(self, row_s: float) -> None:
        """Raise InputError if the structures and rows exceed the work budget; a row takes `row_s` seconds.

        The time per structure is measured on a sample, because rejected structures are quick.
        """
        some = [*self.structures()][:: max(1, self.count // SAMPLE)][:SAMPLE] if self.count > MANY else []
        start = time.process_time()
        for structure in some:
            _steps(self.program, self.pipeline, self.devices, self.memory, structure)
        each = (time.process_time() - start) / max(1, len(some))
        jobs = getattr(self.executor, "_max_workers", 1)
        what = f"a sweep of {self.count:,} structures and {self.size:,} rows"
        seconds = (self.count * each + self.size * row_s) / jobs
        check_work(what, "use fewer values", seconds=seconds)

    def basis(self, structure: Structure) -> tuple[object, ...]:
        """The values on which a structure's rows depend, apart from the program and the arguments of the
        sweep.
        """
        from llmir.hw import library

        engine = None
        with suppress(LlmirError):  # the row of this structure shows the error
            engine = structure.get("engine") and library.engine(structure["engine"])
        return structure, self.devices.get(structure["hw"]), engine

    def tell(self, rows: int, refused: int) -> None:
        """Report that more rows are done."""
        self.done, self.refused = self.done + rows, self.refused + refused
        if self.progress:
            self.progress(self.done, self.size, self.refused)

    def parts(self, most: int, of: Sequence[int] | None = None) -> Iterator[tuple[int, SweepPart]]:
        """Evaluate the parts of all structures in order, each with at most `most` rows.

        If a part stands for a rejected structure, it is the last part of this structure.
        """
        from llmir.backends.search.sweep import LOST, Workers, rejected_row

        call = partial(_part, uuid4().hex, self.program, self.pipeline, self.devices, self.memory)
        ended = -1
        for task, part in Workers[_Task, "SweepPart"](call, self.executor, ROOM).results(
            self._tasks(most, of)
        ):
            found = rejected_row(task.structure, LOST) if part is None else part
            if task.at == ended:  # more points of a rejected structure
                self.tell(task.size, 0)
                continue
            yield task.at, found
            ended = task.at if found.alone else ended
            self.tell(task.size, found.refusals)

    def _tasks(self, most: int, of: Sequence[int] | None) -> Iterator[_Task]:
        from llmir.backends.search.sweep import row_grids

        kept = None if of is None else {*of}
        most = most if self.executor is None else ROOM // 8  # so that several workers share one structure
        for index, structure in enumerate(self.structures()):
            if kept is None or index in kept:
                for grid in row_grids(self.points, most):
                    yield _Task(index, structure, grid)


def _with_prices(names: Iterable[Any], prices: Mapping[str, float]) -> dict[str, Device]:
    """The known devices among the names, with the given prices; InputError for duplicates."""
    from llmir.hw import library

    found = {}
    for name in names:
        with suppress(LlmirError):  # the row of this structure shows the error
            found[name] = library.load(name)
    library.check_unique([*found.values()])
    return dict(zip(found, library.with_prices(found.values(), prices), strict=True))


def _part(
    sweep: str,
    program: Program,
    pipeline: tuple[Step, ...] | None,
    devices: Mapping[str, Device],
    memory: Mapping[str, Any],
    task: _Task,
) -> SweepPart:
    """Evaluate the rows of one task."""
    from llmir.backends.search.sweep import SweepPart

    known = sweep, task.at
    steps = _STEPS.get(known)
    if steps is None:
        while len(_STEPS) >= KEPT:
            _STEPS.pop(next(iter(_STEPS)), None)
        steps = _STEPS[known] = _steps(program, pipeline, devices, memory, task.structure)
    return steps if isinstance(steps, SweepPart) else steps.part(task.grid)


# The structures lowered last, because the points of one structure are evaluated in pieces.
_STEPS: dict[tuple[str, int], SweepSteps | SweepPart] = {}
KEPT = 4


def _steps(
    program: Program,
    pipeline: tuple[Step, ...] | None,
    devices: Mapping[str, Device],
    memory: Mapping[str, Any],
    structure: Structure,
) -> SweepSteps | SweepPart:
    """The steps of a structure, or a row with the reason why it is rejected."""
    from llmir.backends.cost.models import model
    from llmir.backends.search.sweep import SweepSteps, rejected_row
    from llmir.hw.library import load as load_device

    from .deployment import Deployment, passes_of

    try:
        hw = devices.get(structure["hw"]) or load_device(structure["hw"])
        priced = model(hw, structure.get("cost"), structure.get("engine"), None)
        deployed = Deployment.of(structure)
        passes = (passes_of(priced.runs),) if pipeline is None else pipeline
        return SweepSteps(structure, run(program, deployed.around(*passes, model=priced)), priced, memory)
    except LlmirError as error:
        return rejected_row(structure, error.__cause__ or error if pipeline is None else error)
