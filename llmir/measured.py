"""The Python face of what was measured: predictions beside times, and fits to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import convert
from .api import checked_program, load, run
from .errors import InputError
from .graph import Program

if TYPE_CHECKING:
    from .backends.silicon.calibrate import Overheads
    from .backends.silicon.validate import Layout, Validation
    from .hw import Device


def validate(
    *files: str | os.PathLike[str],
    program: Program | None = None,
    hw: Any = None,
    batch: int = 1,
    engine: str | None = None,
    unit: str = "",
    cost: str = "calibrated",
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Validation:
    """Rows measured elsewhere beside their predictions, with error statistics.

    The CSV files are tables of kernels or of whole models (docs/validate.md says which columns), or chat logs
    (`input_tokens, output_tokens`) of a `program` on `hw`, whose requests an `engine` ran in batches of
    `batch`, with times in a `unit` (s, ms or us) where their columns name none. `cost` is the cost model:
    `calibrated`, by the kernels of each row's engine, or `ideal`. `tell` hears of progress: file, rows done,
    rows in all. InputError for a file that is none of these.
    """
    from .backends.cost import model
    from .backends.silicon.validate import Chat, priced_by
    from .backends.silicon.validate import validate as run_all
    from .hw import load as device

    paths = [convert.path("files", file) for file in files]
    batch = convert.integer("batch", batch, 1)
    engine = None if engine is None else convert.text("engine", engine)
    if not callable(tell):
        convert.refuse("tell", tell, "a function of a file's name, rows done and rows in all")
    if (program is None) != (hw is None):
        raise InputError("validate: a chat log needs both, a program and the hw that it ran on")
    if engine and hw is None:
        raise InputError(f"validate: engine {engine!r} is of chat logs; other tables name their own")
    if engine:
        model(device(hw), cost, engine)  # or an error
    on = None if program is None else Chat(checked_program(program), device(hw), engine or "", batch, unit)
    return run_all(paths, _built, on=on, pricing=priced_by(cost), tell=tell)


def overheads(
    path: str | os.PathLike[str], known: Callable[[Device], Device] = lambda device: device
) -> list[Overheads]:
    """What engines add to their kernels, fitted to a CSV table of whole models, once for each engine.

    `known` gives a device with another calibration than its own.
    """
    from .backends.silicon.calibrate import overheads

    return overheads(convert.path("path", path), _built, known)


def _built(layout: Layout) -> Program:
    """The program of a measured row, as an engine would run it."""
    from .passes import DEFAULT_PIPELINE
    from .passes.quantize import Quantize
    from .passes.shard import Shard
    from .passes.stages import Stages

    types = Quantize(weights=layout.weights, activations=layout.activations, kv=layout.kv)
    over = Shard(tp=layout.tp, dp=layout.dp, ep=layout.ep)
    return run(load(layout.model), [types, Stages(layout.pp), DEFAULT_PIPELINE, over])
