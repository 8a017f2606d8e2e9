"""The bundled calibrations: a folder per device, a file per engine, read on first use."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmir.base.values import FrozenDict, Immutable

from . import schema
from .calibration import Calibration, KernelParameters, rank
from .schema import parse

FOLDER = Path(__file__).parent / "calibrations"


class Engines(Immutable, Mapping[str, Mapping[str, KernelParameters]]):
    """The fitted kernels of a bundled device, by engine and family; each file is read on first access.

    It equals a dictionary with the same contents, and has the hash of a `FrozenDict` of it.
    """

    def __init__(self, device: str) -> None:
        vars(self).update(device=device, _files=files(device), _known={})

    def __getitem__(self, engine: str) -> Mapping[str, KernelParameters]:
        known: dict[str, Mapping[str, KernelParameters]] = vars(self)["_known"]
        if engine not in known:
            said = parse(vars(self)["_files"][engine])
            where = f"{vars(self)['device']}: calibration.{engine}"
            known[engine] = FrozenDict(schema.families(said, where))
        return known[engine]

    def __contains__(self, engine: object) -> bool:
        return engine in vars(self)["_files"]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self)["_files"])

    def __len__(self) -> int:
        return len(vars(self)["_files"])

    def __hash__(self) -> int:
        return hash(FrozenDict(self))

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Engines, (vars(self)["device"],)


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the bundled devices that were measured, sorted."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


def files(device: str) -> dict[str, Path]:
    """The file of each engine on a bundled device, in the order of preference."""
    found = sorted((FOLDER / device).glob("*.yaml"), key=lambda file: rank(file.stem))
    return {file.stem: file for file in found}


def document(device: str) -> dict[str, Any]:
    """The calibration of a bundled device in the form of one file; empty if it was not measured."""
    engines = {engine: parse(file) for engine, file in files(device).items()}
    return {"engine": next(iter(engines)), **engines} if engines else {}


@functools.cache
def calibration_of(device: str) -> Calibration | None:
    """The calibration of a bundled device; None if it was not measured."""
    engines = Engines(device) if device else {}
    return Calibration(next(iter(engines)), engines) if engines else None
