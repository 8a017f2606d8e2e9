"""What pages compute at a thousand points, in node and in Chromium, beside workloads and steps on arrays.

    PYTHONPATH=. python -m tests.backends.export.page.page_points 400 --points 1000 --in node,chromium

A point is a request, of which its steps and its memory are compared, and of each tenth its figures. Python
prices steps on arrays, by the prices themselves and not by code recorded of them.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import llmir
from llmir.backends.export import page
from llmir.base.errors import LlmirError
from tests.backends.export.covering import Case, Far, command
from tests.backends.step.code_cases import AXES
from tests.flat import records
from tests.javascript import Run, opened

from .page_cases import AMOUNTS, FIGURES, SPLITS, jobs_of, page_of

Array = npt.NDArray[np.float64]
# Batch of a micro-batch, prompt, generate: corners, where tiles, waves and chunks of prompts jump.
CORNERS = tuple(
    itertools.product(
        (1, 2, 8, 64, 132, 300), (1, 2, 8, 9, 63, 64, 65, 128, 129, 1000, 4099, 20_001), (1, 2, 3)
    )
)
KEYS = (*FIGURES, "capacity_bytes")
TIMES = ("time_s", "ideal_time_s", "error")
STAGE = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes")
OP = (*TIMES, *AMOUNTS, "bound", "basis")
NONE = -1.0  # where there is no such figure
SIZES = 3  # of a step, before its figures
EVERY = 10  # points, of which one has figures of its request

SCRIPT = """
import { text, say } from "./outside.js";
import { Setup, once } from "./price.js";
const { told, points, every, figures, times, op } = JSON.parse(await text("given.json"));
(0, eval)(await text("functions.txt"));
const setup = new Setup(told.setups[0], told.tables, once(globalThis.llmirFunctions), told);
const words = new Map(), rows = {}, peaks = [], requests = [], names = {};
const place = (word) => words.get(word) ?? (words.set(word, words.size), words.size - 1);
const number = (value) => value === null ? -1 : typeof value === "string" ? place(value) : value;
points.forEach(([batch, prompt, generate], i) => {
  const at = { batch, prompt, generate }, { prefill, decode } = setup.steps(at);
  const request = i % every ? null : { ...setup.request(at), capacity_bytes: setup.capacity_bytes };
  if (request) for (const name of figures) requests.push(number(request[name]));
  peaks.push(setup.peak(batch, prompt, generate).bytes);
  for (const step of [prefill, decode].filter(Boolean)) {
    const { name } = step.phase, list = rows[name] ??= [];
    names[name] ??= step.ops.map((each) => each.name);
    list.push(step.batch, step.fresh, step.context);
    for (const { weights, caches, activations } of step.memory) list.push(weights, caches, activations);
    for (const each of times) list.push(number(step[each]));
    for (const each of step.ops) for (const key of op) list.push(number(each[key]));
  }
});
const all = [requests, peaks, ...Object.values(rows)];
const head = JSON.stringify({ words: [...words.keys()], names, counts: all.map((each) => each.length) });
await say(await new Blob([head, "\\n", ...all.map((each) => Float64Array.from(each))]).arrayBuffer());
"""


class Said(NamedTuple):
    """What a page says of points: rows of some requests, all peaks, steps by phase; words by their places."""

    words: list[str]
    names: dict[str, list[str]]
    requests: Array
    peaks: Array
    steps: dict[str, Array]


def points(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """So many: corners first, then any, whose logarithms are evenly spread."""
    draw = random.Random(seed)
    any_ = (tuple(int(2 ** draw.uniform(0, top)) for top in (10, 16, 6)) for _ in range(count))
    return list(itertools.islice(itertools.chain(CORNERS, any_), count))  # type: ignore[arg-type]


def said(told: Any, source: str, asked: Iterable[tuple[int, int, int]], run: Run) -> Said:
    """What the page of a set-up says of points."""
    given = {"told": told, "points": [*asked], "every": EVERY, "figures": KEYS, "times": TIMES, "op": OP}
    texts = {"given.json": json.dumps(given), "functions.txt": source, "run.js": SCRIPT}
    texts["price.js"] = files(page).joinpath("price.js").read_text(encoding="utf-8")
    head, _, body = run(texts).partition(b"\n")
    known = json.loads(head)
    first, peaks, *others = np.split(np.frombuffer(body), np.cumsum(known["counts"])[:-1])
    steps = dict(zip(known["names"], others, strict=True))
    return Said(known["words"], known["names"], first.reshape(-1, len(KEYS)), peaks, steps)


class Expected:
    """What Python says of the same points: `jobs`, and their steps by phase as a page names it."""

    def __init__(self, jobs: list[llmir.Workload], analyze: Callable[..., llmir.Report]) -> None:
        self.requests = np.array([_figures(job) for job in jobs[::EVERY]])
        self.peaks = np.array([job.peak_bytes(job.batch) for job in jobs], dtype=float)
        program, sizes = jobs[0].program, dict[str, list[tuple[int, ...]]]()
        for step in (step for job in jobs for step in (job.prefill, job.decode) if step):
            name = step.phase if program.splits else "step"
            sizes.setdefault(name, []).append((step.batch, step.new, step.context))
        self.steps = {name: Step(name, of, analyze) for name, of in sizes.items()}

    def far(self, found: Said) -> Far:
        """How far a page is from it."""
        assert found.steps.keys() == self.steps.keys()
        most = max(off(*pair) for pair in zip(found.requests.T, self.requests.T, strict=True))
        far = Far(most, int(np.sum(found.peaks != self.peaks)), len(self.peaks))
        steps = (
            step.far(found.steps[name], found.names[name], found.words) for name, step in self.steps.items()
        )
        return sum(steps, start=far)


class Step:
    """Steps of one phase, at all points on arrays."""

    def __init__(self, name: str, sizes: list[tuple[int, ...]], analyze: Callable[..., llmir.Report]) -> None:
        self.sizes = np.array(sizes, dtype=float)
        at = dict(zip(("batch", "new", "context"), self.sizes.T.astype(int), strict=True))
        self.report = report = analyze(**at, phase=None if name == "step" else name)
        self.exact = [self.array(getattr(stage, key)) for stage in report.stages for key in STAGE]
        self.times = [self.array(getattr(report, key)) for key in TIMES]
        self.bases = self._bases()

    def array(self, value: Any) -> Array:
        """One for each point; `NONE` for None."""
        return np.broadcast_to(np.asarray(NONE if value is None else value, dtype=float), len(self.sizes))

    def _bases(self) -> dict[int, Any]:
        """What times are made of at each point, by the op's number, in words."""
        found, plan = dict[int, Any](), self.report.plan
        values = plan.figures(self.report.at)
        for kind in plan.kinds:
            which = self.array(values[kind.priced][-1])
            words = np.empty(len(which), dtype=object)
            for each in np.unique(which):
                words[which == each] = str(kind.price.held(int(each)).basis)
            for number in (kind.first, *(number for number, _ in kind.others)):
                found[number] = words
        return found

    def far(self, flat: Array, names: list[str], words: list[str]) -> Far:
        """How far what a page says of them is."""
        assert names == [op.name for op in self.report.work]
        rows, head = flat.reshape(len(self.sizes), -1), SIZES + len(self.exact) + len(self.times)
        exact = (*self.sizes.T, *self.exact)
        wrong = sum(int(np.sum(found != own)) for found, own in zip(rows.T, exact, strict=False))
        times = rows.T[len(exact) : head]
        most = max(off(found, own) for found, own in zip(times, self.times, strict=True))
        return Far(most, wrong) + self.ops_far(rows[:, head:].reshape(len(rows), len(names), -1), OP, words)

    def ops_far(self, said: Array, keys: Sequence[str], words: list[str]) -> Far:
        """How far what is said of each op is, at each point by keys; of texts the places among words."""
        most, wrong, texts = 0.0, 0, np.array(words, dtype=object)
        for number, (found, op) in enumerate(zip(said.transpose(1, 2, 0), self.report.work, strict=True)):
            for column, key in zip(found, keys, strict=True):
                if key in ("bound", "basis"):
                    own = op.bound if key == "bound" else self.bases[number]
                    wrong += int(np.sum(texts[column.astype(int)] != own))
                else:
                    most = max(most, off(column, self.array(getattr(op, key))))
        return Far(most, wrong)


def _figures(job: llmir.Workload) -> list[float]:
    values: list[float | None] = [getattr(job, name) for name in KEYS]
    return [NONE if value is None else value for value in values]


def off(found: Array, expected: Array) -> float:
    """The largest relative difference; none where both are no number, or without end."""
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        far = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-30)
    return float(np.max(np.where(same, 0.0, np.where(np.isnan(far), np.inf, far)), initial=0.0))


@contextmanager
def comparing(count: int, places: Iterable[str]) -> Iterator[Callable[[Case], dict[str, Far] | None]]:
    """What compares a case at so many points, and says how far each place is; None of no program."""
    with opened(places) as runs:

        def compare(case: Case) -> dict[str, Far] | None:
            try:
                program, device, priced, told, functions = page_of(case)
            except LlmirError:
                return None
            asked = [(batch * program.micro_batches, *rest) for batch, *rest in points(count)]
            jobs, source = jobs_of(program, device, asked, priced), functions.source
            expected = Expected(
                jobs, partial(llmir.analyze, program, device, **records(llmir.analyze, **priced))
            )
            return {place: expected.far(said(told, source, asked, run)) for place, run in runs.items()}

        yield compare


if __name__ == "__main__":
    command(comparing, {**AXES, "sharding": SPLITS})
