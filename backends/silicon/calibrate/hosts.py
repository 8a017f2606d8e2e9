"""What engines add to their kernels, fitted to whole models: once for each, on all devices and models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir import hw
from llmir.backends.analysis.plan import late, plan
from llmir.backends.cost import Calibrated, Model
from llmir.backends.cost.kernels import Call, Host, RunShape, StepShape, stacked
from llmir.backends.cost.relatives import kernels_of
from llmir.backends.serving import loop
from llmir.backends.silicon.machines import Machines
from llmir.backends.silicon.machines import engine as engine_of
from llmir.backends.silicon.tables import load
from llmir.backends.silicon.validate.pricing import IDEAL
from llmir.backends.silicon.validate.requests import Layout, Request, request
from llmir.dim import Binding
from llmir.errors import InputError, LlmirError
from llmir.graph import Program
from llmir.hw import Device
from llmir.hw.calibration import digits

from .cases import Case
from .clock import Clock, Term

TABLE = "e2e.csv"  # the table of whole models in a folder
JUDGED = ("static_batch_latency", "static_batch_throughput", "serving_closed_loop")


class Run(NamedTuple):
    """A measured run: its engine, its model, what it is made of, and its time."""

    engine: str
    model: str
    shape: RunShape
    seconds: float


@dataclass(frozen=True)
class Overheads:
    """The host of one engine, fitted to runs of so many models; a fifth of these is left out at a time."""

    case: Case
    models: int

    @property
    def engine(self) -> str:
        """Whose it is."""
        return self.case.engine

    @property
    def host(self) -> Host:
        """What was fitted to all runs."""
        host = self.case.kernels["host"]
        assert isinstance(host, Host)
        return host

    @property
    def row(self) -> dict[str, Any]:
        """Its errors, as shares of one, and its parameters."""
        return {"engine": self.engine, "models": self.models, **self.case.errors._asdict(), **vars(self.host)}

    @property
    def yaml(self) -> str:
        """A file of `hw/engines`, three significant digits a parameter."""
        values = {"error_percent": 100 * self.case.errors.mape, **vars(self.host)}
        said = "".join(f"{name}: {digits(value)}\n" for name, value in values.items())
        return f'origin: "{self.case.origin}"\nrows: {len(self.case.seconds)}\n{said}'


def overheads(
    path: Path, build: Callable[[Layout], Program], known: Callable[[Device], Device] = lambda device: device
) -> list[Overheads]:
    """The hosts of all engines in a table of whole models; InputError if no row can be used.

    `known` gives a device with another calibration than its own.
    """
    runs = list(_runs(path, build, known))
    if not runs:
        raise InputError(f"{path.name}: no run of a known model on a calibrated device")
    engines = dict.fromkeys(run.engine for run in runs)
    return [_overheads(engine, [run for run in runs if run.engine == engine]) for engine in engines]


def _overheads(engine: str, runs: Sequence[Run]) -> Overheads:
    device, at = hw.load("h100-sxm"), np.arange(len(runs))  # of a device a host asks nothing
    names = [run.model for run in runs]
    models = len(set(names))
    term = Term("host", Call(("host",), stacked([run.shape for run in runs])), np.zeros(len(runs)), at)
    return Overheads(
        Case(
            device,
            engine,
            main=True,
            families=("host",),
            origin=f"{engine} in whole runs of {models} models, {TABLE}",
            seconds=np.array([run.seconds for run in runs]),
            groups=names if models > 1 else at.tolist(),
            clock=Clock(device, (term,), len(runs)),
            ideal=np.zeros(len(runs)),
            hot=0,
        ),
        models,
    )


def _runs(path: Path, build: Callable[[Layout], Program], known: Callable[[Device], Device]) -> Iterator[Run]:
    format, t = load(path)
    if format.name != "model":
        of = f"this is one of {format.name}"
        raise InputError(f"{path.name}: engines are fitted to a table of whole models, {of}")
    build, machines = cache(build), Machines(path.parent)
    for i in range(len(t)):
        if t["kind"][i] not in JUDGED or t["unfit"][i]:
            continue
        try:
            asked, device = request(t, i), known(machines(t["gpu"][i]))
            if not _calibrated(device):
                continue
            engine, program = engine_of(t["framework"][i]), build(asked.layout)
            for metric, seconds in asked.figures.items():
                shape = _shape(metric, asked, program, device, engine)
                yield Run(engine, asked.layout.model, shape, seconds)
        except LlmirError:
            continue


def _calibrated(device: Device) -> bool:
    """Whether its kernels rest on its vendor's; what another's leave is more than the host's."""
    found = kernels_of(device)
    return found is not None and found.vendor == device.vendor


def _shape(metric: str, asked: Request, program: Program, device: Device, engine: str) -> RunShape:
    """A run as its steps."""
    prompt, generate = asked.prompt, asked.generate
    if asked.serving:
        together = loop.replicas(program)
        within, _ = loop.in_flight(program, device, asked.batch, prompt, generate)
    else:
        one = IDEAL.workload(program, device, engine, 1, prompt, generate)
        together = within = loop.fitting(one, asked.batch)[0]

    model = _model(device, engine)

    def step(batch: int, new: int, cached: int) -> StepShape:
        return step_shape(program, model, Binding(B=batch, T=new, C=cached))

    return RunShape(
        decode=step(within, 1, prompt + generate // 2),
        prefill=step(together, prompt, 0),
        serving=asked.serving,
        prompts=within / generate / together,
        waves=asked.batch / within if metric == "e2e" else 1,
        prefills=metric in ("e2e", "ttft"),
        tokens={"e2e": generate - 1, "ttft": 0, "tpot": 1}[metric],
    )


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
