"""What an engine does by its first release that does so, each said over that of the next newer one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.values import Record

from . import schema
from .document import merge

S = TypeVar("S")

NUMBERS = r"v?(\d{1,6}(?:\.\d{1,6})*)"
VERSION = NUMBERS + r"(?:[.+_-]?[a-zA-Z][\w.+-]*|[+_-][\w.+-]*)?"  # and rc6.post1, .dev12+g1a2b, -1


def number(version: str) -> tuple[int, ...]:
    """A version's numbers; ValueError where it is none.

    >>> number("0.12.0"), number("v1.2.0rc6.post1")
    ((0, 12, 0), (1, 2, 0))
    """
    found = re.fullmatch(VERSION, version.strip())
    if not found:
        raise ValueError(version)
    return tuple(map(int, found[1].split(".")))


@dataclass(frozen=True, eq=False)
class Releases(Record, Generic[S]):
    """The values of a section by first release, the newest first."""

    known: tuple[tuple[str, S], ...]

    def at(self, version: str = "") -> S:
        """That of a version; by default the newest, and the oldest of one that is older than all."""
        wanted = number(version or self.known[0][0])
        fit = (value for first, value in self.known if number(first) <= wanted)
        return next(fit, self.known[-1][1])


def releases(value: object, where: str, read: Callable[[Mapping[Any, Any], str], S]) -> Releases[S]:
    """A section whose keys are first releases; HardwareError for what are none, or what `read` refuses."""
    said = schema.mapping(value, where)
    for first in said:
        if not isinstance(first, str) or not re.fullmatch(NUMBERS, first):
            wanted = 'the first release of each, such as "0.17"'
            raise HardwareError(f"{where}: expected {wanted}, got {schema.show(first)}")
    below: dict[Any, Any] = {}
    found = []
    for first in sorted(said, key=number, reverse=True):
        below = merge(below, schema.mapping(said[first], f"{where}.{first}"))
        found.append((first, read(below, f"{where}.{first}")))
    return Releases(tuple(found))


def records(kind: Callable[..., S], keys: Mapping[str, schema.Key]) -> Callable[[object, str], Releases[S]]:
    """What reads a section of releases that are each a record with these keys."""

    def read(said: Mapping[Any, Any], where: str) -> S:
        return kind(**schema.read(said, where, keys))

    return lambda value, where: releases(value, where, read)
