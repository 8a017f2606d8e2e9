"""Every row of measured tables, priced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.serving import loop
from llmir.backends.silicon.calibrate import Machines, Table, named
from llmir.backends.silicon.calibrate import engine as engine_of
from llmir.errors import InputError, LlmirError
from llmir.graph import Program
from llmir.hw import Device

from . import bounds, kernels
from .chat import Chat, chat
from .judged import Findings, Judged, Refused, Validation, Where
from .pricing import IDEAL, Pricing, bound
from .requests import Layout, Request, request
from .tables import table

Build = Callable[[Layout], Program]
Tell = Callable[[str, int, int], None]  # of a file, rows done of all


def validate(
    paths: Iterable[Path],
    build: Build,
    *,
    on: Chat | None = None,
    pricing: Pricing = IDEAL,
    tell: Tell = lambda *_: None,
) -> Validation:
    """All rows of CSV files, each beside its prediction.

    They are tables of kernels or of whole models, for which `build` gives the program of a layout, or, with
    `on`, chat logs. InputError for a file that is none of these.
    """
    found = Findings()
    build = _once(build)
    for path in paths:
        form, rows = table(path)
        if (form == "chat") != (on is not None):
            apart = f"a table of {form} rows says on what it ran: leave out --model"
            raise InputError(f"{path.name}: {apart if on else 'a chat log needs --model and --hw'}")
        found.problems += rows.problems
        if on:
            chat(found, path, rows, on, pricing)
        elif form == "model":
            _models(found, _File(path.name, rows, Machines(path.parent)), build, pricing, tell)
        else:
            _kernels(found, _File(path.name, rows, Machines(path.parent)), form, pricing, tell)
    return Validation(pricing.name, found.rows, found.refused, found.problems)


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

    def where(self, i: int, kind: str, metric: str = "latency") -> Where:
        """What row `i` is of."""

        def word(name: str) -> str:
            return str(self.rows[name][i]) if name in self.rows.columns else ""

        device, framework = self.device(word("gpu")), word("framework")
        gpu = word("gpu") if isinstance(device, str) else device.name
        dtype, line = word("dtype") or word("weight_dtype"), int(self.rows["line"][i])
        return Where(
            self.name, line, kind, metric, gpu, framework, engine_of(framework), word("model"), dtype
        )


def _kernels(found: Findings, file: _File, form: str, pricing: Pricing, tell: Tell) -> None:
    t = file.rows
    engines = [engine_of(f) for f in t["framework"]]
    by = list(zip(t["gpu"], engines, map(named, t["framework"], t["kernel"]), strict=True))
    done = 0
    for rows, call, kind in kernels.calls(form, t):
        tell(file.name, done := done + len(rows), len(t))
        if isinstance(call, str):
            found.refused += [Refused(*file.where(i, kind), call) for i in rows]
            continue
        for who in dict.fromkeys(by[i] for i in rows):
            own = np.array([n for n, i in enumerate(rows) if by[i] == who])
            gpu, engine, name = who
            _call(found, file, call.take(own), gpu, engine, name, pricing)


def _call(
    found: Findings,
    file: _File,
    call: kernels.Call,
    gpu: str,
    engine: str,
    name: str,
    pricing: Pricing,
) -> None:
    """The rows of one program on one device, by the kernel `name` of an engine."""
    device = file.device(gpu)
    try:
        if isinstance(device, str):
            raise InputError(device)
        least = bound(call, device)
        predicted = pricing.kernel(call, device, engine, name)
    except LlmirError as error:
        found.refused += [Refused(*file.where(i, call.kind), _reason(error)) for i in call.index]
        return
    measured = file.rows["latency_us"][call.index] * 1e-6
    rules = bounds.explain(device, measured, least)
    for i, was, will, bound_s, rule in zip(
        call.index, measured, predicted, least.seconds, rules, strict=True
    ):
        at = file.where(i, call.kind)
        found.rows.append(Judged(*at, float(was), float(will), float(bound_s), rule))


def _once(build: Build) -> Build:
    """`build`, remembered, with its errors."""

    @cache
    def remembered(layout: Layout) -> Program | LlmirError:
        try:
            return build(layout)
        except LlmirError as error:
            return error

    def call(layout: Layout) -> Program:
        made = remembered(layout)
        if isinstance(made, LlmirError):
            raise made
        return made

    return call


def _models(found: Findings, file: _File, build: Build, pricing: Pricing, tell: Tell) -> None:
    t = file.rows
    for i in range(len(t)):
        tell(file.name, i + 1, len(t))
        at = file.where(i, t["kind"][i], "")
        try:
            asked = request(t, i)
            at = at._replace(metric=next(iter(asked.figures)))
            device = file.device(t["gpu"][i])
            if isinstance(device, str):
                raise InputError(device)
            program = build(asked.layout)
            priced = {m: _figure(m, asked, program, device, at.engine, pricing) for m in asked.figures}
        except LlmirError as error:
            found.refused.append(Refused(*at, _reason(error)))
            continue
        for metric, measured in asked.figures.items():
            predicted, least = priced[metric]
            rule = bounds.MODEL if least > measured else ""
            found.rows.append(Judged(*at._replace(metric=metric), measured, predicted, least, rule))


def _figure(
    metric: str, asked: Request, program: Program, device: Device, engine: str, pricing: Pricing
) -> tuple[float, float]:
    """Seconds predicted, and the lower bound."""
    prompt, generate = asked.prompt, asked.generate

    def job(by: Pricing) -> Callable[[int], Any]:
        return lambda batch: by.workload(program, device, engine, batch, prompt, generate)

    def step(by: Pricing) -> Callable[[int, int, int], Any]:
        return lambda batch, new, cached: by.step(program, device, engine, batch, new, cached)

    if metric == "token" or (metric == "tpot" and asked.serving):
        within, most = loop.in_flight(program, device, asked.batch, prompt, generate)
        expected = loop.steady_step(step(pricing), within, prompt, generate)
        least = loop.steady_step(step(IDEAL), most, prompt, generate)
        share = (within, most) if metric == "token" else (1, 1)
        return expected.expected / share[0], least.bound / share[1]
    if metric == "e2e":
        within, _ = loop.fitting(job(IDEAL)(1), asked.batch)
        return loop.waves(job(pricing), asked.batch, within), job(IDEAL)(asked.batch).e2e_s
    name = f"{metric}_s"
    return getattr(job(pricing)(asked.batch), name), getattr(job(IDEAL)(asked.batch), name)
