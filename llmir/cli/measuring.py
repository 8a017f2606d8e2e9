"""`llmir calibrate --run`: this machine's kernels, measured with PyTorch and fitted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.errors import HardwareError, InputError, OutputError

from . import fitting, output
from .ending import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmir import Program
    from llmir.backends.silicon.measure import Eager, Point
    from llmir.backends.silicon.measure.peaks import Timed
    from llmir.hw import Device, Fitted

SECONDS, QUICK = 300.0, 45.0
LOCAL_CPU = "local-cpu"  # a name that no bundled device has
POINTS = 400  # about as many are timed, and share the time


def measure(folder: str | None, device: str | None, form: str, seconds: float | None, *, quick: bool) -> None:
    """Time kernels, write the CSV files into `folder`, fit them, and write the device's file there too."""
    if folder is None:
        raise InputError("--run: -o must name the folder that the measured times go to")
    from llmir import hw
    from llmir.backends.silicon import calibrate
    from llmir.backends.silicon.machines import Machines
    from llmir.backends.silicon.measure import Eager, device_text, write

    budget = seconds or (QUICK if quick else SECONDS)
    named = hw.load(device) if device else None
    machine = Eager(budget / POINTS)
    target = _folder(folder)
    timed = _timed(machine, budget, quick=quick)
    name, base = _device(machine, device, named)
    if base is None:
        facts, gpu = machine.facts, machine.gpu
        base = device_text(machine.description, facts, machine.processors, timed, gpu=gpu)
    for path in write(target, timed, name, machine.framework):
        line("wrote", str(path))
    file = target / f"{name}.yaml"
    output.emit(base, str(file))

    found = fitting.fit(target, Machines(target), form)
    if not found:
        raise InputError("--run: too little was measured to fit anything; give it more --seconds")
    output.emit(base + calibrate.block(found), str(file))
    hosts = _hosts(machine, target, name, hw.load(file))
    if hosts:
        output.emit(base + calibrate.block(found, hosts), str(file))


def _folder(name: str) -> Path:
    """The folder, made if there is none."""
    path = Path(name).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{name}: is no folder and cannot become one, {error.strerror or error}") from None
    return path


def _timed(machine: Eager, budget: float, *, quick: bool) -> Timed:
    """Points with their seconds, collectives too where there are several devices."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    from llmir.backends.silicon.measure import plan, record
    from llmir.backends.silicon.measure.collectives import collectives

    points = plan(machine.facts, budget, quick=quick)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("measuring", total=len(points))

        def tell(n: int, point: Point) -> None:
            bar.update(task, completed=n, description=point.file)

        timed = record(points, machine, budget, tell=tell)
        bar.update(task, completed=len(points), description="measured")
    if len(timed) < len(points):
        output.note(f"{len(points) - len(timed)} of {len(points)} sizes were left out, by time or memory")
    return timed + (collectives(machine.devices) if machine.devices > 1 else [])


def _device(machine: Eager, given: str | None, named: Device | None) -> tuple[str, str | None]:
    """Its name in the rows, and the file to build on: None where nothing is known but what is measured."""
    from llmir import hw

    if given and named:
        path = Path(given)
        extends = str(path.resolve()) if path.suffix in (".yaml", ".yml") else given
        return _plain(path.stem), f"extend: {extends}\n"
    if not machine.gpu:
        return LOCAL_CPU, None
    try:
        hw.load(machine.name)
    except HardwareError:
        return "local-gpu", None
    return _plain(machine.name), f'extend: "{machine.name}"\n'


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _hosts(machine: Eager, folder: Path, name: str, device: Device) -> Mapping[str, Mapping[str, Fitted]]:
    """The host of eager transformers as a family of the device, if transformers is there."""
    from llmir.backends.silicon.measure import FRAMEWORK, steps, write
    from llmir.hw import Fitted

    timed = steps.measure(machine)
    if not timed:
        output.note("transformers is not installed: what it adds to its kernels was not measured")
        return {}
    write(folder, timed, name, machine.framework, "transformers")
    host, errors = steps.host(timed, device, _built)
    family = "cpu_host" if device.cores else "host"
    percent = f"{100 * errors.mape:.1f}%"
    about = f"{host.step_us:.0f} µs a step, {host.sequence_us:.1f} a sequence, {host.kernel_us:.1f} a kernel"
    output.note(f"eager transformers adds {about} (mean error on steps left out {percent})")
    origin = f"{machine.framework}, {len(timed)} decode steps of small Llamas"
    return {FRAMEWORK: {family: Fitted(dict(vars(host)), origin, len(timed), errors.mape)}}


def _built(config: Mapping[str, Any]) -> Program:
    """A program as eager transformers runs it, so far as its kernels are fused at all."""
    from llmir import api
    from llmir.passes import DEFAULT_PIPELINE

    return api.run(api.load(dict(config)), DEFAULT_PIPELINE)
