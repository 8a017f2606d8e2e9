"""The registry of model families: the decorator `family`, and `FAMILIES` by class name."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeVar

from llmir.base.registry import Kind
from llmir.ir.core.program import Program

from .reader import Config


class Model(Protocol):
    """The result of reading a config, such as a `Decoder`."""

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """Build the whole unfused model; layers with different entries in `apart` get separate bodies."""


Reader = Callable[[Config], Model]
Own = TypeVar("Own", bound=Reader)


class Family(NamedTuple):
    """The reader of the configs of one class in HF's `architectures`, or of one of its `model_type`s.

    With `whole`, the reader of a multimodal class receives the whole config instead of its language model.
    """

    model_types: tuple[str, ...]
    read: Reader
    whole: bool = False


FAMILIES: Kind[Family] = Kind("family", "llmir.frontends.families")


def family(architecture: str, *model_types: str, whole: bool = False) -> Callable[[Own], Own]:
    """A decorator: the function reads configs of this class, and configs with only this `model_type`."""

    def take(read: Own) -> Own:
        FAMILIES.add(architecture, Family(model_types, read, whole), read)
        return read

    return take
