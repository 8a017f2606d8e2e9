"""The kinds of values that options take: counts, sizes, numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # not generic before click 8.3

# More tokens or sequences than anyone runs; the mean over decode steps holds one number for each.
LARGEST_COUNT = 10_000_000

_UNITS = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}iB": 1024**_power}
_SIZE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


class Count(_Kind):
    """An integer from 1 up."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`UsageError` for anything else."""
        text = str(value).strip()
        if not re.fullmatch(r"[+-]?\d{1,30}", text, re.ASCII) or int(text) < 1:
            self.fail(f"expected an integer of at least 1, got {text[:40]!r}", param, ctx)
        if int(text) > LARGEST_COUNT:
            self.fail(f"expected at most {LARGEST_COUNT:,}, got {text}", param, ctx)
        return int(text)


class Stages(_Kind):
    """How many pipeline stages, or the layers of each: `4`, `30,32,32,32`."""

    name = "N[,N…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """`UsageError` for anything but integers from 1 up."""
        if isinstance(value, tuple):
            return value
        parts = [p.strip() for p in str(value).split(",")]
        if not all(re.fullmatch(r"\d{1,9}", p, re.ASCII) and int(p) for p in parts):
            expected = "expected a number of stages, or the layers of each such as 30,32,32,32"
            self.fail(f"{expected}, got {str(value)[:40]!r}", param, ctx)
        return tuple(map(int, parts))


class Shares(_Kind):
    """`compute=0.7,memory=0.8`: numbers by name."""

    name = "SHARES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """`UsageError` for what is no list of names and numbers; which names there are, others know."""
        found: dict[str, float] = {}
        for part in value.split(",") if isinstance(value, str) else ():
            key, _, text = (p.strip() for p in part.partition("="))
            try:
                number = float(text)
            except ValueError:
                number = float("nan")
            if not key or key in found or math.isnan(number):
                self.fail(f"expected shares such as compute=0.7,memory=0.8, got {value[:60]!r}", param, ctx)
            found[key] = number
        return value if isinstance(value, dict) else found


class Bytes(_Kind):
    """An amount of memory such as `2GiB` or `500MB`; a bare number is bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; `UsageError` for a negative amount, a fraction of a byte, or an unknown unit."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value[:40])
        number, unit = found.groups() if found else ("", "")
        scale = {u.lower(): f for u, f in _UNITS.items()}.get((unit or "B").lower())
        if not number or not scale:
            allowed = ", ".join(_UNITS)
            self.fail(f"expected a size such as 2GiB (units {allowed}), got {value[:40]!r}", param, ctx)
        size = Decimal(number) * scale
        if size < 0:
            self.fail(f"expected a size of at least 0, got {value!r}", param, ctx)
        return int(size)


class Skew(_Kind):
    """An exponent of Zipf's law, from 0 up to the steepest that there is."""

    name = "S"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """`UsageError` for anything else."""
        from llmir.routing.zipf import STEEPEST

        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not 0 <= number <= STEEPEST:
            self.fail(f"expected a number from 0 to {STEEPEST:g}, got {str(value)[:40]!r}", param, ctx)
        return number


class Number(_Kind):
    """A number above 0, and up to `most`."""

    def __init__(self, name: str, most: float | None = None) -> None:
        self.name, self.most = name, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """`UsageError` for anything else, infinities included."""
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not 0 < number < float("inf") or (self.most is not None and number > self.most):
            upto = "" if self.most is None else f" and up to {self.most:g}"
            self.fail(f"expected a number above 0{upto}, got {str(value)[:40]!r}", param, ctx)
        return number
