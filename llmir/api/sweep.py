"""Sweeps: the steps of a model in many structures at many points (`sweep`, `sweep_to`).

A structure is a program on a device; points are batch sizes and lengths.
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

STRUCTURES = 100_000  # a day of them
ROWS = 20_000_000  # in memory: 4 GB
LARGE = 1 << 20  # of them that are evaluated together, where all stay in memory
ROOM = 1 << 19  # rows that wait to be taken from workers: 120 MB


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
    """Each step of a model in all combinations of some axes, which `analyze` would say one by one.

    `model` is what `load` takes, or a program, which is estimated as it is. Axes of the structure are `hw`,
    `engine`, `cost`, the types `weights`, `activations`, `kv` and `collectives`, the ranks `tp`, `pp`,
    `micro_batches`, `dp`, `ep`, `sp` and `redundant_experts`, `dispatch` and `routing`; of points `batch`,
    `new` and `context`. Without `activations` these follow the engine, as in `analyze`. Values are
    numbers and names, or as on the command line, `"1:64:x2"`. `pipeline` are the passes between types and
    ranks, by default the engine's, and `price` what an hour of a device costs, in USD by device. `memory`
    decides what fits: its share that may be used, what is reserved, and the sequences of a step. An
    `executor` of `concurrent.futures` spreads structures over workers, and `progress` is told how many rows
    are done, of how many, and how many are refused. A structure that cannot be is a row that says why, and so
    is one whose worker died twice.

    InputError for axes and values that mean nothing, and what `load` raises.

    >>> found = sweep("llama3.1-8b", {"tp": (1, 3), "batch": "1:16:x4", "context": 1000})
    >>> [row["batch"] for row in found.rows()]
    [1, 4, 16, None]
    >>> found.columns["refused"][-1]
    "shard: axis 'kv_heads' is 8 and cannot be split 3 ways over mesh axis 'tp'; tp can be 1, 2, 4, 8, 16, 32"
    """
    from llmir.backends.search.sweep import Sweep

    asked = _SweepRequest(model, axes, pipeline, price, memory, executor, progress)
    if asked.size > ROWS:
        raise InputError(
            f"{asked.size:,} rows, and memory takes {ROWS:,}; a file takes any number (-o FILE, sweep_to)"
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
    """The rows of `sweep` in a file, or a folder of parts, one for each structure: any number of them.

    A file's suffix says its format: `.csv`, `.jsonl`, `.parquet` or `.arrow`. A path that ends in `/`, or is
    a folder, is one of parts, in `format`, by default `parquet`. Parts are there when they are whole, those
    of a file in a folder beside it, `NAME.parts`, until it is: whoever asks again after an interrupt has what
    is whole read, and the rest computed.

    OutputError for what cannot be written, InputError where all rows are refused, and what `sweep` raises.

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
    """The options of a record that decide whether a step fits; `InputError` for others."""
    given = record_or_default(Memory, memory).given
    if name := next((name for name in given if name not in STEP_MEMORY), None):
        raise InputError(f"{name}: cannot act on one step; leave it out")
    return given


def axis(name: str, said: object, called: str = "") -> tuple[Any, ...]:
    """The values of an axis of a sweep; InputError for an axis that is none. Messages name it `called`.

    >>> axis("tp", "1:8:x2"), axis("kv", "fp8,bf16")
    ((1, 2, 4, 8), ('fp8', 'bf16'))
    """
    from llmir.backends.search.sweep import axis_values

    if name not in AXES:
        raise InputError(f"{name!r} is no axis of a sweep; there are {', '.join(AXES)}{suggest(name, AXES)}")
    return axis_values(called or name, said, AXES[name].least)


# Seconds of a row in memory or in a column of a file, and as text, measured on a million rows; and the number
# of structures that are measured where there are many.
ROW_S, TEXT_ROW_S = 1.5e-6, 2.5e-5
SAMPLE, MANY = 6, 60


class _Task(NamedTuple):
    """Some points of a structure."""

    at: int
    structure: Structure
    grid: Grid

    @property
    def size(self) -> int:
        return prod(len(axis.ravel()) for axis in self.grid)


class _SweepRequest:
    """What a sweep is asked for, checked."""

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
            arguments.refuse("progress", progress, "a function of rows done, of all, and of those refused")
        given = {**({} if "hw" in said else {"hw": "h100-sxm"}), **said}
        given = {**{name: given[name] for name in given if name not in POINTS}, **POINTS, **given}
        self.axes = {name: axis(name, value) for name, value in given.items()}
        self.names = [name for name in self.axes if name not in POINTS]
        self.points: Any = tuple(self.axes[name] for name in POINTS)
        self.count = prod(len(self.axes[name]) for name in self.names)
        self.size = self.count * prod(map(len, self.points))
        if self.count > STRUCTURES:
            raise InputError(f"{self.count:,} structures; a sweep has {STRUCTURES:,} at most")
        source = ModelSource.of(model)
        self.program, self.notes = source.load(), source.notes
        self.pipeline = steps_of(pipeline) if pipeline is not None else () if source.is_program else None
        self.executor, self.progress = executor, progress
        self.memory = step_memory(memory)
        self.devices = _with_prices(self.axes["hw"], {} if price is None else price)
        self.done = self.refused = 0

    def structures(self) -> Iterator[Structure]:
        """All of them, the last axis fastest."""
        for values in product(*(self.axes[name] for name in self.names)):
            yield dict(zip(self.names, values, strict=True))

    def check_work(self, row_s: float) -> None:
        """`InputError` if so many structures, and rows of `row_s` seconds each, are beyond the budget.

        What a structure takes is measured on some of them, since those that a model refuses are quick.
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
        """What its rows follow from, beside the program and what is asked of it."""
        from llmir.hw import library

        engine = None
        with suppress(LlmirError):  # which is a row that says why
            engine = structure.get("engine") and library.engine(structure["engine"])
        return structure, self.devices.get(structure["hw"]), engine

    def tell(self, rows: int, refused: int) -> None:
        """That so many more are done."""
        self.done, self.refused = self.done + rows, self.refused + refused
        if self.progress:
            self.progress(self.done, self.size, self.refused)

    def parts(self, most: int, of: Sequence[int] | None = None) -> Iterator[tuple[int, SweepPart]]:
        """The parts of structures, of so many rows at most, in order.

        One that stands for its structure alone is the last of it.
        """
        from llmir.backends.search.sweep import LOST, Workers, rejected_row

        call = partial(_part, uuid4().hex, self.program, self.pipeline, self.devices, self.memory)
        ended = -1
        for task, part in Workers[_Task, "SweepPart"](call, self.executor, ROOM).results(
            self._tasks(most, of)
        ):
            found = rejected_row(task.structure, LOST) if part is None else part
            if task.at == ended:  # more points of a structure that has none
                self.tell(task.size, 0)
                continue
            yield task.at, found
            ended = task.at if found.alone else ended
            self.tell(task.size, found.refusals)

    def _tasks(self, most: int, of: Sequence[int] | None) -> Iterator[_Task]:
        from llmir.backends.search.sweep import row_grids

        kept = None if of is None else {*of}
        most = most if self.executor is None else ROOM // 8  # so that several work on one structure
        for index, structure in enumerate(self.structures()):
            if kept is None or index in kept:
                for grid in row_grids(self.points, most):
                    yield _Task(index, structure, grid)


def _with_prices(names: Iterable[Any], prices: Mapping[str, float]) -> dict[str, Device]:
    """The devices that there are among these, at prices that are stated; none is there twice."""
    from llmir.hw import library

    found = {}
    for name in names:
        with suppress(LlmirError):  # which is a row that says why
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
    """The rows of a task."""
    from llmir.backends.search.sweep import SweepPart

    known = sweep, task.at
    steps = _STEPS.get(known)
    if steps is None:
        while len(_STEPS) >= KEPT:
            _STEPS.pop(next(iter(_STEPS)), None)
        steps = _STEPS[known] = _steps(program, pipeline, devices, memory, task.structure)
    return steps if isinstance(steps, SweepPart) else steps.part(task.grid)


# Of structures that were lowered last: their points come in pieces.
_STEPS: dict[tuple[str, int], SweepSteps | SweepPart] = {}
KEPT = 4


def _steps(
    program: Program,
    pipeline: tuple[Step, ...] | None,
    devices: Mapping[str, Device],
    memory: Mapping[str, Any],
    structure: Structure,
) -> SweepSteps | SweepPart:
    """The steps of a structure, or the row that says why there are none."""
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
