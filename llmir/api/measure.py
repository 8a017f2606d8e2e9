"""Measurements: `validate` estimates, `calibrate` kernels, and `measure` this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import HardwareError, InputError, OutputError
from llmir.base.names import plain, suggest
from llmir.ir.core.program import Program
from llmir.ir.tools.verify import checked_program

from .load import load, run

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate.cases import CalibrationCase
    from llmir.backends.silicon.calibrate.refit import RefitResult
    from llmir.backends.silicon.measure.kernels import EagerMachine
    from llmir.backends.silicon.validate.requests import ModelSetup
    from llmir.backends.silicon.validate.rows import Validation
    from llmir.hw.calibration import KernelParameters
    from llmir.hw.device import Device

SECONDS, QUICK = 300.0, 45.0  # measurement time in seconds
LOCAL_CPU, LOCAL_GPU = "local-cpu", "local-gpu"  # names that no bundled device has
POINTS = 400  # approximate number of timed points, which share the time


def validate(
    *files: str | os.PathLike[str],
    program: Program | None = None,
    hw: Any = None,
    batch: int = 1,
    engine: str | None = None,
    unit: str = "",
    cost: str = "calibrated",
    without: str | None = None,
    folds: str | None = None,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Validation:
    r"""Compare measured times with their estimates, with error statistics.

    Args:
        files: CSV files: tables of kernels or of whole models (docs/tables.md lists the columns), or chat
            logs with columns `input_tokens` and `output_tokens`.
        program: The program of a chat log.
        hw: The device of a chat log.
        batch: Requests per batch in a chat log.
        engine: The engine of a chat log.
        unit: The unit of times in columns without a unit: s, ms or us.
        cost: `calibrated`, with the kernels of each row's engine, or `ideal`.
        without: Estimate as if the kernels of each row's `device`, or of its `engine` on this device, had not
            been measured. The estimates then use transferred calibrations.
        folds: Estimate whole models with engine CPU times that are fitted without their group. Groups are
            rows with equal `model,device,version,tp`, or equal values of some of these; each fit holds out
            one fifth of the groups.
        tell: Called with progress: the file, the rows done and the number of rows.

    Returns:
        A `Validation`.

    Raises:
        InputError: A file has none of these formats, or an option has no effect.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "gemm.csv"
    >>> header, row = "gpu,framework,dtype,m,n,k,latency_us", "h100_sxm,cublas,bfloat16,16,8192,8192,60"
    >>> _ = path.write_text(f"{header}\n{row}\n")
    >>> [row.kind for row in validate(path).rows]
    ['gemm']
    """
    from llmir.backends.cost.models import model
    from llmir.backends.silicon.validate.chat import ChatSetup
    from llmir.backends.silicon.validate.estimates import cost_model_choice
    from llmir.backends.silicon.validate.run import validate as run_all
    from llmir.hw.library import load as device

    paths = [arguments.path("files", file) for file in files]
    batch = arguments.integer("batch", batch, 1)
    engine = None if engine is None else arguments.text("engine", engine)
    if not callable(tell):
        arguments.refuse("tell", tell, "a function of a file's name, rows done and rows in all")
    if (program is None) != (hw is None):
        raise InputError("validate: a chat log requires program and hw, the device that it ran on")
    unit = arguments.text("unit", unit)
    given = {"engine": engine, "unit": unit, "batch": batch if batch != 1 else None}
    if hw is None and (wrong := next((name for name, value in given.items() if value), None)):
        raise InputError(
            f"validate: {wrong} {given[wrong]!r} applies only to chat logs; other tables state their own"
        )
    if engine:
        model(device(hw), cost, engine)  # raise an error for an unknown device, cost model or engine
    if folds is not None:
        return _held_out_rows(paths, arguments.text("folds", folds), hw, cost, without, tell)
    on = (
        None
        if program is None
        else ChatSetup(checked_program(program), device(hw), engine or "", batch, unit)
    )
    return run_all(paths, _built, on=on, pricing=cost_model_choice(cost, without), tell=tell)


def _held_out_rows(
    paths: list[Path], folds: str, hw: Any, cost: str, without: str | None, tell: Callable[..., None]
) -> Validation:
    """Estimate whole models with engine CPU times that are fitted without them."""
    from llmir.backends.silicon.calibrate.engine_cpu import held_out_rows

    if hw is not None or cost != "calibrated" or without:
        other = "a chat log" if hw is not None else "without" if without else f"cost {cost!r}"
        raise InputError(f"folds: hosts are fitted only to tables of whole models; leave {other} out")
    return held_out_rows(paths, _built, [key.strip() for key in folds.split(",")], tell)


def calibrate(
    folder: str | os.PathLike[str],
    *,
    hw: str | None = None,
    engine: str | None = None,
    family: str | None = None,
    host: bool = False,
    tell: Callable[[str], None] = lambda problem: None,
) -> RefitResult:
    """Fit kernels to the CSV tables of a folder, with errors on held-out shapes.

    If the folder has a table of whole models, engine CPU times are fitted, too.

    Args:
        folder: The folder of the tables.
        hw: Fit this device only.
        engine: Fit this engine only.
        family: Fit this family of kernels, or this kind of table, only.
        host: Fit engine CPU times only.
        tell: Called with each problem that excludes rows.

    Returns:
        A `RefitResult`.

    Raises:
        InputError: No rows remain.

    >>> calibrate("measured", family="gemm").kernels  # doctest: +SKIP
    """
    from llmir.backends.silicon.calibrate.engine_cpu import fit_engine_cpus
    from llmir.backends.silicon.calibrate.refit import RefitResult, fit_cases, with_fits
    from llmir.backends.silicon.calibrate.runs import TABLES, runs
    from llmir.backends.silicon.rows import DeviceLookup
    from llmir.backends.silicon.tables.table import load_all

    path = arguments.path("folder", folder)
    if not callable(tell):
        arguments.refuse("tell", tell, "a function of what cannot be used")
    hw = None if hw is None else arguments.text("hw", hw)
    engine = None if engine is None else arguments.text("engine", engine)
    family = None if family is None else arguments.text("family", family)
    if not os.path.isdir(path):
        raise InputError(f"no folder {plain(str(path))!r}")
    machines = DeviceLookup(path)
    if arguments.flag("host", host):
        if hw or family:
            raise InputError("host: belongs to an engine on all devices; leave device and family out")
        name, versions = _range(engine)
        every = fit_engine_cpus(runs(path, _built))
        hosts = [o for o in every if name in (None, o.engine) and versions in (None, o.versions)]
        if not hosts:
            raise InputError(f"{path}: no runs of {engine} in {TABLES}")
        return RefitResult([], hosts, machines)
    only, names = machines(hw) if hw else None, _families(family)

    def wanted(format: str, case: CalibrationCase) -> bool:
        of = only in (None, case.device) and engine in (None, case.engine)
        return of and (family is None or bool(names & {format, *case.families}))

    found = fit_cases(load_all(path, tell), machines, wanted, tell)
    if not found:
        asked = ", ".join(filter(None, (hw, engine, family))) or "any known device"
        raise InputError(f"{path}: no rows of {asked}")
    whole = not (hw or engine or family)
    hosts = fit_engine_cpus(runs(path, _built, with_fits(found))) if whole and [*path.glob(TABLES)] else []
    return RefitResult(found, hosts, machines, device=hw, whole=whole)


def _range(engine: str | None) -> tuple[str | None, tuple[str, ...] | None]:
    """The name of an engine, and the versions of the range if the text has one."""
    from llmir.hw import library

    name, at, _ = (engine or "").partition("@")
    return name or None, library.engine(engine).versions if engine and at else None


def _families(family: str | None) -> set[str]:
    """The family or kind of table as a set; InputError for an unknown name."""
    from llmir.backends.kernels.base import KERNELS
    from llmir.backends.silicon.tables.table import FORMATS, KernelTable

    known = [*(name for name, format in FORMATS.items() if isinstance(format, KernelTable)), *KERNELS]
    if family is not None and family not in known:
        near = suggest(family, known) or f", known are {', '.join(known)}"
        raise InputError(f"unknown family {family!r}{near}")
    return {family} if family else {*known}


def measure(
    folder: str | os.PathLike[str],
    *,
    hw: str | None = None,
    seconds: float | None = None,
    quick: bool = False,
    tell: Callable[[str], None] = lambda note: None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> RefitResult:
    """Time the kernels of this machine as eager PyTorch calls them, and fit them.

    Args:
        folder: The folder for one CSV table per kind of kernel, and for the YAML file of the device.
        hw: The device whose datasheet is used. The default is the GPU name that PyTorch reports; for an
            unknown GPU, the best measured rates.
        seconds: Time for all measurements in seconds. The default is 300, or 45 if `quick`.
        quick: Whether to measure a third of the sizes.
        tell: Called with each measurement that was not possible.
        progress: Called with the current kernel, the sizes done and the number of sizes.

    Returns:
        A `RefitResult`.

    Raises:
        InputError: PyTorch is not installed.

    >>> found = measure("this_machine", seconds=30)  # doctest: +SKIP
    """
    from llmir.backends.export.files import write as write_file
    from llmir.backends.silicon.calibrate.refit import RefitResult, calibration_block, fit_cases
    from llmir.backends.silicon.measure.device_file import device_text
    from llmir.backends.silicon.measure.kernels import EagerMachine, collectives, copy_rate, copy_rate_text
    from llmir.backends.silicon.measure.machine import measurement_plan, record, write
    from llmir.backends.silicon.rows import DeviceLookup
    from llmir.backends.silicon.tables.table import load_all
    from llmir.hw import library

    target = arguments.path("folder", folder).expanduser()
    quick = arguments.flag("quick", quick)
    usual = QUICK if quick else SECONDS
    budget = usual if seconds is None else arguments.number("seconds", seconds, 1, 86400)
    named = library.load(arguments.text("hw", hw)) if hw is not None else None
    machine = EagerMachine(budget / POINTS)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{target}: is not a folder and cannot be created as one: {error.strerror or error}"
        ) from None
    points = measurement_plan(machine.facts, budget, quick=quick)
    timed = record(points, machine, budget, tell=lambda n, p: progress(p.file, n, len(points)))
    progress("measured", len(points), len(points))
    if len(timed) < len(points):
        tell(f"{len(points) - len(timed)} of {len(points)} sizes were left out, by time or memory")
    if machine.devices > 1:
        timed += collectives(machine.devices)
    name, base = _device(machine, hw, named)
    host = copy_rate(machine)
    if base is None:
        facts, gpu = machine.facts, machine.gpu
        base = device_text(machine.description, facts, machine.processors, timed, gpu=gpu, host=host)
    elif host:
        base += copy_rate_text(host, named or library.load(machine.name))
    write(target, timed, name, machine.framework)
    file = target / f"{name}.yaml"
    write_file(file, base)

    machines = DeviceLookup(target)
    own = machines(name)  # the folder may contain tables of other machines
    found = fit_cases(load_all(target, tell), machines, lambda _, case: case.device == own, tell)
    if not found:
        raise InputError(f"{target}: too few measurements for a fit; increase seconds")
    write_file(file, base + calibration_block(found))
    if hosts := _eager_cpus(machine, target, name, library.load(file), tell):
        write_file(file, base + calibration_block(found, hosts))
    return RefitResult(found, [], machines, device=name)


def _device(machine: EagerMachine, given: str | None, named: Device | None) -> tuple[str, str | None]:
    """The device name in the rows, and the file that the new device file extends; None if the device is
    unknown.
    """
    from llmir.hw import library

    if given and named:
        path = Path(given)
        extends = str(path.resolve()) if path.suffix in (".yaml", ".yml") else given
        return _plain(path.stem), f"extend: {extends}\n"
    if not machine.gpu:
        return LOCAL_CPU, None
    try:
        library.load(machine.name)
    except HardwareError:
        return LOCAL_GPU, None
    return _plain(machine.name), f'extend: "{machine.name}"\n'


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _eager_cpus(
    machine: EagerMachine, folder: Path, name: str, device: Device, tell: Callable[[str], None]
) -> Mapping[str, Mapping[str, KernelParameters]]:
    """Engine CPU times of eager transformers as a kernel family; empty if transformers is not installed."""
    from llmir.backends.silicon.measure import engine_cpu
    from llmir.backends.silicon.measure.machine import FRAMEWORK, write
    from llmir.hw.calibration import KernelParameters

    timed = engine_cpu.measure_steps(machine)
    if not timed:
        tell("transformers is not installed: what it adds to its kernels was not measured")
        return {}
    write(folder, timed, name, machine.framework, "transformers")
    host, errors = engine_cpu.fit_eager_cpu(timed, device, _fused)
    family = "cpu_host" if device.cores else "host"
    percent = f"{100 * errors.mape:.1f}%"
    about = f"{host.step_us:.0f} µs a step, {host.sequence_us:.1f} a sequence, {host.kernel_us:.1f} a kernel"
    tell(f"eager transformers adds {about} (mean error on steps left out {percent})")
    origin = f"{machine.framework}, {len(timed)} decode steps of small Llamas"
    return {FRAMEWORK: {family: KernelParameters(dict(vars(host)), origin, len(timed), errors.mape)}}


def _fused(config: Mapping[str, Any]) -> Program:
    """Lower a program to the kernels that eager transformers runs."""
    from .deployment import pipeline_of

    return run(load(dict(config)), pipeline_of())


def _built(layout: ModelSetup) -> Program:
    """The program of a measured row, lowered as its engine runs it."""
    from llmir.hw import library
    from llmir.passes.quantize import Quantize
    from llmir.passes.shard import Shard
    from llmir.passes.stages import Stages

    from .deployment import dispatch_of, expert_inputs, pipeline_of
    from .options import Precision

    known = layout.engine if layout.engine.partition("@")[0] in library.engines() else None
    passes = pipeline_of(known)
    engine = library.engine(known) if known else None
    dispatch = dispatch_of(engine, layout.dp, layout.ep)
    types = Quantize(weights=layout.weights, activations=layout.activations, kv=layout.kv)
    over = Shard(tp=layout.tp, dp=layout.dp, ep=layout.ep)
    more = [layout.passes] if layout.passes else []
    stated = Precision(activations=layout.activations or None)
    inputs = expert_inputs(engine, _bundled_device(layout.gpu), stated)
    steps: list[Any] = [types, *inputs, Stages(layout.pp), passes, over, *dispatch, *more, "slice-sends"]
    return run(load(layout.model), steps)


def _bundled_device(gpu: str) -> Device | None:
    """The bundled device of a GPU name in a table; None if it is unknown."""
    from llmir.backends.silicon.rows import device_for
    from llmir.hw import library

    with suppress(HardwareError):
        return library.load(device_for(gpu))
    return None
