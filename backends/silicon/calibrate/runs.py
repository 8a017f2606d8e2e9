"""Measured runs of whole models as sums of steps, for the fit of engine CPU time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.transfer import same_chip
from llmir.backends.kernels.engine_cpu import RunShape, StepShape
from llmir.backends.request import closed_loop
from llmir.backends.request.closed_loop import ClosedLoop
from llmir.backends.request.workload import LONGEST, Workload
from llmir.backends.silicon.closed_loop import InteractiveRun, has_simulator
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import load
from llmir.backends.silicon.validate.estimates import IDEAL, CostModelChoice, cost_model_choice, with_graphs
from llmir.backends.silicon.validate.requests import MeasuredRequest, ModelSetup, measured_request
from llmir.backends.simulate.step_times import Chunks
from llmir.backends.step.evaluate import (
    MixedStepEvaluator,
    StepEvaluator,
    collective_skew,
    mixed_step_evaluator,
    step_evaluator,
)
from llmir.backends.step.report import Report
from llmir.backends.step.sizes import phase_of
from llmir.base.errors import InputError, LlmirError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding

TABLES = "e2e*.csv"  # tables of whole models
JUDGED = ("static_batch_latency", "static_batch_throughput", "serving_closed_loop", "serving_max_throughput")

CALIBRATED = cost_model_choice("calibrated")

Build = Callable[[ModelSetup], Program]
Known = Callable[[Device], Device]


class RunMeasurement(NamedTuple):
    """A measured figure of a run: the steps that the run consists of, and its time in seconds.

    `versions` is the engine's range of versions; empty if the engine is not bundled. `release` is the engine
    with its exact version. `served` is true for a server whose requests arrive one by one, and false for one
    batch. `serial` is true if each step starts after the previous one ends.
    """

    engine: str
    versions: tuple[str, ...]
    device: str
    model: str
    tp: int
    shape: RunShape
    seconds: float
    release: str = ""
    served: bool = False
    serial: bool = False


def runs(folder: Path, build: Build, known: Known = lambda device: device) -> list[RunMeasurement]:
    """The runs of a folder's tables that can be used to fit engine CPU time.

    `known` returns a device with another calibration than its own.

    Raises:
        InputError: The tables contain no usable run.
    """
    return runs_of(sorted(folder.glob(TABLES)), build, known)


def runs_of(
    paths: Sequence[Path], build: Build, known: Known = lambda device: device
) -> list[RunMeasurement]:
    """The runs of some tables, as in `runs`."""
    build = cache(build)
    found = [run for path in paths for run in _runs(path, build, known)]
    if not found:
        files = ", ".join(path.name for path in paths) or TABLES
        raise InputError(f"{files}: no run of a known model on a calibrated device")
    return found


def _runs(path: Path, build: Build, known: Known) -> Iterator[RunMeasurement]:
    format, t = load(path)
    if format.name != "model":
        of = f"this is one of {format.name}"
        raise InputError(f"{path.name}: engines are fitted to a table of whole models, {of}")
    machines = DeviceLookup(path.parent)
    for i in range(len(t)):
        if t["kind"][i] not in JUDGED or t["unfit"][i]:
            continue
        try:
            asked, device = measured_request(t, i), known(machines(t["gpu"][i]))
            if not same_chip(device):  # with kernels of another device, the residual is not CPU time
                continue
            engine = asked.layout.engine
            name = engine.partition("@")[0]
            versions = library.engine(engine).versions if name in library.engines() else ()
            program, layout = build(asked.layout), asked.layout
            for metric, seconds in asked.figures.items():
                if (
                    asked.serving and metric == "ttft"
                ):  # includes an API server and a client, which are not engine CPU time
                    continue
                shape, count = _shape(metric, asked, program, device, engine)
                whose = name, versions, device.name, layout.model, layout.tp
                how = asked.serving, asked.manner.ahead is False
                yield RunMeasurement(*whose, shape, count * seconds, engine, *how)
        except LlmirError:
            continue


def _shape(
    metric: str, asked: MeasuredRequest, program: Program, device: Device, engine: str
) -> tuple[RunShape, float]:
    """A run as its steps, and the factor between the figure and the time of these steps.

    A closed loop and the largest throughput are computed in the steady state with the current engine CPU
    time.
    """
    prompt, generate = asked.prompt, asked.generate
    model = with_graphs(_model(device, engine), asked.manner.graphs)

    def job(by: CostModelChoice, batch: int) -> Workload:
        sizes = batch, prompt, generate
        return by.workload(program, device, engine, sizes, asked.chunk, asked.manner)

    if asked.serving and has_simulator(mine := job(CALIBRATED, 1)):
        return _loop_figure(InteractiveRun(mine, asked.batch, asked.manner), metric, model), 1
    if asked.serving or metric == "token":
        users = ClosedLoop(job(CALIBRATED, 1), asked.batch or LONGEST)
        return _loop(users, model), users.in_flight if metric == "token" else 1
    within = closed_loop.fitting_requests(job(IDEAL, 1), asked.batch)
    waves = asked.batch / within if metric == "e2e" else 1

    def steps(count: float, prompts: int, new: int, cached: int) -> StepShape:
        return step_shape(step_evaluator(program, model), Binding(B=prompts, T=new, C=cached)).times(
            waves * count
        )

    tokens = {"e2e": generate - 1, "ttft": 0, "tpot": 1}[metric]
    decode = steps(tokens, within, 1, prompt + generate // 2)
    read = job(CALIBRATED, within).chunks if metric in ("e2e", "ttft") else ()
    return RunShape(decode, _sum(steps(c.steps, c.prompts, c.new, c.middle) for c in read)), 1


def _loop(loop: ClosedLoop, model: DeviceCostModel) -> RunShape:
    """The mean time between two tokens in a closed loop."""
    decode, *reads = loop.state.turns
    first = _of(loop.step(decode.decoding), model)
    steps = []
    for turn in reads:
        whole = sum(chunk.steps for chunk in turn.chunks)
        for chunk in turn.chunks:
            step = _of(loop.read(turn.decoding, chunk._replace(cached=chunk.middle)), model)
            steps.append(step.times(turn.share * chunk.steps / whole))
    return RunShape(first.times(decode.share), _sum(steps))


def _loop_figure(loop: InteractiveRun, metric: str, model: DeviceCostModel) -> RunShape:
    """A figure of a closed loop: similar steps are grouped, and one step represents each group; the remaining
    time is added.
    """
    weights = loop.weights(metric)
    _, _, steps, decodes, kept, new, *_ = loop.events
    reads = np.flatnonzero(new)
    number = dict(zip(reads.tolist(), loop.reads, strict=True))
    parts = []
    for events, alike in ((np.flatnonzero(new == 0), 4), (reads, 8)):
        shapes = []
        for some in np.array_split(events[np.lexsort((decodes[events], new[events]))], alike):
            if not (whole := float(weights[some] @ steps[some])):
                continue
            one = int(some[np.searchsorted(np.cumsum(weights[some] * steps[some]), whole / 2)])
            middle = int(kept[one] + decodes[one] * (steps[one] - 1) // 2)
            at = number.get(one, (int(decodes[one]), middle, ()))
            shapes.append(step_shape(*_point(loop.job.program, model, *at)).times(whole))
        parts.append(_sum(shapes))
    found = RunShape(*parts)
    host = loop.job.prefill.plan.host
    known = float(host.seconds(loop.job.device, found)) if host else 0.0
    seconds = loop.ttft_s if metric == "ttft" else loop.tpot_s
    return replace(found, idle=seconds - known)


def _point(
    program: Program, model: DeviceCostModel, decodes: int, kept: int, chunks: Chunks
) -> tuple[StepEvaluator, Binding | MixedBinding]:
    """The evaluator and the sizes of a step in which all decoding sequences have the same context."""
    parts = [Binding(B=decodes, T=1, C=kept / decodes)] if decodes else []
    parts += [Binding(B=n, T=new, C=cached) for (new, cached), n in Counter(chunks).items()]
    phases = [phase_of(part.symbols["T"]) for part in parts]
    at = parts[0] if len(parts) == 1 else MixedBinding(parts, phases if program.splits else ())
    both = len(set(phases)) > 1 and program.splits
    of = program.phase("prefill" if "prefill" in phases else "decode")
    return (mixed_step_evaluator if both else step_evaluator)(of, model), at


def _sum(steps: Iterable[StepShape]) -> StepShape:
    """The sum of several steps."""
    sums = np.zeros(len(fields(StepShape)))
    for step in steps:
        sums += list(vars(step).values())
    return StepShape(*map(float, sums))


def _of(report: Report, model: DeviceCostModel) -> StepShape:
    """The step of a report, estimated again with the kernels of a cost model."""
    both = isinstance(report.plan, MixedStepEvaluator)
    return step_shape((mixed_step_evaluator if both else step_evaluator)(report.program, model), report.at)


def step_shape(made: StepEvaluator, at: Binding) -> StepShape:
    """The kernels of a step, with the launch gaps that a graph hides, and without them."""
    hidden = float(made.captured(at))
    waits = flows = lateness = 0.0
    runs = made.runs(at)
    for row, price, pads in zip(made.rows, made.prices, made.pads, strict=True):
        alone, together = price.in_graph(runs if pads else at, hidden)
        waits, flows = waits + row.repeat * float(alone), flows + row.repeat * float(together)
        lateness += row.repeat * collective_skew(row)
    kernels = (1 - hidden) * sum(row.repeat for row in made.rows)  # a graph is launched at once
    return StepShape(waits, waits - flows, kernels, made.sequences(at), lateness)


@cache
def _model(device: Device, engine: str) -> CalibratedModel:
    name, own = engine.partition("@")[0], device.calibration.engines if device.calibration else {}
    runs = library.engine(engine) if name in library.engines() else None
    return CalibratedModel(device, name if name in own else None, runs=runs)
