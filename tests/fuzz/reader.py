"""What reads what others wrote: a reader, and valid inputs to begin from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class BrokenError(AssertionError):
    """A result that cannot be right."""


@dataclass(frozen=True)
class Reader:
    """Bytes of a kind, what takes them, and valid ones."""

    name: str
    suffix: str
    take: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]
    seconds: float = 1.0  # of processor time, at most


READERS: dict[str, Reader] = {}


def reader(suffix: str, corpus: Callable[[], list[bytes]], seconds: float = 1.0) -> Callable[[Any], Any]:
    def register(take: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = take.__name__.removeprefix("read_")
        READERS[name] = Reader(name, suffix, take, corpus, seconds)
        return take

    return register


def file(data: bytes, name: str) -> Path:
    path = Path(name)
    path.write_bytes(data)
    return path
