"""The most that a deployment takes, and what keeps it from more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmir.backends.request.largest import DECODE, PREFILL, Answer, Largest, Limit
from llmir.base.formats import exporter

from . import json, spending, units, wording
from .sections import Section, sectioned

NAMES = {"ttft": "TTFT", "tpot": "TPOT"}
WHAT = {
    "batch": ("request that begins alone", "requests that begin together"),
    "context": ("token of a prompt", "tokens of prompt and answer"),
    "requests": ("user who asks again when answered", "users who ask again when answered"),
}
_NONE = "–"


def name(limit: Limit) -> str:
    """As tables call it."""
    return NAMES.get(limit.name, limit.name)


def _shown(limit: Limit, value: float) -> str:
    if limit.unit == "s":
        return units.time(value)
    return units.bytes(value) if limit.unit == "bytes" else f"{value:,.0f}"


def many(answer: Answer) -> str:
    """`22 requests that begin together`."""
    one, more = WHAT[answer.what]
    if not answer.most:
        return f"none, not even 1 {one}"
    return f"{answer.most:,}{'' if answer.binding else ' or more'} {one if answer.most == 1 else more}"


def left(limit: Limit) -> str:
    """What a limit leaves, or what is too much."""
    allowed = limit.allowed or 0.0
    rest = allowed - limit.used
    short = f"{_shown(limit, -rest)} too much" if rest < 0 else f"{_shown(limit, rest)} left"
    return f"{name(limit)}, {_shown(limit, limit.used)} of {_shown(limit, allowed)}: {short}"


def bound(answer: Answer) -> str:
    """What binds, and what one more takes."""
    limit = answer.binding
    if limit is None:
        return "nothing"
    return left(limit) + (f"; {_more(answer)} takes {_shown(limit, limit.more)}" if limit.more else "")


def _more(answer: Answer) -> str:
    return "one more" if answer.step == 1 else f"{answer.step:,} more"


def phase(answer: Answer, of: str) -> str:
    """What keeps one phase from more, and how much it alone would take."""
    limit = answer.of(of)
    return f"{of} {limit.most:,} by {name(limit)}" if limit else f"{of} any"


def lines(largest: Largest, answer: Answer) -> Iterator[tuple[str, str]]:
    """An answer in words."""
    each = f" of each of {largest.job.batch:,}" if answer.what == "context" and largest.job.batch > 1 else ""
    yield answer.what, many(answer) + each
    yield "  binds", bound(answer)
    if answer.binding:
        yield "  apart", f"{phase(answer, PREFILL)}; {phase(answer, DECODE)}"
    if not answer.most:
        return
    used, rate = answer.spent, units.digits(answer.output_tokens_per_s)
    cost = [] if used.usd_per_mtok is None else [f"{spending.usd(used.usd_per_mtok)} a million"]
    drawn = [] if used.watts is None else [f"at most {spending.joules(used.joules_per_token)} each"]
    yield "  then", ", ".join([f"{rate} output tokens/s", *cost, *drawn])


def rows(answer: Answer) -> list[tuple[str, ...]]:
    """A row a limit."""
    return [
        (
            name(limit),
            limit.phase,
            "any" if limit.most is None else f"{limit.most:,}",
            _shown(limit, limit.used),
            _NONE if limit.allowed is None else _shown(limit, limit.allowed),
            _NONE if limit.more is None else f"+{_shown(limit, limit.more)}",
        )
        for limit in answer.limits
    ]


def head(largest: Largest) -> list[tuple[str, str]]:
    """What was asked, of what."""
    kept = ("model", "precision", "device", "links", "cost model")
    job = largest.job
    limits = (("TTFT", largest.max_ttft_s), ("TPOT", largest.max_tpot_s))
    said = [f"{what} within {units.time(limit)}" for what, limit in limits if limit is not None]
    asked = [f"prompt {job.prompt:,}", f"generate {job.generate:,}", *said]
    return [*(pair for pair in wording.head(job) if pair[0] in kept), ("asked", ", ".join(asked))]


@sectioned(of=Largest)
def sections(largest: Largest) -> list[Section]:
    """What was asked, and of each answer what binds and all limits."""
    found = [Section(("", ""), head(largest))]
    for answer in largest.answers.values():
        found.append(Section(("", ""), list(lines(largest, answer))))
        headings = ("limit", "phase", "largest", f"at {answer.at:,}", "allowed", _more(answer))
        found.append(Section(headings, rows(answer), 2))
    return found


@exporter("csv", ".csv", of=Largest)
def to_csv(largest: Largest) -> str:
    """A line for each limit of each answer, in SI units."""
    found: list[dict[str, Any]] = []
    for answer in largest.answers.values():
        of = {"answer": answer.what, "answer_most": answer.most}
        found += [{**of, **limit._asdict(), "binds": limit is answer.binding} for limit in answer.limits]
    return json.to_csv(found)


def misses(largest: Largest) -> list[str]:
    """Of each answer that there is none of, what it misses: all limits that not even one meets."""
    found = []
    for answer in largest.answers.values():
        late = [limit for limit in answer.limits if limit.hard and limit.most == 0]
        if not answer.most:
            found.append(f"{answer.what}: not even 1: {'; '.join(map(left, late))}")
    return found
