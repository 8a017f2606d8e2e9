"""What a part of a sweep follows from, as a short text: equal keys, equal rows."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from llmir.base import registry
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.text import print_program


def key(*parts: object) -> str:
    """32 hexadecimal digits of plain values, records, programs and arrays; of what has no text a new one.

    The files of llmir, its devices and calibrations among them, and of plugins that are loaded, count too.
    """
    found = sha256(_digest(registry.files()))
    for part in parts:
        found.update(_bytes(part))
        found.update(b"\0")
    return found.hexdigest()[:32]


def _bytes(part: Any) -> bytes:
    if isinstance(part, Program):
        return print_program(part).encode()
    if isinstance(part, Pass):
        return repr(part).encode()
    if isinstance(part, (list, tuple)):
        return b"(" + b",".join(map(_bytes, part)) + b")"
    return uuid4().bytes if callable(part) else pickle.dumps(part, protocol=4)  # a function may change


@lru_cache(maxsize=4)
def _digest(more: Iterable[str]) -> bytes:
    found = sha256()
    for path in (*_own(), *more):
        found.update(path.encode())
        found.update(Path(path).read_bytes())
    return found.digest()


def _own() -> list[str]:
    folder = Path(registry.__file__).parent
    files = (os.path.join(at, f) for at, _, names in os.walk(folder, followlinks=True) for f in names)
    return sorted(f for f in files if f.endswith((".py", ".yaml")))
