"""A chat log: requests by their tokens, each priced on its own, beside what was measured if it was."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.analysis.workload import Workload
from llmir.backends.silicon.calibrate import Table
from llmir.graph import Program
from llmir.hw import Device

from .bounds import MODEL
from .judged import Findings, Judged, Refused
from .pricing import IDEAL, Pricing
from .tables import chat_columns, header

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Chat:
    """What a log's requests ran on: each in a batch of `batch` like it."""

    program: Program
    device: Device
    engine: str = ""
    batch: int = 1

    def fits(self, prompt: int, generate: int) -> bool:
        """Whether a batch of such requests stays within the memory that may be used."""
        return Workload(self.program, self.device, self.batch, prompt, generate).fits


def chat(found: Findings, path: Path, t: Table, on: Chat, pricing: Pricing) -> None:
    """Add a log's requests to `found`: TTFT, TPOT and end to end of each."""
    predicted = figures(t, on, pricing)
    measured = measurements(t, header(path))
    least = predicted if pricing.name == "ideal" else figures(t, on, IDEAL)
    prompts, answers = (t[c].astype(int).tolist() for c in ("input_tokens", "output_tokens"))
    all_fit = not prompts or on.fits(max(prompts), max(answers))
    at = (on.device.name, on.engine, on.engine, on.program.name, "")
    for i, line in enumerate(t["line"]):
        if not all_fit and not on.fits(prompts[i], answers[i]):
            reason = f"does not fit on {on.program.devices} × {on.device.name}"
            found.refused.append(Refused(path.name, int(line), "chat", "e2e", *at, reason))
            continue
        for metric, seconds in predicted.items():
            if np.isnan(seconds[i]):
                continue
            was = float(measured[metric][i]) if metric in measured else np.nan
            bound = float(least[metric][i])
            rule = MODEL if bound > was else ""
            found.rows.append(
                Judged(path.name, int(line), "chat", metric, *at, was, float(seconds[i]), bound, rule)
            )


def figures(t: Table, on: Chat, pricing: Pricing) -> dict[str, Array]:
    """Seconds of each request, by metric; TPOT is NaN where one token is all there is.

    Each length is priced once, and the decode steps up to the longest request once for all.
    """
    prompt, generate = (t[c].astype(int) for c in ("input_tokens", "output_tokens"))
    if not len(t):
        return {metric: np.zeros(0) for metric in ("ttft", "tpot", "e2e")}
    lengths, at = np.unique(prompt, return_inverse=True)

    def seconds(new: Any, context: Any) -> Any:
        return pricing.step(on.program, on.device, on.engine, on.batch, new, context)

    first = np.atleast_1d(seconds(lengths, 0).time_s)[at]
    cached = np.arange(int((prompt + generate).max()))
    steps = np.concatenate([[0.0], np.cumsum(seconds(1, cached).period_s)])
    later = steps[prompt + generate - 1] - steps[prompt]  # contexts prompt … prompt + generate − 2
    return {
        "ttft": first,
        "tpot": np.where(generate > 1, later / np.maximum(generate - 1, 1), np.nan),
        "e2e": first + later,
    }


def measurements(t: Table, names: Sequence[str]) -> dict[str, Array]:
    """Measured seconds by metric; of two columns of a figure the first counts."""
    found: dict[str, Array] = {}
    for column, metric, scale in chat_columns(names):
        found.setdefault(metric, t[column] * scale)
    return found


def beside(path: Path, rows: Sequence[Judged]) -> list[dict[str, object]]:
    """The log's own columns, with predicted and least seconds beside them; for rows that could be priced."""
    priced: dict[int, dict[str, object]] = {}
    for r in rows:
        if r.file == path.name:
            own = priced.setdefault(r.row, {})
            own |= {f"predicted_{r.metric}_s": r.predicted_s, f"ideal_{r.metric}_s": r.ideal_s}
    with path.open(newline="", encoding="utf-8-sig") as file:
        logged = list(csv.DictReader(file, restkey="more"))
    empty = {f"{which}_{m}_s": None for m in ("ttft", "tpot", "e2e") for which in ("predicted", "ideal")}
    return [{**row, **empty, **priced.get(n, {})} for n, row in enumerate(logged, 1)]
