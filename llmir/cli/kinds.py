"""The kinds of values that options take: read from text, and checked as the API checks them, in its words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from llmir.base.errors import InputError

if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # not generic before click 8.3

_UNITS = {"B": 1}
for _power, _prefix in enumerate("KMGT", 1):
    _UNITS |= {f"{_prefix}B": 1000**_power, f"{_prefix}iB": 1024**_power}
_SIZE = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def spelled(text: str) -> Any:
    """The value that a text spells."""
    from llmir.base.arguments import read  # here and below: help needs no numpy

    return read(text.strip())


class Count(_Kind):
    """An integer from 1 up."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`InputError` that begins with the option, for what it does not take."""
        name = param.opts[-1] if param else self.name
        return self.check(name, self.read(name, value) if isinstance(value, str) else value)

    def read(self, name: str, text: str) -> Any:
        """What is said; `InputError` for what cannot be read."""
        return spelled(text)

    def check(self, name: str, value: Any) -> Any:
        """The value as the API takes it."""
        from llmir.base.arguments import integer

        return integer(name, value, 1)


class Whole(Count):
    """An integer from `least` to `most` in any spelling, 1e5 too; None is no bound of its own."""

    def __init__(self, least: int | None = 1, most: int | None = None) -> None:
        self.least, self.most = least, most

    def check(self, name: str, value: Any) -> Any:
        """An int."""
        from llmir.base.arguments import MOST, integer

        whole = isinstance(value, float) and value.is_integer()
        least = -MOST if self.least is None else self.least
        most = MOST if self.most is None else self.most
        return integer(name, int(value) if whole else value, least, most)


class Number(Count):
    """A number above 0, or from `least` to `most`."""

    def __init__(self, name: str, least: float | None = None, most: float = float("inf")) -> None:
        self.name, self.least, self.most = name, least, most

    def check(self, name: str, value: Any) -> float:
        """A float."""
        from llmir.base.arguments import number

        return number(name, value, self.least or 0.0, self.most, above=self.least is None)


_BARE = re.compile(r"(?:[a-z][a-z0-9.]*:)?\d{1,30}(?:\.\d{1,30})?", re.ASCII)


def timed(text: str) -> str:
    """A limit as the API takes it: a bare number is milliseconds, `p50:30` too."""
    return f"{text.strip()}ms" if _BARE.fullmatch(text.strip()) else text


class Milliseconds(Number):
    """A time above 0: a number is milliseconds, or it has a unit, such as `1s`."""

    def __init__(self) -> None:
        super().__init__("MS")

    def read(self, name: str, text: str) -> Any:
        """Milliseconds."""
        if text.strip().endswith("s"):
            from llmir.api.capacity import seconds

            return (seconds(name, text) or 0.0) * 1e3
        return spelled(text)


class Field(Count):
    """What a field of a class of the API is declared to be; the class is imported when it is needed."""

    def __init__(self, kind: Callable[[], type], field: str, name: str = "N") -> None:
        self.kind, self.field, self.name = kind, field, name

    def check(self, name: str, value: Any) -> Any:
        """As the class checks it."""
        from llmir.base.arguments import stated

        (field,) = (f for f in fields(self.kind()) if f.name == self.field)
        return stated(name, value, field.type, field.metadata, InputError)


class Bytes(Field):
    """An amount of memory such as `2GiB` or `500MB`; a bare number is bytes."""

    def read(self, name: str, text: str) -> int:
        """Bytes, without a fraction."""
        found = _SIZE.fullmatch(text.strip())
        scale = {u.lower(): f for u, f in _UNITS.items()}.get((found[2] or "B").lower()) if found else None
        if not found or not scale:
            expected = f"a size such as 2GiB (units {', '.join(_UNITS)})"
            raise InputError(f"{name}: expected {expected}, got {text[:40]!r}")
        return int(Decimal(found[1]) * scale)


class Stages(Field):
    """How many pipeline stages, or the layers of each: `4`, `30,32,32,32`."""

    def read(self, name: str, text: str) -> tuple[Any, ...]:
        """What stands between the commas."""
        return tuple(map(spelled, text.split(",")))

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        """Integers from 1 up."""
        return tuple(super(Stages, self).check(name, part) for part in value)


class Shares(Count):
    """`compute=0.7,memory=0.8`: numbers by name."""

    name = "SHARES"
    such_as = "shares such as compute=0.7,memory=0.8"

    def read(self, name: str, text: str) -> dict[str, Any]:
        """What is said of each name."""
        pairs = [[p.strip() for p in part.partition("=")] for part in text.split(",")]
        found = {key: spelled(value) for key, _, value in pairs}
        if len(found) != len(pairs) or not all(key and value for key, _, value in pairs):
            raise InputError(f"{name}: expected {self.such_as}, got {text[:60]!r}")
        return found

    def check(self, name: str, value: Any) -> Any:
        """The cost model knows which names there are, and checks each number."""
        return value


class Prices(Shares):
    """`h200=3.5,b200=6`: USD an hour by device, which `hw.priced` checks."""

    name = "DEVICE=USD,…"
    such_as = "USD an hour by device, such as h200=3.5"


def of_pass(name: str, option: str, kind: type[Field] = Field, shown: str = "N") -> Field:
    """What an option of a pass takes."""

    def find() -> Any:
        from llmir.ir.tools.pipeline import PASSES

        return PASSES[name]

    return kind(find, option, shown)


def of_workload(field: str, kind: type[Field] = Field, shown: str = "N") -> Field:
    """What a field of a workload takes."""

    def find() -> type:
        from llmir.backends.request.workload import Workload

        return Workload

    return kind(find, field, shown)
