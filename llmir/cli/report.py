"""`llmir report`: a page that computes, for the browser."""

from __future__ import annotations

from typing import Any

import click

from . import inputs, options, output
from .command import command
from .options import of_workload
from .sweep import AXES, axes

SUFFIXES = {".html": "html", ".htm": "html"}
_POINTS = "batch", "new", "context"


@command("report", "A page that computes: sliders, figures, roofline, graph, memory.")
@click.argument("model", metavar="MODEL")
@click.option("--lenient", is_flag=True, help="Only note config fields that llmir does not model.")
@axes(*_POINTS)
@click.option("-p", "--pipeline", metavar="PASSES", help="Passes to run instead of the engine's.")
@click.option("--batch", type=of_workload("batch"), default=1, help="Where the slider of sequences starts.")
@click.option("--prompt", type=of_workload("prompt"), default=2048, help="That of prompt tokens.")
@click.option("--generate", type=of_workload("generate"), default=128, help="That of generated tokens.")
@options.max_size
@options.output("The file.  [default: the model's name, .html]")
def report(**given: Any) -> None:
    """Write a page of a model in all combinations of some axes, 64 at most, which opens from disk.

    The cost model itself is in the page: it computes what `llmir analyze` says for any batch, prompt and
    generate, and asks no server. A split that a model does not take is greyed there, with the reason.

    \b
    llmir report llama3.1-8b
    llmir report qwen3-32b --hw h100-sxm,h200 --tp 1,2,4,8 -o qwen.html
    """
    import llmir
    from llmir.backends.search.sweep import axis_values

    if given["output_file"] not in (None, "-"):
        output.choose(given["output_file"], None, SUFFIXES)
    program = inputs.read(given["model"], lenient=given["lenient"])
    said = {name: given[name] for name in AXES if name not in _POINTS and given[name] is not None}
    values = {name: axis_values(name, value, f"--{name.replace('_', '-')}") for name, value in said.items()}
    start = {name: given[name] for name in ("batch", "prompt", "generate")}
    page = llmir.page(program, values, **start, pipeline=given["pipeline"], max_size=given["max_size"])
    output.emit(page, given["output_file"] or output.file_name(program.name, ".html"))
    output.note(*program.notes)
