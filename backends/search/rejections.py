"""Why a plan loses: the constraint that decides, and the smallest change that makes it win.

`losing_reason` relaxes one constraint at a time and simulates the plan again. `wins` applies a change, or a
part of it.

A plan that misses a limit is relaxed as it is. One that costs more than the first plan is relaxed with the
most replicas with which it comes before the first plan. The constraints are, in this order:

- `speed`: it costs as much, and each user gets fewer tokens a second;
- `rounding`: a fraction of a replica fewer, at the cost of the first plan, meets all limits;
- `ttft` or `tpot`: all other limits are met;
- `max_num_seqs`: any number of sequences at once meets all limits; `kv_capacity`: caches of any size do;
- `headroom`: the rate is answered without the headroom;
- `rate`: none of these alone is enough, since the servers do not answer the rate;
- `price`: none of these alone is enough, or one replica costs as much as the first plan.

Changes are a longer limit, shorter times, or a lower price of the device. A change is the smallest in the
sense that half of it is not enough.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor
from typing import Any

from llmir.backends.memory.kv_capacity import UNLIMITED
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.simulate.server import Capacity

from .plan import LIMITED, Candidate, LosingReason, Plans, PlanSearch, PoolCandidate, SmallestChange
from .traffic import Traffic
from .trial import MEETS, Room, as_it_is

TIMES, PRICE = "times", "price"  # changes that are not of a limit
STEPS, HALVINGS = 5, 20  # of the share by which times are shorter, and of a change that is enough
GROWTH, GROWTHS = 1.4, 12  # by which an estimate that is not enough grows, and how often
EQUAL = 1e-9  # share by which equal costs differ
LEAST = 0.01  # of a limit, by which it is longer
MOST = 0.9  # of the times: a plan that needs more does not win by faster kernels


def losing_reason(plans: Plans, candidate: Candidate) -> LosingReason | None:
    """Why a plan is not the first; None of the first."""
    if candidate is plans.first_like(candidate):
        return None
    if plans.search is None or isinstance(candidate, PoolCandidate):
        return LosingReason(PRICE, "", _lower_price(plans, candidate)) if candidate.meets else None
    if not candidate.meets:
        return _of_a_miss(plans, candidate)
    most = _most_replicas(plans, candidate)
    if most < 1:
        found = _rounding(plans, candidate)
        return LosingReason("rounding" if found else PRICE, "", _lower_price(plans, candidate))
    return _of_a_cost(plans, candidate, most)


def wins(plans: Plans, candidate: Candidate, change: SmallestChange) -> bool:
    """Whether a plan with a change costs less than the first one, and meets all limits.

    One that misses a limit needs only to meet it.
    """
    if change.what == PRICE:
        best = plans.first_like(candidate)
        return best is not None and change.needed * candidate.devices <= _cost(best)
    search, patient = _search(plans), not candidate.meets
    if change.what == TIMES:
        if change.needed < 1 - MOST:
            return False
        found = search.longer(change.needed - 1, patient=patient)
    else:
        limits = _with_limit(search.traffic, change.what, change.needed)
        found = search.relaxed(limits, patient=patient)
    return _meets(found, plans, candidate, change.replicas) and _ranks_first(
        found, plans, candidate, change.replicas
    )


def _ranks_first(search: PlanSearch, plans: Plans, candidate: Candidate, replicas: int) -> bool:
    """Whether so many replicas cost less than the first plan, or as much with more tokens/s a user."""
    best = plans.first_like(candidate)
    if not candidate.meets or best is None:
        return True
    cost = _cost(candidate) / candidate.replicas * replicas
    if abs(cost - _cost(best)) > EQUAL * cost:
        return cost < _cost(best)
    found = search.simulated(_search(plans).number_of(candidate), replicas)
    return found.tokens_per_s_user > best.tokens_per_s_user


def _first(plans: Plans, candidate: Candidate) -> Candidate:
    """The first plan of those with a price, or without one, as the candidate; itself if there is none."""
    return plans.first_like(candidate) or candidate


def _search(plans: Plans) -> PlanSearch:
    assert plans.search is not None
    return plans.search


def _meets(search: PlanSearch, plans: Plans, candidate: Candidate, replicas: float) -> bool:
    """Whether so many replicas of the candidate's structure surely meet all limits."""
    return search.meets(_search(plans).number_of(candidate), replicas)


def _cost(candidate: Candidate) -> float:
    """Dollars an hour, or devices where these have no price."""
    return candidate.rank[1]


def _most_replicas(plans: Plans, candidate: Candidate) -> int:
    """The most replicas with which a plan comes before the first one.

    They cost less, or as much where each user gets more tokens a second.
    """
    fraction = _cost(_first(plans, candidate)) / (_cost(candidate) / candidate.replicas)
    faster = candidate.tokens_per_s_user > _first(plans, candidate).tokens_per_s_user
    return floor(fraction + EQUAL) if faster else ceil(fraction - EQUAL) - 1


def _with_limit(traffic: Traffic, name: str, seconds: float | None) -> Traffic:
    """The traffic with a limit of so many seconds, or without it."""
    limits = dict(zip(LIMITED, traffic.limits, strict=True))
    limit = limits[name]
    limits[name] = None if limit is None or seconds is None else limit._replace(seconds=seconds)
    return replace(traffic, ttft=limits["ttft"], tpot=limits["tpot"])


# Plans that miss a limit


def _of_a_miss(plans: Plans, candidate: Candidate) -> LosingReason:
    """The limit that a plan misses, and how long it has to be; shorter times if that alone is not enough."""
    trial, replicas = candidate.trial, candidate.replicas
    missed = [i for i in range(len(LIMITED)) if trial.verdict_on(i) != MEETS]
    if len(missed) == 1 and not candidate.overloaded:
        name, limit = LIMITED[missed[0]], trial.limits[missed[0]]
        assert limit is not None
        change = SmallestChange(name, limit.seconds, trial.upper(missed[0]), replicas)
        return LosingReason(name, limit.of, _enough(plans, candidate, change))
    shorter = _shorter_times(plans, candidate, replicas)
    if candidate.overloaded:
        return LosingReason(_of_the_rate(plans, candidate, replicas), "", shorter)
    worst = max(missed, key=lambda i: trial.upper(i) / _seconds(trial.limits[i]), default=0)
    statistic = getattr(trial.limits[worst], "of", "")
    return LosingReason(LIMITED[worst], statistic, shorter)


def _seconds(limit: Any) -> float:
    return float(limit.seconds) if limit else 1.0


# Plans that cost more


def _of_a_cost(plans: Plans, candidate: Candidate, replicas: int) -> LosingReason:
    """What keeps a plan from so few replicas that it costs less than the first one."""
    if _cost(candidate) <= _cost(_first(plans, candidate)):
        return LosingReason("speed", "", _shorter_times(plans, candidate, replicas))
    if _rounding(plans, candidate):
        return LosingReason("rounding", "", _shorter_times(plans, candidate, replicas))
    search, traffic = _search(plans), _search(plans).traffic
    for name, limit in zip(LIMITED, traffic.limits, strict=True):
        if limit and _meets(search.relaxed(_with_limit(traffic, name, None)), plans, candidate, replicas):
            fewer = search.relaxed(traffic).simulated(search.number_of(candidate), replicas)
            upper = max(fewer.trial.upper(LIMITED.index(name)), limit.seconds * (1 + LEAST))
            change = SmallestChange(name, limit.seconds, upper, replicas)
            return LosingReason(name, limit.of, _enough(plans, candidate, change))
    constraint = _of_the_rate(plans, candidate, replicas)
    shorter = _shorter_times(plans, candidate, replicas)
    return LosingReason(PRICE if constraint == "rate" and shorter is None else constraint, "", shorter)


def _rounding(plans: Plans, candidate: Candidate) -> bool:
    """Whether a fraction of a replica fewer would do, at the cost of the first plan."""
    fraction = _cost(_first(plans, candidate)) / (_cost(candidate) / candidate.replicas) * (1 - 1e-6)
    if not ROUTERS[plans.traffic.router].blind:
        return False
    return _meets(_search(plans).relaxed(_search(plans).traffic), plans, candidate, fraction)


def _of_the_rate(plans: Plans, candidate: Candidate, replicas: int) -> str:
    """What keeps so many replicas from answering the rate within the limits."""
    search = _search(plans)
    traffic = search.traffic
    relaxations: dict[str, tuple[Traffic, Room]] = {
        "max_num_seqs": (traffic, _any_sequences),
        "kv_capacity": (traffic, _any_blocks),
    }
    if traffic.headroom:
        relaxations["headroom"] = replace(traffic, headroom=0.0), as_it_is
    for name, (load, room) in relaxations.items():
        if _meets(search.relaxed(load, room), plans, candidate, replicas):
            return name
    return "rate"


def _any_blocks(room: Capacity) -> Capacity:
    """Caches of any size, and as many sequences as a step has tokens for."""
    return room._replace(blocks=UNLIMITED, sequences=room.tokens // room.rows * room.ranks)


def _any_sequences(room: Capacity) -> Capacity:
    """As many sequences as a step has tokens for."""
    return room._replace(sequences=room.tokens // room.rows * room.ranks)


# Changes


def _enough(plans: Plans, candidate: Candidate, change: SmallestChange) -> SmallestChange | None:
    """A change with which a plan wins, from an estimate of it; half of the change is not enough.

    None where even a much larger one is not enough.
    """
    for _ in range(GROWTHS):
        if wins(plans, candidate, change):
            break
        change = change.part(GROWTH)
    else:
        return None
    for _ in range(HALVINGS):
        if not wins(plans, candidate, half := change.part(0.5)):
            break
        change = half
    return change


def _shorter_times(plans: Plans, candidate: Candidate, replicas: int) -> SmallestChange | None:
    """How much shorter all steps have to be for so many replicas to meet the limits; None beyond `MOST`.

    Runs of one seed find it, and a full trial confirms it.
    """
    search, number = _search(plans), _search(plans).number_of(candidate)

    def may(share: float) -> bool:
        return search.longer(-share).usage(number, replicas) <= 1

    low, high = 0.0, max(1 - replicas / candidate.replicas, 0.02)
    while not may(high):
        if high >= MOST:
            return None
        low, high = high, min(2 * high, MOST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if may(middle):
            high = middle
        else:
            low = middle
    return _enough(plans, candidate, SmallestChange(TIMES, 1.0, 1 - high, replicas))


def _lower_price(plans: Plans, candidate: Candidate) -> SmallestChange | None:
    """The price of the device at which a plan costs as much as the first one."""
    best = plans.first_like(candidate)
    if best is None:
        return None
    each = _cost(candidate) / candidate.devices
    needed = _cost(best) / candidate.devices
    return SmallestChange(PRICE, each, needed, candidate.replicas) if needed < each else None
