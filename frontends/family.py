"""Model families: who reads the configs of which class, each registered where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmir.plugins import Kind

from .config import Config
from .decoder import Decoder

Reader = Callable[[Config], Decoder]


class Family(NamedTuple):
    """Reads the configs of one class of HF's `architectures`, or of one of its `model_type`s."""

    model_types: tuple[str, ...]
    read: Reader


FAMILIES: Kind[Family] = Kind("family", "llmir.frontends.families")


def family(architecture: str, *model_types: str) -> Callable[[Reader], Reader]:
    """A decorator: the function reads configs of this class, and those that state a `model_type` alone."""

    def take(read: Reader) -> Reader:
        FAMILIES.add(architecture, Family(model_types, read), read)
        return read

    return take
