"""Write results to files: `save`, `draw` and `trace`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llmir.base import arguments
from llmir.base.errors import InputError

if TYPE_CHECKING:
    from llmir.backends.compare.diff import StepDiff, WorkloadDiff
    from llmir.backends.request.workload import Workload
    from llmir.backends.simulate.result import Simulation
    from llmir.backends.step.report import Report
    from llmir.base.formats import Displayable


PAGE = ".html"


def save(
    result: Displayable,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    max_size: int | None = None,
) -> Path:
    """A report, a difference, a program … as a file; its suffix says the format, unless `format` does.

    Formats are `table` (.txt), `json`, `csv`, `md` and `html`, as far as the class of `result` has them, `ir`
    for programs, and those of plugins. A page has `max_size` bytes at most (5 MB). Raises `InputError` or
    `OutputError`, and then leaves no file.
    """
    from llmir.backends.export.files import check_writable, write
    from llmir.backends.export.page.document import write_page
    from llmir.base.formats import Displayable, format_of, suffixes

    if not isinstance(result, Displayable):
        arguments.refuse("save", result, "a result, such as a Report")
    format = None if format is None else arguments.text("format", format)
    target, of = check_writable(path), type(result)
    found = format or format_of(target.suffix.lower(), of)
    if found is None:
        known = ", ".join(suffixes(of))
        raise InputError(f"{os.fspath(path)}: suffix {target.suffix!r} is unknown; allowed are {known}")
    if max_size is None:
        write(path, write_page(result, found))
    elif found != "page":
        raise InputError("max_size: is of a page, such as plan.html")
    else:
        write(path, write_page(result, found, max_size=arguments.integer("max_size", max_size, 1)))
    return Path(path)


def draw(
    job: Report | Workload | StepDiff | WorkloadDiff,
    path: str | os.PathLike[str],
    *,
    level: str | None = None,
    phase: str = "both",
) -> Path:
    """A picture of a report, a workload or a difference of two; the suffix says how.

    That is `.svg`, `.png`, `.pdf`, or `.dot` (`.gv`). `level` is `overview`, `layer` (every op of one layer)
    or `full` (every op of every layer); by default it is `layer`, or `overview` if a layer has more than 60
    ops. What `llmir.diff` gives has the ops of one layer. `phase` is `prefill`, `decode` or `both` steps of a
    workload, and a report is one step anyway. Returns the path written: without Graphviz's `dot` that is its
    input, `.dot`, and a warning. Raises `OutputError`.
    """
    from llmir.backends.export.dot.render import draw

    return draw(job, path, level=level, phase=phase)


def trace(
    job: Report | Workload | Simulation,
    path: str | os.PathLike[str],
    *,
    phase: str = "both",
    rank: int | None = None,
    max_size: int | None = None,
) -> Path:
    """The timeline of a report, or of a workload's steps, as PyTorch's profiler writes it, for Perfetto.

    That of a simulation has its servers with their steps, and its requests. `path` is a `.json` or
    `.json.gz`; or a `.html`, a page of a report or a workload with the timeline to scale, of `max_size` bytes
    at most (5 MB). `phase` is as in `draw`. The first rank of each pipeline stage stands for its stage; with
    `rank`, a number from 0, the file is of that rank alone. Returns the path written. Raises `InputError` or
    `OutputError`, and then leaves no file.
    """
    from llmir.backends.export.timeline import write_document, write_trace
    from llmir.backends.simulate.result import Simulation

    if isinstance(path, (str, os.PathLike)) and os.fspath(path).lower().endswith(PAGE):
        return _timeline(job, path, phase, rank, max_size)
    if max_size is not None:
        raise InputError("max_size: is of a page, such as step.html")
    if isinstance(job, Simulation):
        from llmir.backends.export.timeline import serving_trace

        if phase != "both" or rank is not None:
            raise InputError("trace: of a simulation it has all servers' steps; leave phase and rank out")
        return write_document(lambda: serving_trace(job), path)
    return write_trace(job, path, phase=phase, rank=rank)


def _timeline(
    job: object, path: str | os.PathLike[str], phase: str, rank: int | None, max_size: int | None
) -> Path:
    """The page of a timeline."""
    from llmir.backends.export.files import check_writable, write
    from llmir.backends.export.page.results import timeline
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.report import Report

    if not isinstance(job, (Report, Workload)):
        arguments.refuse("trace", job, "a Report or a Workload, to be a page")
    if rank is not None:
        raise InputError("rank: a page has the first rank of each stage; leave it out")
    check_writable(path)
    write(path, timeline(job, phase=phase, max_size=max_size))
    return Path(path)
