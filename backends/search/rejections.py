"""Why a plan loses: the constraint that decides, and the smallest change with which it would win.

`losing_reason` relaxes one constraint at a time and simulates the plan again. `wins` applies a change, or a
part of it.

For a plan that misses a limit, constraints are relaxed with its own number of replicas. For a plan that costs
more than the first plan, they are relaxed with the largest number of replicas that would rank before the
first plan. The constraints are, in this order:

- `speed`: the cost is equal, and each user gets fewer tokens/s;
- `rounding`: a fractional number of replicas, which costs as much as the first plan, meets all limits;
- `ttft` or `tpot`: without this limit, all other limits are met;
- `max_num_seqs`: with any number of concurrent sequences, all limits are met; `kv_capacity`: with caches of
  any size, they are;
- `headroom`: without the headroom, the servers can serve the rate;
- `rate`: no single relaxed constraint is enough, because the servers cannot serve the rate;
- `price`: no single relaxed constraint is enough, or even one replica costs as much as the first plan.

Changes are a longer limit, shorter times of one op or of all steps, or a lower price of the device. A change
is smallest in the sense that half of it is not enough.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor, log10

from llmir.backends.memory.kv_capacity import UNLIMITED
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.simulate.server import Capacity

from .plan import (
    LIMITED,
    Candidate,
    LosingReason,
    Plans,
    PlanSearch,
    PoolCandidate,
    SmallestChange,
    decode_step,
    opcode_shares,
    prefill_step,
)
from .traffic import Traffic
from .trial import MEETS, Room, as_it_is

TIMES, OP, PRICE = "times", "op", "price"  # changes that do not concern a limit
STEPS, HALVINGS = 5, 20  # bisections for a share of the times, and halvings of a change that is enough
GROWTH, GROWTHS = 1.4, 12  # growth factor of an insufficient estimate, and the largest number of increases
EQUAL = 1e-9  # relative difference of equal costs
LEAST = 0.01  # smallest relative change of a limit
MOST = 0.9  # share of the times: faster kernels alone cannot make such a plan win
CLEAR = 1.2  # factor by which the change found with one seed is enlarged: a clear result needs fewer runs
MOST_OF_OP = 0.5  # share of an op's time; beyond it, the change applies to all times


def losing_reason(plans: Plans, candidate: Candidate) -> LosingReason | None:
    """The reason why a plan is not the first; None for the first plan."""
    if candidate is plans.first_like(candidate):
        return None
    if plans.search is None or isinstance(candidate, PoolCandidate):
        return LosingReason(PRICE, "", _lower_price(plans, candidate)) if candidate.meets else None
    if not candidate.meets:
        return _of_a_miss(plans, candidate)
    most = _most_replicas(plans, candidate)
    if most < 1 and _cost(candidate) <= _cost(_first(plans, candidate)) * (1 + EQUAL):
        return LosingReason("speed", "", _as_fast(plans, candidate))
    if most < 1:
        found = _rounding(plans, candidate)
        return LosingReason("rounding" if found else PRICE, "", _lower_price(plans, candidate))
    return _of_a_cost(plans, candidate, most)


def wins(plans: Plans, candidate: Candidate, change: SmallestChange) -> bool:
    """Whether a plan with a change costs less than the first one, and meets all limits.

    A plan that misses a limit only needs to meet it.
    """
    if change.what == PRICE:
        best = plans.first_like(candidate)
        return best is not None and change.needed * candidate.devices < _cost(best)
    search, number = _search(plans), _search(plans).number_of(candidate)
    if change.what == OP:
        if change.needed < 1 - MOST_OF_OP:
            return False
        search, number = search.faster(number, change.op, change.needed), 0
    elif change.what == TIMES:
        if change.needed < 1 - MOST:
            return False
        search = search.longer(change.needed - 1)
    else:
        search = search.relaxed(_with_limit(search.traffic, change.what, change.needed))
    if not search.meets(number, change.replicas):
        return False
    return not candidate.meets or _ranks_first(search, number, plans, candidate, change.replicas)


def _ranks_first(search: PlanSearch, number: int, plans: Plans, candidate: Candidate, replicas: int) -> bool:
    """Whether this number of replicas costs less than the first plan, or costs the same and is faster."""
    best = _first(plans, candidate)
    cost = _cost(candidate) / candidate.replicas * replicas
    if abs(cost - _cost(best)) > EQUAL * cost:
        return cost < _cost(best)
    return search.simulated(number, replicas).tokens_per_s_user > best.tokens_per_s_user


def _first(plans: Plans, candidate: Candidate) -> Candidate:
    """The first plan that has a price if the candidate has one, or has none if the candidate has none;
    otherwise the candidate itself.
    """
    return plans.first_like(candidate) or candidate


def _search(plans: Plans) -> PlanSearch:
    assert plans.search is not None
    return plans.search


def _meets(search: PlanSearch, plans: Plans, candidate: Candidate, replicas: float) -> bool:
    """Whether this number of replicas of the candidate's structure meets all limits with certainty."""
    return search.meets(_search(plans).number_of(candidate), replicas)


def _cost(candidate: Candidate) -> float:
    """Dollars per hour; without a price, the number of devices."""
    return candidate.rank[1]


def _most_replicas(plans: Plans, candidate: Candidate) -> int:
    """The largest number of replicas with which a plan ranks before the first one.

    They cost less, or they cost the same and give each user more tokens/s.
    """
    fraction = _cost(_first(plans, candidate)) / (_cost(candidate) / candidate.replicas)
    faster = candidate.tokens_per_s_user > _first(plans, candidate).tokens_per_s_user
    return floor(fraction + EQUAL) if faster else ceil(fraction - EQUAL) - 1


def _with_limit(traffic: Traffic, name: str, seconds: float | None) -> Traffic:
    """The traffic with another value of a limit, or without the limit."""
    limits = dict(zip(LIMITED, traffic.limits, strict=True))
    limit = limits[name]
    limits[name] = None if limit is None or seconds is None else limit._replace(seconds=seconds)
    return replace(traffic, ttft=limits["ttft"], tpot=limits["tpot"])


# Plans that miss a limit


def _of_a_miss(plans: Plans, candidate: Candidate) -> LosingReason:
    """The limit that a plan misses, and the value of this limit that is enough; or shorter times, if changing
    one limit is not enough.
    """
    trial, replicas = candidate.trial, candidate.replicas
    missed = [i for i in range(len(LIMITED)) if trial.verdict_on(i) != MEETS]
    if len(missed) == 1 and not candidate.overloaded:
        name, limit = LIMITED[missed[0]], trial.limits[missed[0]]
        assert limit is not None
        change = SmallestChange(name, limit.seconds, trial.upper(missed[0]), replicas)
        return LosingReason(name, limit.of, _enough(plans, candidate, change))
    shorter = _shorter_times(plans, candidate, replicas)
    if candidate.overloaded or not missed:
        return LosingReason(_of_the_rate(plans, candidate, replicas), "", shorter)
    worst = max(missed, key=trial.usage)
    limit = trial.limits[worst]
    assert limit is not None
    return LosingReason(LIMITED[worst], limit.of, shorter)


# Plans that cost more


def _of_a_cost(plans: Plans, candidate: Candidate, most: int) -> LosingReason:
    """The reason why a plan does not win with `most` replicas, which would rank before the first plan."""
    if _cost(candidate) <= _cost(_first(plans, candidate)):
        return LosingReason("speed", "", _shorter_times(plans, candidate, most))
    if _rounding(plans, candidate):
        return LosingReason("rounding", "", _shorter_times(plans, candidate, most))
    search, traffic = _search(plans), _search(plans).traffic
    number, patient = search.number_of(candidate), search.relaxed(traffic)
    # Fewer replicas are slower: at the cost of the first plan they may not rank before it.
    replicas = most if _ranks_first(patient, number, plans, candidate, most) else most - 1
    for name, limit in zip(LIMITED, traffic.limits, strict=True):
        if not (replicas and limit):
            continue
        if search.relaxed(_with_limit(traffic, name, None)).meets(number, replicas):
            fewer = patient.simulated(number, replicas)
            upper = max(fewer.trial.upper(LIMITED.index(name)), limit.seconds * (1 + LEAST))
            change = SmallestChange(name, limit.seconds, upper, replicas)
            return LosingReason(name, limit.of, _enough(plans, candidate, change))
    constraint = _of_the_rate(plans, candidate, replicas) if replicas else PRICE
    shorter = _shorter_times(plans, candidate, most)
    if shorter is None and constraint in ("rate", PRICE):
        return LosingReason(PRICE, "", _lower_price(plans, candidate))
    return LosingReason(constraint, "", shorter)


def _rounding(plans: Plans, candidate: Candidate) -> bool:
    """Whether a fraction of a replica fewer would be enough, at the cost of the first plan."""
    if not ROUTERS[plans.traffic.router].blind:
        return False
    fraction = _cost(_first(plans, candidate)) / (_cost(candidate) / candidate.replicas) * (1 - 1e-6)
    return _meets(_search(plans).relaxed(_search(plans).traffic), plans, candidate, fraction)


def _of_the_rate(plans: Plans, candidate: Candidate, replicas: int) -> str:
    """The constraint that prevents this number of replicas from serving the rate within the limits."""
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
    """A capacity with caches of any size, and with as many sequences as a step has tokens."""
    return room._replace(blocks=UNLIMITED, sequences=room.tokens // room.rows * room.ranks)


def _any_sequences(room: Capacity) -> Capacity:
    """A capacity with as many sequences as a step has tokens."""
    return room._replace(sequences=room.tokens // room.rows * room.ranks)


# Changes


def _enough(plans: Plans, candidate: Candidate, change: SmallestChange) -> SmallestChange | None:
    """The smallest change with which a plan wins, found from an estimate; half of the change is not enough.

    None if even a much larger change is not enough. Each change is tried in its printed form, because a plan
    near a limit may win with a change and lose with the rounded change.
    """
    change = _rounded(change)
    for _ in range(GROWTHS):
        if wins(plans, candidate, change):
            break
        change = _rounded(change.part(GROWTH))
    else:
        return None
    for _ in range(HALVINGS):
        half = _rounded(change.part(0.5))
        if half == change or not wins(plans, candidate, half):
            break
        change = half
    return change


def _rounded(change: SmallestChange) -> SmallestChange:
    """The change rounded up to three digits, as printed."""
    if change.what in (TIMES, OP):
        return change._replace(needed=change.now - _rounded_up(change.now - change.needed))
    return change._replace(needed=_rounded_up(change.needed))


def _rounded_up(value: float) -> float:
    """The value rounded up to three digits."""
    scale = 10.0 ** (2 - floor(log10(value)))
    return ceil(value * scale * (1 - EQUAL)) / scale


def _shorter_times(plans: Plans, candidate: Candidate, replicas: int) -> SmallestChange | None:
    """The reduction of the time of one op or of all steps with which the replicas win; None if it is larger
    than `MOST`.

    Runs with one seed determine it, and a full trial confirms it.
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
    return _shorter(plans, candidate, 1 - high, replicas)


def _as_fast(plans: Plans, candidate: Candidate) -> SmallestChange | None:
    """The reduction of times with which each user gets more tokens/s than with the first plan."""
    share = candidate.tokens_per_s_user / _first(plans, candidate).tokens_per_s_user
    return _shorter(plans, candidate, min(share, 1 - LEAST), candidate.replicas)


def _shorter(plans: Plans, candidate: Candidate, needed: float, replicas: int) -> SmallestChange | None:
    """A change from an approximate share of the times; it applies to one op, unless it would be too large."""
    nearly = SmallestChange(TIMES, 1.0, needed, replicas)
    change = _enough(plans, candidate, nearly.part(CLEAR))
    return change and (_faster_op(plans, candidate, change) or change)


def _faster_op(plans: Plans, candidate: Candidate, change: SmallestChange) -> SmallestChange | None:
    """The reduction of the op with the largest share of a step, instead of all times.

    None if it is more than `MOST_OF_OP`.
    """
    trial = candidate.trial
    step = prefill_step if trial.limits[0] and trial.usage(0) >= trial.usage(1) else decode_step
    op, share = max(opcode_shares(step(candidate)).items(), key=lambda item: item[1])
    less = (change.now - change.needed) / share
    if less > MOST_OF_OP:
        return None
    return _enough(plans, candidate, SmallestChange(OP, 1.0, 1 - less, change.replicas, op))


def _lower_price(plans: Plans, candidate: Candidate) -> SmallestChange | None:
    """The price of the device, with three digits, at which a plan costs less than the first one.

    None for devices without a price.
    """
    best = plans.first_like(candidate)
    if best is None or candidate.rank[0]:
        return None
    each = _cost(candidate) / candidate.devices
    equal = _cost(best) / candidate.devices
    scale = 10.0 ** (2 - floor(log10(equal)))
    needed = (ceil(equal * scale * (1 - EQUAL)) - 1) / scale
    return SmallestChange(PRICE, each, needed, candidate.replicas) if needed < each else None
