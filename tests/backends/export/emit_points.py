"""What modules of `emit` say at a thousand steps, in node and in Chromium, beside steps on arrays.

    PYTHONPATH=. python -m tests.backends.export.emit_points 400 --points 1000 --in node,chromium

Python prices on arrays, by the prices themselves and not by code recorded of them; its FLOPs and bytes are
integers of each step, which modules have as BigInt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

import llmir
from llmir.backends.request.portable import STEP
from llmir.backends.work.rows import AMOUNTS
from llmir.base.errors import LlmirError
from llmir.ir.sizes.binding import Binding
from tests.backends.export.page.page_points import Array, Step, off
from tests.backends.step.code_cases import AXES, STEPS, asked
from tests.flat import records
from tests.javascript import Run, opened

from .covering import Case, Far, command

SCRIPT = """
import { text, say } from "./outside.js";
import { price, ops } from "./module.js";
const { groups, step, op, amounts } = JSON.parse(await text("given.json"));
const words = new Map(), place = (word) => words.get(word) ?? (words.set(word, words.size), words.size - 1);
const number = (value) => value === null ? -1 : typeof value === "string" ? place(value) : value;
const found = groups.map((points) => points.map((at) => {
  const whole = price(...at), own = ops(...at);
  const each = (of, names) => names.map((name) => number(of[name]));
  return [each(whole, step), own.map((of) => each(of, op)), own.map((of) => each(of, amounts))];
}));
const names = groups.map(([at]) => ops(...at).map(({ name, repeat }) => [name, repeat]));
const exact = (_, value) => typeof value === "bigint" ? value.toString() : value;
await say(JSON.stringify({ words: [...words.keys()], names, found }, exact));
"""
OP = ("time_s", "ideal_time_s", "error", "bound", "basis")


def points(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Sequences, new tokens and cached ones: corners first, then any, whose logarithms are evenly spread."""
    draw = random.Random(seed)

    def some(top: int) -> int:
        return int(2 ** draw.uniform(0, top))

    any_ = ((some(10), draw.choice((1, some(13))), some(17) - 1) for _ in range(count))
    return list(islice(chain(STEPS, any_), count))


class Expected:
    """Steps of a program, those of a phase together."""

    def __init__(
        self, program: llmir.Program, at: Iterable[tuple[int, ...]], analyze: Callable[..., llmir.Report]
    ) -> None:
        sizes = dict[str, list[tuple[int, ...]]]()
        for batch, new, context in at:
            one = batch * program.micro_batches, new, context
            report = analyze(**dict(zip(("batch", "new", "context"), one, strict=True)))
            sizes.setdefault(report.phase if program.splits else "step", []).append(one)
        self.groups = list(sizes.values())
        self.steps = [Step(name, of, analyze) for name, of in sizes.items()]
        self.counts = [
            [*_counts(step.report.plan, of, program.micro_batches)]
            for step, of in zip(self.steps, self.groups, strict=True)
        ]

    def said(self, source: str, run: Run) -> Any:
        """What a module says of them."""
        given = {"groups": self.groups, "step": STEP, "op": OP, "amounts": AMOUNTS}
        return json.loads(run({"module.js": source, "given.json": json.dumps(given), "run.js": SCRIPT}))

    def far(self, said: Any) -> Far:
        """How far that is."""
        fars = Far(points=sum(map(len, self.groups)))
        groups = zip(self.steps, self.counts, said["names"], said["found"], strict=True)
        for step, counts, names, found in groups:
            assert names == [[op.name, op.repeat] for op in step.report.work]
            whole, ops, amounts = zip(*found, strict=True)
            fars += step.ops_far(np.array(ops, dtype=float), OP, said["words"])
            fars += _steps_far(step, np.array(whole, dtype=float))
            fars += _counts_far(chain.from_iterable(amounts), chain.from_iterable(counts))
        return fars


def _steps_far(step: Step, said: Array) -> Far:
    fars = Far()
    for name, column in zip(STEP, said.T, strict=True):
        own = step.array(getattr(step.report, name))
        bytes = name.endswith("_bytes")
        fars += Far(wrong=int(np.sum(column != own))) if bytes else Far(off(column, own))
    return fars


def _counts_far(said: Iterable[list[Any]], expected: Iterable[list[Any]]) -> Far:
    """Of amounts of ops; whole ones are said as texts, so that none is a rounded number."""
    most, wrong = 0.0, 0
    for found, own in zip(said, expected, strict=True):
        if found == own:
            continue
        for one, other in zip(found, own, strict=True):
            if isinstance(other, str):
                wrong += one != other
            else:
                most = max(most, abs(float(one) - other) / max(abs(other), 1e-30))
    return Far(most, wrong)


def _counts(plan: Any, sizes: Iterable[tuple[int, ...]], parts: int) -> Iterator[list[list[Any]]]:
    """FLOPs and bytes of each op at each step, as exact as Python is."""
    for batch, new, context in sizes:
        at, found = Binding(B=batch // parts, T=new, C=context), dict[int, list[Any]]()
        for kind in plan.kinds:
            values = map(at, kind.row.amounts.values())
            own = [str(value) if isinstance(value, int) else value for value in values]
            for number in (kind.first, *(number for number, _ in kind.others)):
                found[number] = own
        yield [found[number] for number in sorted(found)]


@contextmanager
def comparing(count: int, places: Iterable[str]) -> Iterator[Callable[[Case], dict[str, Far] | None]]:
    """What compares a case at so many steps, and says how far each place is; None of no program."""
    with opened(places) as runs:

        def compare(case: Case) -> dict[str, Far] | None:
            try:
                program, priced = asked(case)
                source = llmir.emit(program, **records(llmir.emit, **priced))
            except LlmirError:
                return None
            expected = Expected(
                program, points(count), partial(llmir.analyze, program, **records(llmir.analyze, **priced))
            )
            return {place: expected.far(expected.said(source, run)) for place, run in runs.items()}

        yield compare


if __name__ == "__main__":
    command(comparing, AXES)
