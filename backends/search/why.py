"""Why a plan is not the first: the constraint that binds, by how much, and the op behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmir.backends.step.costs import OVERHEAD
from llmir.backends.step.report import Report

from .plan import Candidate, Plans
from .structure import Structure, room
from .traffic import Traffic


class Why(NamedTuple):
    """What binds a plan: `ttft`, `tpot`, `rate`, `cost` or `devices`, and by how much.

    `by` is in seconds over the limit (below 0: what is left of it), in requests a second that come and are
    not answered, or a share of the first plan's cost or devices that it takes more. `op` takes the `share` of
    the step that is behind it, `step` says which one, and `than` is its share in the first plan, where they
    are compared. `waiting` says that requests wait for others to end, as no more are admitted.
    """

    constraint: str
    by: float
    step: str
    op: str
    share: float
    than: float | None = None
    waiting: bool = False


class Beyond(NamedTuple):
    """The structure that is nearest to the limits by closed form, where none comes within them.

    With `batch` requests at once its `constraint` (`ttft` or `tpot`) takes `seconds` of the `limit`, and `op`
    the `share` of the `step` behind it.
    """

    structure: Structure
    batch: int
    constraint: str
    seconds: float
    limit: float
    step: str
    op: str
    share: float


def shares(report: Report) -> dict[str, float]:
    """The share of a step of each op, in all layers together, by the last part of its name."""
    found: dict[str, float] = {}
    for cost in report.ops:
        name = OVERHEAD if cost.kind == OVERHEAD else cost.name.rpartition(".")[2]
        found[name] = found.get(name, 0.0) + float(cost.share)
    return found


def decode(candidate: Candidate) -> Report:
    """The step that decodes as many as are there on average, half way through their answers."""
    return _decode(candidate.structure, candidate.traffic, candidate.decoding)


def _decode(s: Structure, traffic: Traffic, batch: int) -> Report:
    context = traffic.read + traffic.answer // 2
    program, new = (s.drafts.verify, s.drafts.rows) if s.drafts else (s.program, 1)
    return Report(program, s.device, batch=batch, new=new, context=context, model=s.model)


def prefill(candidate: Candidate) -> Report:
    """The step that reads a prompt, or its last chunk."""
    return _prefill(candidate.reads, candidate.traffic, candidate.chunk)


def _prefill(s: Structure, traffic: Traffic, chunk: int) -> Report:
    prompt = traffic.read
    new = min(prompt - traffic.cached, chunk)
    return Report(s.program, s.device, batch=1, new=new, context=prompt - new, model=s.model)


def why(plans: Plans, candidate: Candidate) -> Why:
    """What binds a plan: the limit that it misses most, else what it costs more, else the nearest limit."""
    traffic, best = candidate.traffic, plans.best
    limits = {"ttft": (0, traffic.ttft), "tpot": (1, traffic.tpot)}
    used = {name: (candidate.trial.expected(i), of.seconds) for name, (i, of) in limits.items() if of}
    nearest = max(used, key=lambda name: used[name][0] / used[name][1]) if used else ""
    missed = bool(nearest) and used[nearest][0] > used[nearest][1]
    if candidate.overloaded and not missed:
        op, share = max(shares(decode(candidate)).items(), key=lambda item: item[1])
        return Why("rate", traffic.rate - (candidate.largest_rate or 0.0), "decode", op, share)
    if best is not None and candidate is not best and not missed:
        return _dearer(plans, candidate, best)
    step, report = ("prefill", prefill(candidate)) if nearest == "ttft" else ("decode", decode(candidate))
    op, share = max(shares(report).items(), key=lambda item: item[1])
    by = used[nearest][0] - used[nearest][1] if nearest else 0.0
    return Why(nearest or _deciding(plans), by, step, op, share, None, missed and _full(candidate))


def beyond(plans: Plans) -> Beyond | None:
    """What binds where no plan is within the limits by closed form; None where one is.

    >>> import llmir
    >>> found = llmir.plan("llama3.1-8b", "h100-sxm", rate=4, max_tpot="1ms", gpus=1)
    >>> near = beyond(found)
    >>> str(near.structure.split), near.batch, near.constraint, near.op
    ('tp 1', 1, 'tpot', 'gate_up_proj')
    """
    points, traffic = plans.points, plans.traffic
    limits = {"ttft": (traffic.ttft, points.ttft_s), "tpot": (traffic.tpot, points.tpot_s)}
    over = {name: times / limit.seconds for name, (limit, times) in limits.items() if limit}
    if not over or not points.rate.size:
        return None
    worst = np.maximum.reduce(list(over.values()))
    nearest = int(worst.argmin())
    if worst[nearest] <= 1:
        return None
    name = max(over, key=lambda name: float(over[name][nearest]))
    s, batch = plans.structures[int(points.structure[nearest])], int(points.batch[nearest])
    if name == "ttft":
        step, report = "prefill", _prefill(s, traffic, int(points.chunk[nearest]))
    else:
        step, report = "decode", _decode(s, traffic, batch)
    op, share = max(shares(report).items(), key=lambda item: item[1])
    limit, times = limits[name]
    assert limit is not None
    return Beyond(s, batch, name, float(times[nearest]), limit.seconds, step, op, share)


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
    return candidate.in_flight >= room(job, s.drafts).requests
