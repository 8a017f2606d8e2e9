"""Validation of chat logs: each request is estimated separately and compared with its measured
times, if any.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.request.workload import Workload
from llmir.backends.silicon.rows import Array, Table
from llmir.backends.silicon.tables.chat import UNITS, timed
from llmir.backends.silicon.tables.table import header
from llmir.base import readers
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.ir.core.program import Program

from .bounds import MODEL
from .estimates import IDEAL, CostModelChoice, step_basis
from .rows import ValidationRow

FAR = 30  # ratio to the prediction; a wrong unit gives a ratio of 1000


@dataclass(frozen=True)
class ChatSetup:
    """How to estimate a log: each request runs in a batch of `batch` equal requests; `unit` is the unit of
    times without one.
    """

    program: Program
    device: Device
    engine: str = ""
    batch: int = 1
    unit: str = ""

    def fits(self, pricing: CostModelChoice, prompt: int, generate: int) -> bool:
        """Whether a batch of these requests fits in the usable memory."""
        return self.job(pricing, prompt, generate).fits

    def job(self, pricing: CostModelChoice, prompt: int, generate: int) -> Workload:
        """The workload of a batch of these requests."""
        return pricing.workload(self.program, self.device, self.engine, (self.batch, prompt, generate))


def chat(
    path: Path, t: Table, on: ChatSetup, pricing: CostModelChoice
) -> tuple[list[ValidationRow], list[str]]:
    """Estimate the requests of a log: rows for TTFT, TPOT and end-to-end time, and questions about times that
    look wrong.
    """
    if on.unit not in ("", *UNITS):
        raise InputError(f"unit: expected {', '.join(UNITS)}, got {on.unit!r}")
    measured = measurements(path.name, t, header(path), on.unit)
    predicted = figures(t, on, pricing)
    least = predicted if pricing.name == "ideal" else figures(t, on, IDEAL)
    prompts, answers = (t[c].astype(int).tolist() for c in ("input_tokens", "output_tokens"))
    all_fit = not prompts or on.fits(pricing, max(prompts), max(answers))
    at = on.device.name, on.engine, on.engine, on.program.name, ""
    middle = int(np.median(prompts)) if prompts else 1
    sure = {
        metric: step_basis(pricing.step(on.program, on.device, on.engine, on.batch, *step))
        for metric, step in {"ttft": (middle, 0), "tpot": (1, middle), "e2e": (1, middle)}.items()
    }
    found = []
    for i, line in enumerate(t["line"]):
        if not all_fit and not on.fits(pricing, prompts[i], answers[i]):
            reason = f"does not fit on {on.program.devices} × {on.device.name}"
            found.append(ValidationRow(path.name, int(line), "chat", "e2e", *at, reason=reason))
            continue
        for metric, seconds in predicted.items():
            if np.isnan(seconds[i]):
                continue
            was = float(measured[metric][i]) if metric in measured else np.nan
            bound = float(least[metric][i])
            rule = MODEL if bound > was else ""
            where = path.name, int(line), "chat", metric, *at
            found.append(ValidationRow(*where, was, float(seconds[i]), bound, *sure[metric], rule))
    return found, _questions(path.name, measured, predicted, least)


def figures(t: Table, on: ChatSetup, pricing: CostModelChoice) -> dict[str, Array]:
    """Seconds of each request, by metric; TPOT is NaN if there is only one output token.

    Each length is estimated once, and the decode steps up to the longest request once for all requests.
    """
    prompt, generate = (t[c].astype(int) for c in ("input_tokens", "output_tokens"))
    if not len(t):
        return {metric: np.zeros(0) for metric in ("ttft", "tpot", "e2e")}
    lengths, at = np.unique(prompt, return_inverse=True)

    def seconds(new: Any, context: Any) -> Any:
        return pricing.step(on.program, on.device, on.engine, on.batch, new, context)

    reads = np.array(np.atleast_1d(seconds(lengths, 0).time_s))
    budget = on.job(pricing, int(lengths[0]), 1).budget or int(lengths[-1]) * on.batch
    for i in np.flatnonzero(lengths * on.batch > budget):  # more than one step, or several ranks
        reads[i] = on.job(pricing, int(lengths[i]), 1).ttft_s
    first = reads[at]
    cached = np.arange(int((prompt + generate).max()))
    steps = np.concatenate([[0.0], np.cumsum(seconds(1, cached).period_s)])
    later = steps[prompt + generate - 1] - steps[prompt]  # contexts prompt … prompt + generate − 2
    return {
        "ttft": first,
        "tpot": np.where(generate > 1, later / np.maximum(generate - 1, 1), np.nan),
        "e2e": first + later,
    }


def measurements(file: str, t: Table, names: Sequence[str], unit: str) -> dict[str, Array]:
    """Measured seconds by metric; if a figure has several columns, the first one counts.

    Raises `InputError` if a column states no unit, and `unit` is not given.
    """
    found: dict[str, Array] = {}
    for column, metric, scale in timed(names, unit):
        if not scale:
            units = " or ".join(f"{column}_{name}" for name in UNITS)
            raise InputError(f"{file}: {column} states no unit; rename it to {units}, or set --unit")
        found.setdefault(metric, t[column] * scale)
    return found


def _questions(file: str, measured: dict[str, Array], *priced: dict[str, Array]) -> list[str]:
    """Impossible times that most requests have, with one line for each kind."""
    found = []
    predicted, least = priced
    for metric, seconds in measured.items():
        known = ~np.isnan(seconds) & ~np.isnan(predicted[metric])
        if not known.any():
            continue
        times = float(np.median(seconds[known] / predicted[metric][known]))
        below = float(np.mean(seconds[known] < least[metric][known]))
        if times > FAR or below > 0.5:
            how = (
                f"{times:,.0f} times as long as predicted"
                if times > FAR
                else "shorter than any machine can be"
            )
            found.append(
                f"{file}: {metric} is {how} in the middle; is it in the unit that it is said to be in?"
            )
    return found


def beside(path: Path, rows: Sequence[ValidationRow]) -> list[dict[str, object]]:
    """The columns of the log with predicted seconds and lower bounds added, for rows with an estimate."""
    names = (f"{which}_{m}_s" for m in ("ttft", "tpot", "e2e") for which in ("predicted", "ideal"))
    empty: dict[str, object] = dict.fromkeys((*names, "basis", "band"))
    priced: dict[int, dict[str, object]] = {}
    for r in rows:
        if r.file == path.name:
            said = {f"predicted_{r.metric}_s": r.predicted_s, f"ideal_{r.metric}_s": r.ideal_s}
            priced.setdefault(r.row, dict(empty)).update(said, basis=r.basis, band=r.band)
    with readers.table(path, "more") as reader:
        return [{**row, **priced.get(n, empty)} for n, row in enumerate(reader, 1)]
