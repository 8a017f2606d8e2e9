"""`validate`: estimate every row of measured tables of kernels, whole models and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import cache, partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.request import closed_loop
from llmir.backends.request.closed_loop import ClosedLoop
from llmir.backends.request.workload import LONGEST
from llmir.backends.silicon.closed_loop import InteractiveRun, has_simulator
from llmir.backends.silicon.rows import DeviceLookup, Table, engine_name, kernel_source
from llmir.backends.silicon.tables.chat import ChatTable
from llmir.backends.silicon.tables.engine_memory import MemorySeriesTable, MemoryTable
from llmir.backends.silicon.tables.table import KernelTable, RowRejection, TablePoints, load
from llmir.backends.silicon.tables.whole import STEADY
from llmir.backends.simulate.closed_loop import simulate_loop
from llmir.base.budget import Pace, check_work
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, LlmirError
from llmir.base.names import plain
from llmir.hw.device import Device
from llmir.ir.core.program import Program

from . import bounds
from .chat import ChatSetup, chat
from .estimates import IDEAL, BasisSummary, CostModelChoice, basis_summary, step_basis
from .memory import COMPARED, MemoryAmount
from .memory_series import series
from .requests import MeasuredRequest, ModelSetup, measured_request
from .rows import LATENCY, Validation, ValidationRow

# Largest number of users of each bin of closed loops, except the last.
USERS = (4, 8, 16, 32, 64)

Build = Callable[[ModelSetup], Program]
Tell = Callable[[str, int, int], None]  # file, finished rows, all rows
Only = Callable[[ModelSetup, Device], bool]


def validate(
    paths: Iterable[Path],
    build: Build,
    *,
    on: ChatSetup | None = None,
    pricing: CostModelChoice = IDEAL,
    tell: Tell = lambda *_: None,
    only: Only = lambda *_: True,
) -> Validation:
    """Estimate all rows of CSV files and compare; `only` selects rows of whole models.

    Args:
        paths: Tables of kernels, whole models or memory; or chat logs, for which `on` is required.
        build: Builds the program of a layout.
        on: The setup of chat logs.
        pricing: The cost model.
        tell: Called with the file, the number of finished rows and the number of rows.
        only: Selects rows by layout and device.

    Raises:
        InputError: The format of a file is unknown.
    """
    build = cache(build)
    judged: list[ValidationRow] = []
    problems: list[str] = []
    questions: list[str] = []
    amounts: list[MemoryAmount] = []
    for path in paths:
        format, rows = load(path)
        if isinstance(format, ChatTable | MemorySeriesTable) != (on is not None):
            what = "chat log" if format.name == "chat" else format.name
            needs = f"a {what} requires --model and --hw"
            apart = f"a table of {format.name} rows says on what it ran: leave out --model"
            raise InputError(f"{path.name}: {apart if on else needs}")
        problems += rows.problems
        file = _TableFile(path.name, rows, DeviceLookup(path.parent))
        if on and isinstance(format, MemorySeriesTable):
            amounts += series(path.name, rows, on, pricing)
        elif on:
            requests, doubts = chat(path, rows, on, pricing)
            judged += requests
            questions += doubts
        elif isinstance(format, KernelTable):
            judged += _kernels(file, format, pricing, tell)
        elif isinstance(format, MemoryTable):
            known = list(_amounts(file, format, build, tell))
            amounts += (found for found in known if isinstance(found, MemoryAmount))
            judged += (found for found in known if isinstance(found, ValidationRow))
        else:
            judged += _models(file, build, pricing, tell, only)
    priced = [row for row in judged if not row.reason]
    refused = [row for row in judged if row.reason]
    return Validation(pricing.name, priced, refused, problems, questions, amounts)


def _reason(error: LlmirError) -> str:
    """The message without hints for command line users."""
    return re.split(r" \(`|; did you mean|, known are", str(error))[0]


@dataclass(frozen=True)
class _TableFile:
    """A table with its devices: YAML files next to it first, then bundled devices."""

    name: str
    rows: Table
    machines: DeviceLookup
    known: dict[str, Device | str] = field(default_factory=dict)

    def device(self, gpu: str) -> Device | str:
        """The device, or the reason why it is unknown."""
        if gpu not in self.known:
            try:
                self.known[gpu] = self.machines(gpu)
            except LlmirError as error:
                self.known[gpu] = _reason(error)
        return self.known[gpu]

    def judged(self, i: int, kind: str, metric: str, *figures: Any, reason: str = "") -> ValidationRow:
        """Row `i` with its figures, or with the reason why it has none."""

        def word(name: str) -> str:
            return str(self.rows[name][i]) if name in self.rows.columns else ""

        device, framework = self.device(word("gpu")), word("framework")
        gpu = word("gpu") if isinstance(device, str) else device.name
        dtype, line = word("dtype") or word("weight_dtype"), int(self.rows["line"][i])
        about = self.name, line, kind, metric, gpu, framework, engine_name(framework), word("model"), dtype
        return ValidationRow(*about, *figures)._replace(reason=reason)


KERNEL_S, KERNEL_BYTES = 7e-5, 2200  # per row of a kernel, measured on a table of 300,000 rows
FEWER = "give fewer rows"


def _kernels(
    file: _TableFile, format: KernelTable, pricing: CostModelChoice, tell: Tell
) -> Iterator[ValidationRow]:
    t, done = file.rows, 0
    amount = {"seconds": len(t) * KERNEL_S, "memory": len(t) * KERNEL_BYTES}
    check_work(f"{plain(file.name)}: a validation of {len(t):,} rows", FEWER, **amount)
    for (gpu, framework, kernel, variant), at in t.alike("gpu", "framework", "kernel", "variant").items():
        tell(file.name, done := done + len(at), len(t))
        device = file.device(gpu)
        if isinstance(device, str):
            for i, kind in zip(at, format.row_kinds(t.take(at)), strict=True):
                yield file.judged(i, kind, LATENCY, reason=device)
            continue
        own = kernel_source(framework, "" if variant == "main" else variant or kernel)
        model = pricing.one_kernel if kernel or variant else pricing.model
        for points in format.points(t.take(at), device):
            yield from _points(file, points, at[points.rows], device, partial(model, device, own), own)


def _points(
    file: _TableFile,
    points: TablePoints | RowRejection,
    at: Any,
    device: Device,
    model: Callable[[], DeviceCostModel],
    own: str,
) -> Iterator[ValidationRow]:
    """The rows `at` that share one program."""
    try:
        if isinstance(points, RowRejection):
            raise InputError(points.reason)
        least = bounds.lower_bound(points, device)
        prices = points.prices(model())
    except LlmirError as error:
        yield from (file.judged(i, points.kind, LATENCY, reason=_reason(error)) for i in at)
        return
    times = [np.broadcast_to(price.time(points.at), len(at)) for price in prices]
    held = [price.of(points.at) for price in prices]
    basis, band, relation = basis_summary(
        device, times, [price.basis for price in held], [price.error for price in held], own
    )
    measured = file.rows["latency_us"][at] * 1e-6
    rules = bounds.bound_rules(device, measured, least)
    will, band = np.sum(times, axis=0) + points.harness, np.broadcast_to(band, len(at))
    columns = measured, will, least.seconds, band, rules
    for i, was, will, bound, sure, rule in zip(at, *columns, strict=True):
        figures = float(was), float(will), float(bound), basis, float(sure), relation, rule
        yield file.judged(i, points.kind, LATENCY, *figures)


def _models(
    file: _TableFile, build: Build, pricing: CostModelChoice, tell: Tell, only: Only
) -> Iterator[ValidationRow]:
    t = file.rows
    pace = Pace(f"{plain(file.name)}: a validation of {len(t):,} rows", FEWER, len(t))
    for i in range(len(t)):
        pace.step()
        tell(file.name, i + 1, len(t))
        kind, metric = t["kind"][i], ""
        try:
            asked = measured_request(t, i)
            metric = next(iter(asked.figures))
            device = file.device(t["gpu"][i])
            if isinstance(device, str):
                raise InputError(device)
            if not only(asked.layout, device):
                continue
            program, by = build(asked.layout), asked.layout.kernels
            runs = pricing.model(device, by).runs
            version, tp = runs.range if runs else "", str(asked.layout.tp)
            if kind == STEADY:
                priced = _settled(asked, program, device, by, pricing)
            elif asked.serving:
                priced = _served(asked, program, device, by, pricing)
            else:
                priced = {m: _figure(m, asked, program, device, by, pricing) for m in asked.figures}
        except LlmirError as error:
            yield file.judged(i, kind, metric, reason=_reason(error))
            continue
        for metric, measured in asked.figures.items():
            predicted, least, sure = priced[metric]
            rule = bounds.MODEL if least > measured else ""
            figures = measured, predicted, least, *sure, rule
            judged = file.judged(i, kind, metric, *figures)._replace(version=version, tp=tp)
            yield _with_loop(judged, asked) if kind == STEADY else judged


def _amounts(
    file: _TableFile, format: MemoryTable, build: Build, tell: Tell
) -> Iterator[ValidationRow | MemoryAmount]:
    t = file.rows
    for i in range(len(t)):
        tell(file.name, i + 1, len(t))
        try:
            device = file.device(t["gpu"][i])
            if isinstance(device, str):
                raise InputError(device)
            terms = COMPARED[type(format)](t, i, device, build)
        except LlmirError as error:
            yield file.judged(i, format.name, "", reason=_reason(error))
            continue
        by = str(t[format.by][i])
        for metric, (was, will) in terms.items():
            about = file.name, int(t["line"][i]), metric, device.name, by, str(t["model"][i])
            yield MemoryAmount(*about, was, will)


def _served(
    asked: MeasuredRequest, program: Program, device: Device, engine: str, pricing: CostModelChoice
) -> dict[str, tuple[float, float, BasisSummary]]:
    """The figures of a closed loop: by simulation, or in its steady state if there is no simulator."""
    sizes = 1, asked.prompt, asked.generate
    how = asked.chunk, asked.manner
    job, ideal = (by.workload(program, device, engine, sizes, *how) for by in (pricing, IDEAL))
    settled, least = ClosedLoop(job, asked.batch), ClosedLoop(ideal, asked.batch)
    loop = InteractiveRun(job, asked.batch, asked.manner) if has_simulator(job) else settled
    priced: dict[str, tuple[float, float, BasisSummary]] = {}
    if "tpot" in asked.figures:
        bound = least.bound_s(max(1, int(loop.decoding)))
        priced["tpot"] = loop.tpot_s or 0.0, bound, step_basis(settled.step(settled.in_flight))
    if "ttft" in asked.figures:
        priced["ttft"] = loop.ttft_s, ideal.ttft_s, step_basis(job.prefill)._replace(band=nan)
    return priced


def _settled(
    asked: MeasuredRequest, program: Program, device: Device, engine: str, pricing: CostModelChoice
) -> dict[str, tuple[float, float, BasisSummary]]:
    """The steady-state figures of a closed loop, as in `analyze --concurrency`."""
    manner = asked.manner
    longest = round(asked.generate * 2 / (1 + manner.shortest))
    how = asked.chunk, manner
    job, ideal = (
        by.workload(program, device, engine, (1, asked.prompt, longest), *how) for by in (pricing, IDEAL)
    )
    lengths = "fixed" if manner.shortest == 1 else "spread"
    loop = ClosedLoop(job, asked.batch, lengths, simulate_loop)
    bound = ClosedLoop(ideal, asked.batch).bound_s(loop.decoding)
    error = nan if loop.error is None else loop.error
    ttft_error = nan if loop.ttft_error is None else loop.ttft_error
    sure = step_basis(loop.step(loop.decoding))._replace(band=error)
    return {
        "tpot": (loop.tpot_s or 0.0, bound, sure),
        "token": (1 / loop.output_tokens_per_s, bound / loop.decoding, sure),
        "ttft": (loop.ttft_s, ideal.ttft_s, step_basis(job.prefill)._replace(band=ttft_error)),
    }


def _with_loop(row: ValidationRow, asked: MeasuredRequest) -> ValidationRow:
    """The row with the number of users, the range that this number is in, and the mean tokens of prompts and
    outputs.
    """
    most = next((n for n in USERS if asked.batch <= n), None)
    least = max((n + 1 for n in USERS if n < asked.batch), default=1)
    users = f"{least:>2} to {most}" if most else f"above {USERS[-1]}"
    workload = f"{asked.prompt}+{asked.generate}"
    return row._replace(users=users, concurrency=str(asked.batch), workload=workload)


def _figure(
    metric: str,
    asked: MeasuredRequest,
    program: Program,
    device: Device,
    engine: str,
    pricing: CostModelChoice,
) -> tuple[float, float, BasisSummary]:
    """Predicted seconds, the lower bound, and the basis of the step that takes most of the time."""
    prompt, generate = asked.prompt, asked.generate

    def job(by: CostModelChoice) -> Callable[[int], Any]:
        chunk = asked.chunk if by is pricing else None
        return lambda batch: by.workload(program, device, engine, (batch, prompt, generate), chunk)

    if metric == "token":
        expected, least = (ClosedLoop(job(by)(1), LONGEST) for by in (pricing, IDEAL))
        whole = replace(least.job, memory_utilization=1.0)  # more memory than engines use
        most = replace(least, job=whole).in_flight
        prompts = float(job(IDEAL)(1).prefill.interval_s) / generate / program.parallelism.dp
        bound = max(least.bound_s(most) / most, prompts)
        return 1 / expected.output_tokens_per_s, bound, step_basis(expected.step(expected.in_flight))
    whole = job(pricing)(asked.batch)
    sure = step_basis(whole.prefill if metric == "ttft" or whole.decode is None else whole.decode)
    if metric == "e2e":
        within = closed_loop.fitting_requests(job(IDEAL)(1), asked.batch)
        return (
            closed_loop.static_batch_time(job(pricing), asked.batch, within),
            job(IDEAL)(asked.batch).e2e_s,
            sure,
        )
    name = f"{metric}_s"
    return getattr(whole, name), getattr(job(IDEAL)(asked.batch), name), sure
