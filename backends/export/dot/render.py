"""`draw`: from a report or workload to a file."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.export.files import check_writable, write
from llmir.errors import InputError, OutputError
from llmir.names import plain

from . import full, layer, overview
from .outline import Outline, outline

SUFFIXES = (".svg", ".png", ".pdf", ".dot", ".gv")
PHASES = ("prefill", "decode", "both")
LEVELS: dict[str, Callable[[Report | Workload, Sequence[Outline]], Any]] = {
    "overview": overview.draw,
    "layer": layer.draw,
    "full": full.draw,
}
_TEXT = (".dot", ".gv")


def draw(
    job: Report | Workload, path: str | os.PathLike[str], *, level: str = "layer", phase: str = "both"
) -> Path:
    """Draw to `path`, whose suffix is the format, and return the path written.

    That is another one, ending in `.dot`, when Graphviz's `dot` is not installed: then with a warning.
    """
    target = _target(path)
    if not isinstance(level, str) or level not in LEVELS:
        raise InputError(f"level: {level!r} is not one of {', '.join(LEVELS)}")
    reports = _steps(job, phase)
    panels = [outline(r, f"p{i}_", unrolled=level == "full") for i, r in enumerate(reports)]
    if not all(o.sections for o in panels):
        raise InputError(f"program {job.program.name!r} has no ops to draw")
    graph = LEVELS[level](job, panels)
    if target.suffix.lower() in _TEXT:
        return _write(target, graph.source)
    if target.suffix.lower() == ".png" and level != "full":
        graph.attr(dpi="144")
    picture = _render(graph, target.suffix.lower()[1:])
    if picture is not None:
        return _write(target, picture)
    text = _write(target.with_suffix(".dot"), graph.source)
    warnings.warn(
        f"Graphviz's `dot` is not installed (apt install graphviz, or brew install graphviz): "
        f"wrote its input to {text} instead of {target.name}",
        stacklevel=3,
    )
    return text


def _target(path: str | os.PathLike[str]) -> Path:
    check_writable(path)
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        shown = f"{plain(str(target), limit=1000)}: suffix {target.suffix!r}"
        raise InputError(f"{shown} is not one of {', '.join(SUFFIXES)}")
    return target


def _write(target: Path, content: str | bytes) -> Path:
    write(target, content)
    return target


def _steps(job: object, phase: str) -> list[Report]:
    """The steps to draw."""
    if not isinstance(phase, str) or phase not in PHASES:
        raise InputError(f"phase: {phase!r} is not one of {', '.join(PHASES)}")
    if isinstance(job, Report):
        if job.shape:
            raise InputError(f"a picture shows one point, not a grid of {job.shape}")
        return [job]
    if not isinstance(job, Workload):
        raise InputError(f"expected a Report or a Workload, got {type(job).__name__}")
    if phase == "decode" and job.decode is None:
        raise InputError("phase: a workload that generates 1 token has no decode step; draw its prefill")
    steps = {"prefill": job.prefill, "decode": job.decode}
    return [s for name, s in steps.items() if s is not None and phase in (name, "both")]


def _render(graph: Any, kind: str) -> bytes | None:
    """The picture's bytes; None when there is no `dot`."""
    import graphviz

    try:
        picture: bytes = graph.pipe(format=kind, quiet=True)
    except graphviz.ExecutableNotFound:
        return None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise OutputError(f"dot could not draw {kind}: {said[0] if said else error}") from None
    return picture
