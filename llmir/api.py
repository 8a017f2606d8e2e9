"""The Python face: load a model, run passes, price a step or a whole request, draw it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, PassError
from .graph import Program
from .pipeline import Pass, Step, parse_pipeline, run_passes

if TYPE_CHECKING:
    from .backends.analysis.diff import StepDiff, WorkloadDiff
    from .backends.analysis.report import Report
    from .backends.analysis.workload import Workload
    from .backends.cost import CostModel, Model
    from .backends.silicon.calibrate import Overheads
    from .backends.silicon.validate import Layout, Validation
    from .hw import Device


def load(model: object, logits: str = "last", *, lenient: bool = False) -> Program:
    """The unfused, unsharded program of a model, quantized if its config says that its checkpoint is.

    `model` is a preset's name or HF id, a path to a config.json or its folder, a dict, or an object with
    `.to_dict()`; `logits` is `last` (one position a sequence) or `all`. `lenient` turns config fields that
    llmir does not model from errors into notes. Raises `ConfigError`, or `UnsupportedError`.
    """
    from .frontends import load as read

    program = read(model, logits=logits, lenient=lenient)
    stored = program.facts.get("quantization")
    return run(program, stored) if isinstance(stored, str) else program


def run(program: Program, pipeline: str | Step | Iterable[Step]) -> Program:
    """`program` after a pipeline: a string such as `"fuse-attention,fuse"`, a pass, a function, or a list.

    Verified before the first pass and after every one; raises `PassError`.
    """
    steps: list[Any] = [pipeline]
    if isinstance(pipeline, Iterable) and not isinstance(pipeline, str):
        steps = list(pipeline)
    passes: list[Pass | Callable[[Program], Program]] = []
    for step in steps:
        if not isinstance(step, (str, Pass)) and (isinstance(step, type) or not callable(step)):
            raise PassError(f"a pass is a name, a Pass, or a function from program to program, got {step!r}")
        passes += parse_pipeline(step) if isinstance(step, str) else [step]
    return run_passes(_program(program), passes)


def analyze(
    program: Program,
    hw: Any,
    *,
    batch: Any = 1,
    new: Any = 1,
    context: Any = 0,
    beside: Iterable[Mapping[str, Any]] = (),
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Report:
    """One step on a device: `batch` sequences of `new` tokens each, with `context` tokens cached.

    Any of the three may be an array; figures are then arrays of their broadcast shape. `beside` are other
    sequences in the same step, such as `[{"batch": 1, "new": 512}]`, a chunk of a prefill beside decodes.
    `cost` is the cost model: `calibrated` (the default where kernels were measured, on the device or on a
    relative), by the kernels of an `engine`; `ideal`; a plugin's; or an object of yours with `price(row)`
    (`llmir.CostModel`). Or `efficiency` gives shares of the roofline's rates, such as `{"memory": 0.8}`.
    """
    from .backends.analysis.report import Report

    model = _model(hw, cost, engine, efficiency)
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context, "beside": beside}
    return Report(_program(program), model.device, **at, model=model)


def workload(
    program: Program,
    hw: Any,
    *,
    batch: int = 1,
    prompt: int = 2048,
    generate: int = 128,
    memory_utilization: float = 0.9,
    reserve_bytes: int = 0,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Workload:
    """A batch of requests, from prompt to last token; its `to_dict()` is the JSON report.

    `cost`, `engine` and `efficiency` are as in `analyze`.
    """
    from .backends.analysis.workload import Workload

    model = _model(hw, cost, engine, efficiency)
    asked = batch, prompt, generate, memory_utilization, reserve_bytes
    return Workload(_program(program), model.device, *asked, model)


def diff(
    before: Any,
    after: Any,
    hw: Any = None,
    *,
    hw_after: Any = None,
    batch: int = 1,
    new: int = 1,
    context: int = 0,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> StepDiff | WorkloadDiff:
    """What one step of two programs differs in, op by op; with `to_dict()`.

    Both sides are priced alike: calibrated, by one engine's kernels, where all ops of both have some, else by
    the roofline, as `basis` says; `cost`, `engine` and `efficiency` are as in `analyze`. `hw_after` is the
    device of the other side, if that is another. Also of two reports, or of two workloads, which know their
    device and step: all else is left out, and InputError if only the times of one are measured.
    """
    from .backends.analysis.common import common
    from .backends.analysis.diff import diff, steps
    from .backends.analysis.report import Report
    from .hw import load

    if hw is None:
        if cost is not None or engine or efficiency or hw_after is not None:
            raise InputError("diff: two reports or workloads are priced already; give two programs and hw")
        return diff(before, after)
    devices = load(hw), load(hw if hw_after is None else hw_after)
    sides = list(zip(map(_program, (before, after)), devices, strict=True))
    basis = common(sides, cost, engine, efficiency)
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context}
    reports = [Report(p, m.device, **at, model=m) for (p, _), m in zip(sides, basis.models, strict=True)]
    return steps(reports[0], reports[1], basis.why)


def validate(
    *files: str | os.PathLike[str],
    program: Program | None = None,
    hw: Any = None,
    batch: int = 1,
    engine: str | None = None,
    cost: str = "calibrated",
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Validation:
    """Rows measured elsewhere beside their predictions, with error statistics.

    The CSV files are tables of kernels or of whole models (docs/validate.md says which columns), or chat logs
    (`input_tokens, output_tokens`) of a `program` on `hw`, whose requests an `engine` ran in batches of
    `batch`. `cost` is the cost model: `calibrated`, by the kernels of each row's engine, or `ideal`. `tell`
    hears of progress: file, rows done, rows in all. InputError for a file that is none of these.
    """
    from .backends.cost import model
    from .backends.silicon.validate import Chat, priced_by
    from .backends.silicon.validate import validate as run_all
    from .hw import load as device

    if (program is None) != (hw is None):
        raise InputError("validate: a chat log needs both, a program and the hw that it ran on")
    if engine and hw is None:
        raise InputError(f"validate: engine {engine!r} is of chat logs; other tables name their own")
    if engine:
        model(device(hw), cost, engine)  # or an error
    on = None if program is None else Chat(_program(program), device(hw), engine or "", batch)
    return run_all([Path(f) for f in files], _built, on=on, pricing=priced_by(cost), tell=tell)


def overheads(
    path: str | os.PathLike[str], known: Callable[[Device], Device] = lambda device: device
) -> list[Overheads]:
    """What engines add to their kernels, fitted to a CSV table of whole models, once for each engine.

    `known` gives a device with another calibration than its own.
    """
    from .backends.silicon.calibrate import overheads

    return overheads(Path(path), _built, known)


def _built(layout: Layout) -> Program:
    """The program of a measured row, as an engine would run it."""
    from .passes import DEFAULT_PIPELINE
    from .passes.quantize import Quantize
    from .passes.shard import Shard
    from .passes.stages import Stages

    types = Quantize(weights=layout.weights, activations=layout.activations, kv=layout.kv)
    over = Shard(tp=layout.tp, dp=layout.dp, ep=layout.ep)
    return run(load(layout.model), [types, Stages(layout.pp), DEFAULT_PIPELINE, over])


def draw(
    job: Report | Workload, path: str | os.PathLike[str], *, level: str = "layer", phase: str = "both"
) -> Path:
    """A picture of a report or workload; the suffix says how: `.svg`, `.png`, `.pdf`, or `.dot` (`.gv`).

    `level` is `overview`, `layer` (every op of one layer) or `full` (every op of every layer); `phase` is
    `prefill`, `decode` or `both` steps of a workload, and a report is one step anyway. Returns the path
    written: without Graphviz's `dot` that is its input, `.dot`, and a warning. Raises `OutputError`.
    """
    from .backends.export.dot import draw

    return draw(job, path, level=level, phase=phase)


def _model(
    hw: Any, cost: str | CostModel | None, engine: str | None, efficiency: Mapping[str, float] | None
) -> Model:
    from .backends.cost import model
    from .hw import load

    return model(load(hw), cost, engine, efficiency)


def _program(program: object) -> Program:
    if not isinstance(program, Program):
        raise InputError(f"expected a Program, such as llmir.load gives, got {type(program).__name__}")
    return program
