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
    """Write a result, such as a report, a comparison or a program, to a file.

    A failed call leaves no file.

    Args:
        result: The result.
        path: The file. Its suffix selects the format.
        format: The format, instead of the suffix: `table` (.txt), `json`, `csv`, `md` or `html` if `result`
            supports it, `ir` for programs, or a format of a plugin.
        max_size: Largest size of an HTML page in bytes. The default is 5 MB.

    Returns:
        The path.

    Raises:
        InputError: The result does not support the format, or the page is too large.
        OutputError: The file cannot be written.

    >>> import llmir
    >>> from tempfile import mkdtemp
    >>> save(llmir.workload("qwen3-0.6b", "l4"), f"{mkdtemp()}/report.json").name
    'report.json'
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
        raise InputError("max_size: applies only to a page, such as plan.html")
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
    """Draw a report, a workload or a comparison as a graph.

    Args:
        job: The estimate to draw.
        path: The file. Its suffix selects the format: `.svg`, `.png`, `.pdf`, `.dot` or `.gv`.
        level: `overview`, `layer` (every op of one layer) or `full` (every op of every layer). The default is
            `layer`, or `overview` if a layer has more than 60 ops. A comparison shows the ops of one layer.
        phase: Steps of a workload: `prefill`, `decode` or `both`.

    Returns:
        The written path. Without the Graphviz command `dot` it is a `.dot` file, and a warning is shown.

    Raises:
        OutputError: The file cannot be written.

    >>> import llmir
    >>> from tempfile import mkdtemp
    >>> draw(llmir.analyze("qwen3-0.6b", "l4"), f"{mkdtemp()}/step.dot").name
    'step.dot'
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
    """Write a timeline in the format of the PyTorch profiler, for Perfetto, or as an HTML page.

    The timeline of a simulation contains servers with their steps, and requests. A failed call leaves no
    file.

    Args:
        job: The estimate or simulation.
        path: A `.json` or `.json.gz` file. For a report or workload also an `.html` file, a page with the
            timeline drawn to scale.
        phase: Steps of a workload: `prefill`, `decode` or `both`.
        rank: The rank to write, from 0. By default, the first rank of each pipeline stage stands for its
            stage.
        max_size: Largest size of a page in bytes. The default is 5 MB.

    Returns:
        The written path.

    Raises:
        InputError: An argument is invalid for this job or format.
        OutputError: The file cannot be written.

    >>> import llmir
    >>> from tempfile import mkdtemp
    >>> trace(llmir.analyze("qwen3-0.6b", "l4"), f"{mkdtemp()}/step.json.gz").name
    'step.json.gz'
    """
    from llmir.backends.export.timeline import write_document, write_trace
    from llmir.backends.simulate.result import Simulation

    if isinstance(path, (str, os.PathLike)) and os.fspath(path).lower().endswith(PAGE):
        return _timeline(job, path, phase, rank, max_size)
    if max_size is not None:
        raise InputError("max_size: applies only to a page, such as step.html")
    if isinstance(job, Simulation):
        from llmir.backends.export.timeline import serving_trace

        if phase != "both" or rank is not None:
            raise InputError(
                "trace: the trace of a simulation contains all servers; leave phase and rank out"
            )
        return write_document(lambda: serving_trace(job), path)
    return write_trace(job, path, phase=phase, rank=rank)


def _timeline(
    job: object, path: str | os.PathLike[str], phase: str, rank: int | None, max_size: int | None
) -> Path:
    """Write the HTML page of a timeline."""
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
