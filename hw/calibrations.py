"""The bundled calibrations: a folder a device, a file an engine in it, read when they are first asked for."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmir.hw import schema
from llmir.hw.calibration import ENGINES, Calibration, rank
from llmir.hw.document import parse

FOLDER = Path(__file__).parent / "calibrations"


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the bundled devices that were measured, sorted."""
    return tuple(sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir()))


def document(device: str) -> dict[str, Any]:
    """The calibration of a bundled device as its own file would say it; empty if it was not measured."""
    files = sorted((FOLDER / device).glob("*.yaml"), key=lambda file: rank(file.stem))
    engines = {file.stem: parse(file) for file in files}
    return {"engine": files[0].stem, **engines} if files else {}


@functools.cache
def of(device: str) -> Calibration | None:
    """The calibration of a bundled device; None if it was not measured.

    Its default engine is that of all, even if some other kernels alone were measured.
    """
    said = document(device) if device else {}
    found = schema.calibration(said, f"{device}: calibration", 1) if said else None
    return replace(found, engine=ENGINES[0]) if found else None
