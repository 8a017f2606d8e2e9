"""The figures of a step as code: what a sweep asks of each of its points, evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmir.backends.cost import models
from llmir.backends.cost.op_time import Model
from llmir.backends.step import costs
from llmir.backends.step.costs import Kind, Priced
from llmir.backends.step.evaluate import Plan, plan
from llmir.backends.step.functions import SIZES, Code
from llmir.backends.step.parts import LATE
from llmir.backends.step.sizes import checked, running
from llmir.backends.step.timing import Overhead, Timing
from llmir.backends.tape.record import Function, Symbol
from llmir.backends.work.limit import BOUNDS
from llmir.base.array_namespace import Number
from llmir.base.values import Array
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

WORK = ("flops", "read_bytes", "write_bytes", "comm_bytes")
BYTES = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")
SHARES = (*(f"{bound}_share" for bound in BOUNDS), "bubble_share")
_ERRORS = ("own", "others", "beyond", "known")  # sums of `costs.error`, over ops whose errors are known
_OUTPUTS = ("time_s", "interval_s", "ideal_time_s", *WORK, *BYTES, *SHARES, *_ERRORS)


class Figures:
    """What `Report` says of steps of a program, by name, and `interval_s`."""

    def __init__(self, program: Program, model: Model) -> None:
        self.program, self.model = program, model
        self._recorded: dict[tuple[str, bool], Callable[[Binding], tuple[Number, ...]]] = {}

    def __call__(self, batch: Number, new: Number, context: Number) -> dict[str, Array]:
        """Those at points of one phase, of which all or none have one new token; unknown errors are NaN.

        Arrays broadcast together, as do the figures: what a batch alone decides is computed once for it.
        """
        program, phase, at = running(self.program, [checked(batch, new, context)], "")
        always = bool(np.all(np.asarray(new) == 1))
        if (phase, always) not in self._recorded:
            self._recorded[phase, always] = self._record(program, always)
        found: dict[str, Any] = dict(zip(_OUTPUTS, self._recorded[phase, always](at), strict=True))
        *parts, known = (found.pop(name) for name in _ERRORS)
        with np.errstate(divide="ignore", invalid="ignore"):
            host = self.model.host_error or 0.0
            found["error"] = costs.whole_error((np.divide(part, known) for part in parts), host)
        return found

    def _record(self, program: Program, always: bool) -> Callable[[Binding], tuple[Number, ...]]:
        steps = plan(program, self.model)

        def record(at: Binding) -> tuple[Number, ...]:
            return _figures(steps, at)

        return Code(record, 1 if always else None) if self.model.symbolic else record


def _figures(steps: Plan, at: Binding) -> tuple[Number, ...]:
    """Those of `_OUTPUTS`, at a point, on a grid, or of symbols."""
    seconds = steps.priced(at)
    timing = Timing(seconds.whole, steps.program.micro_batches)
    ideal = plan(steps.program, models.model(steps.model.device, "ideal")).timing(at)
    runs, parts = steps.runs(at), steps.program.micro_batches
    priced = [(kind, Priced.of(kind.price, runs if kind.pads else at, at)) for kind in steps.kinds]
    # Sums of what contexts do not decide come first, as those are computed once for a batch.
    varies = _varies([each.time for _, each in priced])
    due: list[Number] = [0.0] * len(BOUNDS)
    errors: list[Number] = [0.0] * len(_ERRORS)
    for _, (kind, each) in sorted(zip(varies, priced, strict=True), key=lambda item: item[0]):
        time = parts * _repeats(steps, kind) * each.time
        due = [total + at.xp.where(each.bound == i, time, 0.0) for i, total in enumerate(due)]
        known = _known(kind, time, each.which, at)
        errors = [total + part for total, part in zip(errors, known, strict=True)]
    for added in steps.overheads(at, seconds):
        due[-1] = due[-1] + at.xp.maximum(parts * _sum(added), 0.0)
    every = [*due, sum(timing.bubbles[1:], timing.bubbles[0])]
    total = sum(every[1:], every[0])
    return (
        timing.step,
        timing.interval,
        ideal.step,
        *(at(steps.totals.get(name, 0)) for name in WORK),
        steps.fullest(lambda memory: at(memory.weights), at),
        steps.fullest(lambda memory: at(memory.caches), at),
        steps.fullest(lambda memory: memory.transient(at), at),
        steps.fullest(lambda memory: memory.peak(at), at),
        *(part / at.xp.where(total > 0, total, 1.0) for part in every),
        *errors,
    )


def _repeats(steps: Plan, kind: Kind) -> int:
    """How often a micro-batch runs rows that are alike."""
    return sum(steps.rows[i].repeat for i in (kind.first, *(i for i, _ in kind.others)))


def _varies(times: Sequence[Number]) -> list[bool]:
    """Which of them contexts decide, as far as that is recorded."""
    of = [time for time in times if isinstance(time, Symbol)]
    late = Function.of(of[0].tape, SIZES, of).depending(LATE) if of else ()
    return [isinstance(time, Symbol) and time.number in late for time in times]


def _known(kind: Kind, time: Number, which: Number, at: Binding) -> list[Number]:
    """What seconds of a kind add to each of `_ERRORS`, by the kernel that is fastest."""
    prices: Sequence[Any] = getattr(kind.price, "prices", (kind.price,))
    found: list[Number] = [0.0] * len(_ERRORS)
    for i, price in enumerate(prices):
        if price.error is None:
            continue
        parts = costs.error_parts(price.error, price.lent, price.beyond)
        terms = (*(time * part if part else 0.0 for part in parts), time)
        if len(prices) == 1:
            return list(terms)
        found = [at.xp.where(which == i, term, so_far) for term, so_far in zip(terms, found, strict=True)]
    return found


def _sum(added: Overhead) -> Number:
    return sum(added[1:], added[0])
