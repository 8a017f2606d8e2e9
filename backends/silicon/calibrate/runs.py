"""Measured runs of whole models as the steps that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from llmir import hw
from llmir.backends.analysis.plan import late, plan
from llmir.backends.cost import Calibrated, Model
from llmir.backends.cost.kernels import RunShape, StepShape
from llmir.backends.cost.relatives import kernels_of
from llmir.backends.serving import loop
from llmir.backends.silicon.machines import Machines, at_version
from llmir.backends.silicon.machines import engine as engine_of
from llmir.backends.silicon.tables import load
from llmir.backends.silicon.validate.pricing import IDEAL
from llmir.backends.silicon.validate.requests import Layout, Request, request
from llmir.dim import Binding
from llmir.errors import InputError, LlmirError
from llmir.graph import Program
from llmir.hw import Device

TABLES = "e2e*.csv"  # the tables of whole models in a folder
JUDGED = ("static_batch_latency", "static_batch_throughput", "serving_closed_loop")

Build = Callable[[Layout], Program]
Known = Callable[[Device], Device]


class Run(NamedTuple):
    """A measured figure: whose, of what, the steps that it is made of, and its time.

    `versions` are of the range that the engine's version lies in, none of an engine that is not bundled.
    """

    engine: str
    versions: tuple[str, ...]
    device: str
    model: str
    tp: int
    shape: RunShape
    seconds: float


def runs(folder: Path, build: Build, known: Known = lambda device: device) -> list[Run]:
    """What hosts can be fitted to in a folder's tables of whole models; InputError if nothing can.

    `known` gives a device with another calibration than its own.
    """
    build, paths = cache(build), sorted(folder.glob(TABLES))
    found = [run for path in paths for run in _runs(path, build, known)]
    if not found:
        files = ", ".join(path.name for path in paths) or TABLES
        raise InputError(f"{files}: no run of a known model on a calibrated device")
    return found


def _runs(path: Path, build: Build, known: Known) -> Iterator[Run]:
    format, t = load(path)
    if format.name != "model":
        of = f"this is one of {format.name}"
        raise InputError(f"{path.name}: engines are fitted to a table of whole models, {of}")
    machines = Machines(path.parent)
    for i in range(len(t)):
        if t["kind"][i] not in JUDGED or t["unfit"][i]:
            continue
        try:
            asked, device = request(t, i), known(machines(t["gpu"][i]))
            if not _calibrated(device):
                continue
            name = engine_of(t["framework"][i])
            bundled = name in hw.engines()
            versions = hw.engine(at_version(t["framework"][i], t["version"][i])).versions if bundled else ()
            program, layout = build(asked.layout), asked.layout
            for metric, seconds in asked.figures.items():
                shape = _shape(metric, asked, program, device, name)
                yield Run(name, versions, device.name, layout.model, layout.tp, shape, seconds)
        except LlmirError:
            continue


def _calibrated(device: Device) -> bool:
    """Whether its kernels are its own or of a GPU with another memory; what others' leave is no host's."""
    found = kernels_of(device)
    alike = device.isa, device.multiprocessors
    return found is not None and (found.isa, found.multiprocessors) == alike


def _shape(metric: str, asked: Request, program: Program, device: Device, engine: str) -> RunShape:
    """A run as its steps."""
    prompt, generate = asked.prompt, asked.generate
    if asked.serving:
        together = loop.replicas(program)
        within, _ = loop.in_flight(program, device, asked.batch, prompt, generate)
        prefills, tokens = within / generate / together, 1.0
    else:
        one = IDEAL.workload(program, device, engine, 1, prompt, generate)
        together = within = loop.fitting(one, asked.batch)[0]
        waves = asked.batch / within if metric == "e2e" else 1
        prefills = waves * (metric in ("e2e", "ttft"))
        tokens = waves * {"e2e": generate - 1, "ttft": 0, "tpot": 1}[metric]
    model = _model(device, engine)

    def steps(count: float, batch: int, new: int, cached: int) -> StepShape:
        return step_shape(program, model, Binding(B=batch, T=new, C=cached)).times(count)

    decode, reads = steps(tokens, within, 1, prompt + generate // 2), steps(prefills, together, prompt, 0)
    return RunShape(decode, reads, asked.serving)


def step_shape(program: Program, model: Model, at: Binding) -> StepShape:
    """The kernels of a step, with and without the time that each waits to begin."""
    made = plan(program, model)
    waits = flows = lateness = 0.0
    for row, price in zip(made.rows, made.prices, strict=True):
        alone, together = price.in_graph(at, 1.0)
        waits, flows = waits + row.repeat * float(alone), flows + row.repeat * float(together)
        lateness += row.repeat * late(row)
    return StepShape(waits, waits - flows, sum(row.repeat for row in made.rows), at.symbols["B"], lateness)


@cache
def _model(device: Device, engine: str) -> Calibrated:
    own = device.calibration.engines if device.calibration else {}
    return Calibrated(device, engine if engine in own else None)
