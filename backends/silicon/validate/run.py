"""Every row of measured tables, priced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import cache, partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.cost.op_time import Model
from llmir.backends.request import closed_loop
from llmir.backends.request.closed_loop import ClosedLoop
from llmir.backends.request.workload import LONGEST
from llmir.backends.silicon.closed_loop import Played, playable
from llmir.backends.silicon.rows import Machines, Table, engine, named
from llmir.backends.silicon.tables.chat import Chat as Chats
from llmir.backends.silicon.tables.engine_memory import Memory, MemorySeries
from llmir.backends.silicon.tables.table import Kernels, Points, Refusal, load
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, LlmirError
from llmir.hw.device import Device
from llmir.ir.core.program import Program

from . import bounds
from .chat import Chat, chat
from .estimates import IDEAL, Pricing, Trust, of_step, trust
from .memory import COMPARED, Amount
from .memory_series import series
from .requests import Layout, Request, request
from .rows import LATENCY, Judged, Validation

Build = Callable[[Layout], Program]
Tell = Callable[[str, int, int], None]  # of a file, rows done of all
Only = Callable[[Layout, Device], bool]


def validate(
    paths: Iterable[Path],
    build: Build,
    *,
    on: Chat | None = None,
    pricing: Pricing = IDEAL,
    tell: Tell = lambda *_: None,
    only: Only = lambda *_: True,
) -> Validation:
    """All rows of CSV files, each beside its prediction; of whole models `only` some.

    They are tables of kernels or of whole models, for which `build` gives the program of a layout, or, with
    `on`, chat logs. InputError for a file that is none of these.
    """
    build = cache(build)
    judged: list[Judged] = []
    problems: list[str] = []
    questions: list[str] = []
    amounts: list[Amount] = []
    for path in paths:
        format, rows = load(path)
        if isinstance(format, Chats | MemorySeries) != (on is not None):
            what = "chat log" if format.name == "chat" else format.name
            needs = f"a {what} needs --model and --hw"
            apart = f"a table of {format.name} rows says on what it ran: leave out --model"
            raise InputError(f"{path.name}: {apart if on else needs}")
        problems += rows.problems
        file = _File(path.name, rows, Machines(path.parent))
        if on and isinstance(format, MemorySeries):
            amounts += series(path.name, rows, on, pricing)
        elif on:
            requests, doubts = chat(path, rows, on, pricing)
            judged += requests
            questions += doubts
        elif isinstance(format, Kernels):
            judged += _kernels(file, format, pricing, tell)
        elif isinstance(format, Memory):
            known = list(_amounts(file, format, build, tell))
            amounts += (found for found in known if isinstance(found, Amount))
            judged += (found for found in known if isinstance(found, Judged))
        else:
            judged += _models(file, build, pricing, tell, only)
    priced = [row for row in judged if not row.reason]
    refused = [row for row in judged if row.reason]
    return Validation(pricing.name, priced, refused, problems, questions, amounts)


def _reason(error: LlmirError) -> str:
    """The fact alone, without the hints for who typed it."""
    return re.split(r" \(`|; did you mean|, known are", str(error))[0]


@dataclass(frozen=True)
class _File:
    """A table, and its words for devices: files beside it first, then bundled ones, or why there is none."""

    name: str
    rows: Table
    machines: Machines
    known: dict[str, Device | str] = field(default_factory=dict)

    def device(self, gpu: str) -> Device | str:
        """The device, or the reason."""
        if gpu not in self.known:
            try:
                self.known[gpu] = self.machines(gpu)
            except LlmirError as error:
                self.known[gpu] = _reason(error)
        return self.known[gpu]

    def judged(self, i: int, kind: str, metric: str, *figures: Any, reason: str = "") -> Judged:
        """Row `i` with its figures, or with the reason why there are none."""

        def word(name: str) -> str:
            return str(self.rows[name][i]) if name in self.rows.columns else ""

        device, framework = self.device(word("gpu")), word("framework")
        gpu = word("gpu") if isinstance(device, str) else device.name
        dtype, line = word("dtype") or word("weight_dtype"), int(self.rows["line"][i])
        about = self.name, line, kind, metric, gpu, framework, engine(framework), word("model"), dtype
        return Judged(*about, *figures)._replace(reason=reason)


def _kernels(file: _File, format: Kernels, pricing: Pricing, tell: Tell) -> Iterator[Judged]:
    t, done = file.rows, 0
    for (gpu, framework, kernel, variant), at in t.alike("gpu", "framework", "kernel", "variant").items():
        tell(file.name, done := done + len(at), len(t))
        device = file.device(gpu)
        if isinstance(device, str):
            for i, kind in zip(at, format.kinds(t.take(at)), strict=True):
                yield file.judged(i, kind, LATENCY, reason=device)
            continue
        own = named(framework, "" if variant == "main" else variant or kernel)
        for points in format.points(t.take(at), device):
            yield from _points(
                file, points, at[points.rows], device, partial(pricing.model, device, own), own
            )


def _points(
    file: _File, points: Points | Refusal, at: Any, device: Device, model: Callable[[], Model], own: str
) -> Iterator[Judged]:
    """The rows `at` of one program."""
    try:
        if isinstance(points, Refusal):
            raise InputError(points.reason)
        least = bounds.bound(points, device)
        prices = points.prices(model())
    except LlmirError as error:
        yield from (file.judged(i, points.kind, LATENCY, reason=_reason(error)) for i in at)
        return
    times = [np.broadcast_to(price.time(points.at), len(at)) for price in prices]
    held = [price.of(points.at) for price in prices]
    basis, band, relation = trust(
        device, times, [price.basis for price in held], [price.error for price in held], own
    )
    measured = file.rows["latency_us"][at] * 1e-6
    rules = bounds.explain(device, measured, least)
    will, band = np.sum(times, axis=0) + points.harness, np.broadcast_to(band, len(at))
    columns = measured, will, least.seconds, band, rules
    for i, was, will, bound, sure, rule in zip(at, *columns, strict=True):
        figures = float(was), float(will), float(bound), basis, float(sure), relation, rule
        yield file.judged(i, points.kind, LATENCY, *figures)


def _models(file: _File, build: Build, pricing: Pricing, tell: Tell, only: Only) -> Iterator[Judged]:
    t = file.rows
    for i in range(len(t)):
        tell(file.name, i + 1, len(t))
        kind, metric = t["kind"][i], ""
        try:
            asked = request(t, i)
            metric = next(iter(asked.figures))
            device = file.device(t["gpu"][i])
            if isinstance(device, str):
                raise InputError(device)
            if not only(asked.layout, device):
                continue
            program, by = build(asked.layout), asked.layout.engine
            runs = pricing.model(device, by).runs
            version, tp = runs.range if runs else "", str(asked.layout.tp)
            if asked.serving:
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
            yield file.judged(i, kind, metric, *figures)._replace(version=version, tp=tp)


def _amounts(file: _File, format: Memory, build: Build, tell: Tell) -> Iterator[Judged | Amount]:
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
            yield Amount(*about, was, will)


def _served(
    asked: Request, program: Program, device: Device, engine: str, pricing: Pricing
) -> dict[str, tuple[float, float, Trust]]:
    """The same of a closed loop, by figure: as it is played, or what it settles at where it cannot be."""
    sizes = 1, asked.prompt, asked.generate
    how = asked.chunk, asked.manner.ahead, asked.manner.utilization, asked.manner.graphs
    job, ideal = (by.workload(program, device, engine, sizes, *how) for by in (pricing, IDEAL))
    settled, least = ClosedLoop(job, asked.batch), ClosedLoop(ideal, asked.batch)
    loop = Played(job, asked.batch, asked.manner) if playable(job) else settled
    priced: dict[str, tuple[float, float, Trust]] = {}
    if "tpot" in asked.figures:
        bound = least.bound_s(max(1, int(loop.decoding)))
        priced["tpot"] = loop.tpot_s or 0.0, bound, of_step(settled.step(settled.in_flight))
    if "ttft" in asked.figures:
        priced["ttft"] = loop.ttft_s, ideal.ttft_s, of_step(job.prefill)._replace(band=nan)
    return priced


def _figure(
    metric: str, asked: Request, program: Program, device: Device, engine: str, pricing: Pricing
) -> tuple[float, float, Trust]:
    """Seconds predicted, the lower bound, and how sure the step is that most of it is made of."""
    prompt, generate = asked.prompt, asked.generate

    def job(by: Pricing) -> Callable[[int], Any]:
        chunk = asked.chunk if by is pricing else None
        return lambda batch: by.workload(program, device, engine, (batch, prompt, generate), chunk)

    if metric == "token":
        expected, least = (ClosedLoop(job(by)(1), LONGEST) for by in (pricing, IDEAL))
        whole = replace(least.job, memory_utilization=1.0)  # more than engines use
        most = replace(least, job=whole).in_flight
        prompts = float(job(IDEAL)(1).prefill.interval_s) / generate / program.parallelism.dp
        bound = max(least.bound_s(most) / most, prompts)
        return 1 / expected.output_tokens_per_s, bound, of_step(expected.step(expected.in_flight))
    whole = job(pricing)(asked.batch)
    sure = of_step(whole.prefill if metric == "ttft" or whole.decode is None else whole.decode)
    if metric == "e2e":
        within = closed_loop.fitting(job(IDEAL)(1), asked.batch)
        return closed_loop.waves(job(pricing), asked.batch, within), job(IDEAL)(asked.batch).e2e_s, sure
    name = f"{metric}_s"
    return getattr(whole, name), getattr(job(IDEAL)(asked.batch), name), sure
