"""The figures of a step as code: what a sweep asks of each of its points, evaluated together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmir.backends import cost
from llmir.backends.analysis.asked import checked, running
from llmir.backends.analysis.code import Code
from llmir.backends.analysis.costs import Kind, Priced
from llmir.backends.analysis.plan import Plan, plan
from llmir.backends.analysis.timing import Overhead
from llmir.backends.cost import BOUNDS, Model
from llmir.dim import Binding, Number
from llmir.frozen import Array
from llmir.graph import Program

WORK = ("flops", "read_bytes", "write_bytes", "comm_bytes")
BYTES = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")
SHARES = (*(f"{bound}_share" for bound in BOUNDS), "bubble_share")
_ERRORS = ("own", "others", "known")  # sums of `costs.error`, over ops whose errors are known
_OUTPUTS = ("time_s", "interval_s", "ideal_time_s", *WORK, *BYTES, *SHARES, *_ERRORS)


def figures(program: Program, model: Model, batch: Array, new: Array, context: Array) -> dict[str, Array]:
    """What `Report` says of steps, by name, and `interval_s`; of one new token each, or of others.

    Errors that nobody knows are NaN.
    """
    program, _, at = running(program, [checked(batch, new, context)], "")
    steps = plan(program, model)

    def record(at: Binding) -> tuple[Number, ...]:
        return _figures(steps, at)

    always = 1 if np.all(new == 1) else None
    code = Code(record, always) if model.symbolic else record
    values = (np.broadcast_to(value, at.shape) for value in code(at))
    found: dict[str, Array] = dict(zip(_OUTPUTS, values, strict=True))
    own, others, known = (found.pop(name) for name in _ERRORS)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts, host = (own / known, others / known), model.host_error or 0.0
        if model.lent_in_host:  # as `costs.error`
            found["error"] = np.maximum(np.hypot(*parts), host)
        else:
            found["error"] = np.hypot(np.maximum(parts[0], host), parts[1])
    return found


def _figures(steps: Plan, at: Binding) -> tuple[Number, ...]:
    """Those of `_OUTPUTS`, at a point, on a grid, or of symbols."""
    alone, busy = (tuple(seconds) for seconds in steps.priced(at))
    timing = steps.timing(at, busy)
    ideal = plan(steps.program, cost.model(steps.model.device, "ideal")).timing(at)
    runs, parts = steps.runs(at), steps.program.micro_batches
    whole = steps.depth * timing.step
    shares: list[Number] = [0.0] * len(BOUNDS)
    errors: list[Number] = [0.0] * len(_ERRORS)
    for kind in steps.kinds:
        time, bound, _, which = Priced.of(kind.price, runs if kind.pads else at, at)
        share = parts * _repeats(steps, kind) * time / whole
        shares = [total + at.xp.where(bound == i, share, 0.0) for i, total in enumerate(shares)]
        known = _known(kind, which, at)
        errors = [total + share * part for total, part in zip(errors, known, strict=True)]
    for added in steps.overheads(at, (alone, busy)):
        shares[-1] = shares[-1] + at.xp.maximum(parts * _sum(added) / whole, 0.0)
    bubble = sum(timing.bubbles[1:], timing.bubbles[0]) / whole
    every = [*shares, bubble]
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
        *(share / at.xp.where(total > 0, total, 1.0) for share in every),
        *errors,
    )


def _repeats(steps: Plan, kind: Kind) -> int:
    """How often a micro-batch runs rows that are alike."""
    return sum(steps.rows[i].repeat for i in (kind.first, *(i for i, _ in kind.others)))


def _known(kind: Kind, which: Number, at: Binding) -> list[Number]:
    """What a share of the step adds to each of `_ERRORS`, by the kernel that is fastest."""
    prices: Sequence[Any] = getattr(kind.price, "prices", (kind.price,))
    found: list[Number] = [0.0] * len(_ERRORS)
    for i, price in enumerate(prices):
        if price.error is None:
            continue
        lent = min(price.lent, price.error)
        terms = ((price.error**2 - lent**2) ** 0.5, lent, 1.0)
        if len(prices) == 1:
            return list(terms)
        found = [at.xp.where(which == i, term, so_far) for term, so_far in zip(terms, found, strict=True)]
    return found


def _sum(added: Overhead) -> Number:
    return sum(added[1:], added[0])
