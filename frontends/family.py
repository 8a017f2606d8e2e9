"""Model families: who reads the configs of which class, each registered where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmir.plugins import Kind

from .config import Config
from .decoder import Decoder

Reader = Callable[[Config], Decoder]


class Family(NamedTuple):
    """Reads the configs of one class of HF's `architectures`, or of its `model_type`."""

    model_type: str
    read: Reader


FAMILIES: Kind[Family] = Kind("family", "llmir.frontends.families")


def family(architecture: str, model_type: str) -> Callable[[Reader], Reader]:
    """A decorator: the function reads configs of this class, and those that state the `model_type` alone."""

    def take(read: Reader) -> Reader:
        FAMILIES.add(architecture, Family(model_type, read), read)
        return read

    return take
