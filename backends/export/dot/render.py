"""Draw a report, a workload or a diff to a file: SVG, PDF, PNG or DOT.

`draw` is the entry point; `source` returns the input of Graphviz, `tooltips` and `anchored` improve its
SVG.
"""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llmir.backends.compare.diff import StepDiff, WorkloadDiff
from llmir.backends.export.files import check_writable, write
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.arguments import choice
from llmir.base.errors import InputError, OutputError
from llmir.base.formats import export, exporter, format_of, suffixes
from llmir.base.names import plain

from . import columns, diff
from .labels import Canvas, Tile, anchors
from .outline import StepOutline, outline

PHASES = ("encode", "prefill", "decode", "draft", "both")
LEVELS: dict[str, Callable[[Report | Workload, Sequence[StepOutline]], Canvas]] = {
    "overview": columns.draw_overview,
    "layer": columns.draw_column,
    "full": partial(columns.draw_column, full=True),
}


MOST_OPS = 60  # largest number of ops of a layer that a picture shows individually by default

Job = Report | Workload | StepDiff | WorkloadDiff


class NoDotError(OutputError):
    """Graphviz is not installed."""


def draw(job: Job, path: str | os.PathLike[str], *, level: str | None = None, phase: str = "both") -> Path:
    """Draw to `path`, in the format of its suffix, and return the written path.

    The default `level` is `layer`, or `overview` if a layer has more than `MOST_OPS` ops. Without Graphviz's
    `dot`, the written path ends in `.dot`, and a warning is shown.
    """
    check_writable(path)
    target, of = Path(path), type(job)
    if not isinstance(job, (Report, Workload, StepDiff, WorkloadDiff)):
        raise InputError(f"expected a Report or a Workload, or a difference of two, got {of.__name__}")
    kind = format_of(target.suffix.lower(), of, picture=True)
    if kind is None:
        shown = f"{plain(str(target), limit=1000)}: suffix {target.suffix!r}"
        raise InputError(f"{shown} is not one of {', '.join(suffixes(of, picture=True))}")
    try:
        picture = export(job, kind, level=level, phase=phase)
    except NoDotError as missing:
        text = target.with_suffix(".dot")
        write(text, source(job, level=level, phase=phase))
        warnings.warn(
            f"{missing}: wrote its input to {text} instead of {target.name}",
            stacklevel=3,
        )
        return text
    write(target, picture)
    return target


def _canvas(job: Job, level: str | None, phase: str) -> Canvas:
    level = None if level is None else choice("level", level, tuple(LEVELS))
    if isinstance(job, (StepDiff, WorkloadDiff)):
        if level not in (None, "layer"):
            raise InputError(f"level: {level}: a difference is drawn op by op; leave it out")
        return diff.draw(job, choice("phase", phase, PHASES))
    reports = _steps(job, phase)
    panels = [outline(r, f"p{i}_", unrolled=level == "full") for i, r in enumerate(reports)]
    if not all(o.sections for o in panels):
        raise InputError(f"program {job.program.name!r} has no ops to draw")
    return LEVELS[level or _default_level(panels)](job, panels)


def _default_level(panels: Sequence[StepOutline]) -> str:
    """Draw each op of a layer, unless the picture would not be legible."""
    counts = (len(section.boxes) for of in panels for section in of.sections if section.prefix)
    return "overview" if max(counts, default=0) > MOST_OPS else "layer"


@exporter("dot", ".dot", ".gv", of=Report, picture=True)
@exporter("dot", ".dot", ".gv", of=Workload, picture=True)
@exporter("dot", ".dot", ".gv", of=StepDiff, picture=True)
@exporter("dot", ".dot", ".gv", of=WorkloadDiff, picture=True)
def source(job: Job, *, level: str | None = None, phase: str = "both") -> str:
    """The Graphviz source."""
    return str(_canvas(job, level, phase).graph.source)


@exporter("svg", ".svg", of=Report, picture=True)
@exporter("svg", ".svg", of=Workload, picture=True)
@exporter("svg", ".svg", of=StepDiff, picture=True)
@exporter("svg", ".svg", of=WorkloadDiff, picture=True)
def svg(job: Job, *, level: str | None = None, phase: str = "both") -> bytes:
    """An SVG that adapts to the size of its place."""
    canvas = _canvas(job, level, phase)
    return anchored(tooltips(_render(canvas.graph, "svg")), canvas.tiles)


@exporter("pdf", ".pdf", of=Report, picture=True)
@exporter("pdf", ".pdf", of=Workload, picture=True)
@exporter("pdf", ".pdf", of=StepDiff, picture=True)
@exporter("pdf", ".pdf", of=WorkloadDiff, picture=True)
def pdf(job: Job, *, level: str | None = None, phase: str = "both") -> bytes:
    """A PDF page as large as the picture."""
    return _render(_canvas(job, level, phase).graph, "pdf")


@exporter("png", ".png", of=Report, picture=True)
@exporter("png", ".png", of=Workload, picture=True)
@exporter("png", ".png", of=StepDiff, picture=True)
@exporter("png", ".png", of=WorkloadDiff, picture=True)
def png(job: Job, *, level: str | None = None, phase: str = "both") -> bytes:
    """A PNG with 144 pixels per inch, or with fewer if all layers are drawn."""
    graph = _canvas(job, level, phase).graph
    if level != "full":
        graph.attr(dpi="144")
    return _render(graph, "png")


_GROUP = re.compile(
    r'<g id="[^"]*" class="(node|edge|cluster|graph)"([^>]*)>\n<title>([^<]*)</title>\n'
    r'(<g id="[^"]*"><a xlink:title="([^"]*)">)?'
)


def tooltips(svg: bytes) -> bytes:
    """An SVG in which each element has its tooltip as title, because browsers show titles.

    Graphviz uses the name of the element as its id.
    """

    def title(found: re.Match[str]) -> str:
        kind, more, name, link, tip = found.groups()
        said = (tip or "").strip()
        return f'<g id="{name}" class="{kind}"{more}>\n<title>{said}</title>\n{link or ""}'

    return _GROUP.sub(title, svg.decode("utf-8")).encode("utf-8")


_MARK = re.compile(
    r'^<(?:g id="(?P<node>[^"]*)" class="node"'
    r'|(?:path|polygon) [^>]*\b(?:d|points)="(?P<outline>[^"]*)"'
    r'|text text-anchor="start" x="(?P<start>[^"]*)")',
    re.MULTILINE,
)


def anchored(svg: bytes, tiles: Mapping[str, Tile]) -> bytes:
    """An SVG in which the position of right-aligned and centered text does not depend on the font.

    Graphviz computes the start of each text for its own font, which may differ from the reader's font.
    """
    tile: Tile | None = None
    edges: tuple[float, float] | None = (
        None  # left and right edge of the node's outline, which is its first element
    )
    following: Iterator[str] = iter(())

    def mark(found: re.Match[str]) -> str:
        nonlocal tile, edges, following
        if found["node"] is not None:
            tile, edges = tiles.get(found["node"]), None
            following = iter(anchors(tile.rows) if tile else ())
        elif found["outline"] is not None:
            if edges is None:
                xs = [float(x) for x in re.findall(r"(-?[\d.]+),", found["outline"])]
                edges = min(xs), max(xs)
        elif tile and edges and (anchor := next(following, "start")) != "start":
            x = edges[1] - tile.inset if anchor == "end" else sum(edges) / 2
            return f'<text text-anchor="{anchor}" x="{x:g}"'
        return found[0]

    return _MARK.sub(mark, svg.decode("utf-8")).encode("utf-8")


def _steps(job: Report | Workload, phase: str) -> list[Report]:
    """The steps to draw."""
    phase = choice("phase", phase, PHASES)
    if isinstance(job, Report):
        if job.shape:
            raise InputError(f"draw: expected a report of one point, got a grid of {job.shape}")
        return [job]
    if phase not in ("both", *job.steps):
        why = {"encode": "without images", "decode": "that generates 1 token", "draft": "without draft"}.get(
            phase, "without tokens"
        )
        raise InputError(f"phase: a workload {why} has no {phase} step; draw its {' or '.join(job.steps)}")
    return [step for name, step in job.steps.items() if phase in (name, "both")]


def _render(graph: Any, kind: str) -> bytes:
    """Draw the picture and return its bytes."""
    import graphviz

    try:
        picture: bytes = graph.pipe(format=kind, quiet=True)
    except graphviz.ExecutableNotFound:
        get = "apt install graphviz, or brew install graphviz"
        raise NoDotError(f"Graphviz's `dot` is not installed ({get})") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise OutputError(f"dot could not draw {kind}: {said[0] if said else error}") from None
    return picture
