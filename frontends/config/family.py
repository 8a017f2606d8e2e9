"""The registry of model families: the decorator `family`, and `FAMILIES` by class name."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeVar

from llmir.base.registry import Kind
from llmir.ir.core.program import Program

from .reader import Config


class Model(Protocol):
    """What a family makes of a config, such as a `Decoder`."""

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """The whole model, unfused; layers of which `apart` says other things have bodies of their own."""


Reader = Callable[[Config], Model]
Own = TypeVar("Own", bound=Reader)


class Family(NamedTuple):
    """Reads the configs of one class of HF's `architectures`, or of one of its `model_type`s.

    That of a class of several models is given `whole`, and not the part that is its language model alone.
    """

    model_types: tuple[str, ...]
    read: Reader
    whole: bool = False


FAMILIES: Kind[Family] = Kind("family", "llmir.frontends.families")


def family(architecture: str, *model_types: str, whole: bool = False) -> Callable[[Own], Own]:
    """A decorator: the function reads configs of this class, and those that state a `model_type` alone."""

    def take(read: Own) -> Own:
        FAMILIES.add(architecture, Family(model_types, read, whole), read)
        return read

    return take
