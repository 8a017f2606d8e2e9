"""Measurements: `validate` predictions, `calibrate` kernels, and `measure` this machine."""

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

SECONDS, QUICK = 300.0, 45.0  # to measure for
LOCAL_CPU, LOCAL_GPU = "local-cpu", "local-gpu"  # names that no bundled device has
POINTS = 400  # about as many are timed, and share the time


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
    """Rows measured elsewhere beside their predictions, with error statistics.

    The CSV files are tables of kernels or of whole models (docs/validate.md says which columns), or chat logs
    (`input_tokens, output_tokens`) of a `program` on `hw`, whose requests an `engine` ran in batches of
    `batch`, with times in a `unit` (s, ms or us) where their columns name none. `cost` is the cost model:
    `calibrated`, by the kernels of each row's engine, or `ideal`. `without` prices rows by what would be
    borrowed if their `device`, or their `engine` on it, had not been measured. `folds` prices whole models
    by hosts fitted without the rows that are alike in `model,device,version,tp`, or in some of these, a fifth
    of the groups at a time. `tell` hears of progress:
    file, rows done, rows in all. InputError for a file that is none of these.
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
        raise InputError("validate: a chat log needs both, a program and the hw that it ran on")
    unit = arguments.text("unit", unit)
    given = {"engine": engine, "unit": unit, "batch": batch if batch != 1 else None}
    if hw is None and (wrong := next((name for name, value in given.items() if value), None)):
        raise InputError(f"validate: {wrong} {given[wrong]!r} is of chat logs; other tables name their own")
    if engine:
        model(device(hw), cost, engine)  # or an error
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
    """Whole models by hosts fitted without them."""
    from llmir.backends.silicon.calibrate.engine_cpu import held_out_rows

    if hw is not None or cost != "calibrated" or without:
        other = "a chat log" if hw is not None else "without" if without else f"cost {cost!r}"
        raise InputError(f"folds: hosts are fitted to tables of whole models; leave {other} out")
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
    """Kernels fitted to the CSV tables of a folder, with their errors on shapes left out of the fit.

    Only those of the device `hw`, an `engine`, or a `family` of kernels or kind of table, where they are
    named; of all of them, with the engines' hosts where the folder has a table of whole models. `host` fits
    hosts alone. `tell` hears of what cannot be used. InputError where nothing is left.

    llmir.calibrate("measured", family="gemm").kernels
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
            raise InputError("host: is of an engine on all devices; leave device and family out")
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
    """The engine's name, and the versions of the range that was asked for, where one was."""
    from llmir.hw import library

    name, at, _ = (engine or "").partition("@")
    return name or None, library.engine(engine).versions if engine and at else None


def _families(family: str | None) -> set[str]:
    """The family or kind of table; InputError for one that is neither."""
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
    """This machine's kernels, as eager PyTorch calls them, timed into `folder` and fitted.

    `folder` gets a CSV table for each kind of kernel and the YAML file of the device: with datasheet of `hw`,
    else of what PyTorch calls the GPU, else with the best rates that were measured. It takes `seconds` (300,
    or 45 if `quick`, with a third of the sizes). `tell` hears of what could not be measured, `progress` what
    is timed, how many sizes are done and of how many. InputError without PyTorch.
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
            f"{target}: is no folder and cannot become one, {error.strerror or error}"
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
    own = machines(name)  # the folder may hold tables of others
    found = fit_cases(load_all(target, tell), machines, lambda _, case: case.device == own, tell)
    if not found:
        raise InputError(f"{target}: too little was measured to fit anything; give it more seconds")
    write_file(file, base + calibration_block(found))
    if hosts := _eager_cpus(machine, target, name, library.load(file), tell):
        write_file(file, base + calibration_block(found, hosts))
    return RefitResult(found, [], machines, device=name)


def _device(machine: EagerMachine, given: str | None, named: Device | None) -> tuple[str, str | None]:
    """Its name in the rows, and the file to build on: None where nothing is known but what is measured."""
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
    """The host of eager transformers as a family of the device, if transformers is there."""
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
    """A program as eager transformers runs it, so far as its kernels are fused at all."""
    from .deployment import pipeline_of

    return run(load(dict(config)), pipeline_of())


def _built(layout: ModelSetup) -> Program:
    """The program of a measured row, as its engine runs it."""
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
    """The bundled device behind a table's word for a GPU, if it is one."""
    from llmir.backends.silicon.rows import device_for
    from llmir.hw import library

    with suppress(HardwareError):
        return library.load(device_for(gpu))
    return None
