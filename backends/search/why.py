"""Why a plan is not the first: the constraint that binds, by how much, and the op behind it."""

from __future__ import annotations

from typing import NamedTuple

from llmir.backends.analysis.costs import OVERHEAD
from llmir.backends.analysis.report import Report

from .plan import Candidate, Plans
from .structure import room


class Why(NamedTuple):
    """What binds a plan: `ttft`, `tpot`, `cost` or `devices`, and by how much.

    `by` is in seconds over the limit (below 0: what is left of it), or a share of the first plan's cost or
    devices that it takes more. `op` takes the `share` of the step that is behind it, `step` says which one,
    and `than` is its share in the first plan, where they are compared. `waiting` says that
    requests wait for others to end, as no more are admitted.
    """

    constraint: str
    by: float
    step: str
    op: str
    share: float
    than: float | None = None
    waiting: bool = False


def shares(report: Report) -> dict[str, float]:
    """The share of a step of each op, in all layers together, by the last part of its name."""
    found: dict[str, float] = {}
    for cost in report.ops:
        name = OVERHEAD if cost.kind == OVERHEAD else cost.name.rpartition(".")[2]
        found[name] = found.get(name, 0.0) + float(cost.share)
    return found


def decode(candidate: Candidate) -> Report:
    """The step that decodes as many as are there on average, half way through their answers."""
    traffic, s = candidate.traffic, candidate.structure
    context = traffic.read + traffic.answer // 2
    return Report(s.program, s.device, batch=candidate.decoding, new=1, context=context, model=s.model)


def prefill(candidate: Candidate) -> Report:
    """The step that reads a prompt, or its last chunk."""
    s, prompt, chunk = candidate.reads, candidate.traffic.read, candidate.chunk
    new = min(prompt - candidate.traffic.cached, chunk)
    return Report(s.program, s.device, batch=1, new=new, context=prompt - new, model=s.model)


def why(plans: Plans, candidate: Candidate) -> Why:
    """What binds a plan: the limit that it misses most, else what it costs more, else the nearest limit."""
    traffic, best = candidate.traffic, plans.best
    limits = {"ttft": (0, traffic.ttft), "tpot": (1, traffic.tpot)}
    used = {name: (candidate.trial.expected(i), of.seconds) for name, (i, of) in limits.items() if of}
    nearest = max(used, key=lambda name: used[name][0] / used[name][1]) if used else ""
    missed = bool(nearest) and used[nearest][0] > used[nearest][1]
    if best is not None and candidate is not best and not missed:
        return _dearer(plans, candidate, best)
    step, report = ("prefill", prefill(candidate)) if nearest == "ttft" else ("decode", decode(candidate))
    op, share = max(shares(report).items(), key=lambda item: item[1])
    by = used[nearest][0] - used[nearest][1] if nearest else 0.0
    return Why(nearest or _deciding(plans), by, step, op, share, None, missed and _full(candidate))


def _deciding(plans: Plans) -> str:
    return "cost" if plans.priced else "devices"


def _dearer(plans: Plans, candidate: Candidate, best: Candidate) -> Why:
    """What more it costs, and the op that takes most more of its devices' time for a token."""
    if plans.priced:
        by = (candidate.cost_per_hour_usd or 0.0) / (best.cost_per_hour_usd or 1.0) - 1
    else:
        by = candidate.devices / best.devices - 1
    own, others = _of_a_token(candidate), _of_a_token(best)
    op = max(own, key=lambda name: own[name] - others.get(name, 0.0))
    if own[op] <= others.get(op, 0.0):  # its devices work less: they are dearer, or more than it needs
        op = max(own, key=lambda name: own[name])
    share, than = (shares(decode(each)).get(op, 0.0) for each in (candidate, best))
    return Why(_deciding(plans), by, "decode", op, share, than)


def _of_a_token(candidate: Candidate) -> dict[str, float]:
    """Seconds that all devices of a replica spend on a token, by op."""
    step = decode(candidate)
    each = float(step.time_s) * candidate.structure.split.devices / candidate.decoding
    return {name: share * each for name, share in shares(step).items() if name != OVERHEAD}


def _full(candidate: Candidate) -> bool:
    """Whether more requests are in flight than have room."""
    s, traffic = candidate.structure, candidate.traffic
    job = s.job(traffic.read, traffic.answer, traffic.longest, candidate.chunk, candidate.batch)
    return candidate.in_flight >= room(job).requests
