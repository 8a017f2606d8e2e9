"""The axes of a sweep: what may vary, and how its values are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from llmir.base import arguments
from llmir.base.errors import InputError
from llmir.base.names import suggest

Value = int | str | None

# Of a step: all its points are evaluated together.
POINTS: Mapping[str, int] = {"batch": 1, "new": 1, "context": 0}  # and the least value of each
# Of a structure, which is lowered anew: numbers and their least, then names.
COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("tp", "pp", "micro_batches", "dp", "ep"), 1),
    **dict.fromkeys(("sp", "redundant_experts"), 0),
}
TYPES = ("weights", "activations", "kv", "collectives")
NAMES = ("hw", "engine", "cost", *TYPES, "dispatch", "routing")
AXES = (*NAMES[:3], *TYPES, *COUNTS, *NAMES[7:], *POINTS)

MOST = 1_000_000  # values of an axis
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_RANGE = re.compile(r"(\d+)([kM]?):(\d+)([kM]?)(?::(?:x(\d+)|(\d+)([kM]?)))?", re.ASCII)
_COUNT = re.compile(r"(\d+)([kM]?)", re.ASCII)


def axis(name: str, said: object, called: str = "") -> tuple[Value, ...]:
    """The values of an axis: a text as the command line has it, one value, or some of them.

    `1:4` are 1, 2, 3, 4; `1:1024:x2` the powers of two; `0:100:25` steps of 25; `1,8,32` those alone; `k` is
    1,024 and `M` 1,048,576, as contexts are named. Of names it is a list with commas. InputError for a range
    that is empty, reversed or too long, and for an axis that is none; it is `called` so there.

    >>> axis("batch", "1:16:x4,20"), axis("context", "1k:4k:1k"), axis("weights", "bf16,fp8")
    ((1, 4, 16, 20), (1024, 2048, 3072, 4096), ('bf16', 'fp8'))
    """
    if name not in AXES:
        raise InputError(f"{name!r} is no axis of a sweep; there are {', '.join(AXES)}{suggest(name, AXES)}")
    called = called or name
    if isinstance(said, str):
        parts: Iterable[object] = [part.strip() for part in said.split(",")]
    else:
        parts = (
            [said]
            if said is None or isinstance(said, int)
            else arguments.items(called, said, "values", most=MOST)
        )
    least = {**COUNTS, **POINTS}.get(name)
    found: dict[Value, None] = {}
    for part in parts:
        values: Iterable[Value] = [_name(called, part)] if least is None else _counts(called, part, least)
        if least is None and part in found:
            raise InputError(f"{called}: {str(part)[:40]} is there twice")
        found.update(dict.fromkeys(values))
        if len(found) > MOST:
            raise InputError(f"{called}: more than {MOST:,} values")
    if not found:
        raise InputError(f"{called}: expected values, got none")
    return tuple(found)


def _name(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and not value:
        raise InputError(f"{name}: a value is empty")
    return arguments.text(name, value)


def _counts(name: str, value: object, least: int) -> Iterable[int]:
    if not isinstance(value, str):
        return [arguments.integer(name, value, least)]
    if found := _COUNT.fullmatch(value):
        return [arguments.integer(name, _sized(found[1], found[2]), least)]
    found = _RANGE.fullmatch(value)
    if not found:
        expected = "expected a number, or a range such as 1:8, 0:100:25 or 1:1024:x2"
        raise InputError(f"{name}: {expected}; got {value[:40]!r}")
    first, last = _sized(found[1], found[2]), _sized(found[3], found[4])
    if last < first:
        raise InputError(f"{name}: {value} is reversed, {first:,} is above {last:,}")
    arguments.integer(name, first, least)
    arguments.integer(name, last, least)
    return _times(name, value, first, last, int(found[5])) if found[5] else _steps(name, value, found)


def _times(name: str, said: str, first: int, last: int, factor: int) -> list[int]:
    if factor < 2 or not first:
        raise InputError(f"{name}: {said} never ends; a factor is from 2 up, and starts above 0")
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return values


def _steps(name: str, said: str, found: re.Match[str]) -> Iterable[int]:
    first, last = _sized(found[1], found[2]), _sized(found[3], found[4])
    step = _sized(found[6], found[7]) if found[6] else 1
    if not step:
        raise InputError(f"{name}: {said} never ends; a step is from 1 up")
    if (last - first) // step >= MOST:
        raise InputError(f"{name}: {said} has more than {MOST:,} values")
    return range(first, last + 1, step)


def _sized(digits: str, unit: str) -> int:
    return int(digits[:30]) * _UNITS[unit.lower()]
