"""`llmir report`: an interactive HTML page of a model."""

from __future__ import annotations

from typing import Any

import click

from llmir.api.options import Lowering, Memory, Requests

from . import inputs, options, output
from .command import command
from .sweep import AXIS_HELP, axes

SUFFIXES = {".html": "html", ".htm": "html"}
_POINTS = "batch", "new", "context"


@command("report", "Write an interactive page: sliders, results, roofline, graph, memory.")
@click.argument("model", metavar="MODEL")
@options.lenient
@axes(*_POINTS)
@options.take(Lowering, "pipeline", help="Passes to run instead of the engine's.")
@options.take(Memory, "memory_utilization")
@options.take(Requests, "batch", default=32, help="Initial number of sequences.", shown="")
@options.take(Requests, "prompt", default=2048, help="Initial number of prompt tokens.", shown="")
@options.take(Requests, "generate", default=128, help="Initial number of output tokens.", shown="")
@options.max_size
@options.output("The file.  [default: the model's name, .html]")
def report(**given: Any) -> None:
    """Write a page of a model in up to 64 configurations, which opens from disk.

    The page contains the cost model. Without a server, it computes the results of `llmir analyze` for any
    batch, prompt and output length. Impossible splits are grayed out with the reason.

    \b
    llmir report llama3.1-8b
    llmir report qwen3-32b --hw h100-sxm,h200 --tp 1,2,4,8 -o qwen.html
    """
    from llmir.api import page as pages
    from llmir.api.sweep import axis

    if given["output_file"] not in (None, "-"):
        output.choose(given["output_file"], None, SUFFIXES)
    source = inputs.source(given)
    program = source.load()
    said = {name: given[name] for name in AXIS_HELP if name not in _POINTS and given[name] is not None}
    values = {name: axis(name, value, f"--{name.replace('_', '-')}") for name, value in said.items()}
    start = {name: given[name] for name in ("batch", "prompt", "generate")}
    how = {name: given[name] for name in ("pipeline", "memory_utilization", "max_size")}
    page = pages.page(source, values, **start, **how)
    output.emit(page, given["output_file"] or output.file_name(program.name, ".html"))
    output.note(*source.notes)
