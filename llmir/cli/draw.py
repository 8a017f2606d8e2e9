"""`llmir draw`: an annotated diagram."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

from . import inputs, options, output
from .command import command
from .ending import echo


@command("draw", "An annotated diagram of the model, as SVG, PNG, PDF or DOT.")
@options.model
@options.workload
@options.lowering
@options.draft
@options.parallel
@options.phase
@click.option(
    "--level",
    type=click.Choice(["overview", "layer", "full"]),
    default="layer",
    show_default=True,
    help="overview: blocks; layer: each op, layers folded; full: every layer written out.",
)
@options.output("The file to write: .svg, .png, .pdf or .dot (.gv).  [default: the model's name, .svg]")
def draw(**given: Any) -> None:
    """Draw the model: each op with its time, share, FLOPs, bytes and what bounds it.

    MODEL is a bundled name (`llmir models`), a config.json or its folder, or an .ir file. The path of the
    picture goes to stdout. Without Graphviz the .dot file is written instead.

    \b
    llmir draw llama3.1-8b --hw h100-sxm --batch 8 -o llama.svg
    llmir draw qwen3-30b-a3b --phase decode --level overview -o qwen.png
    llmir draw llama3.1-8b --hw rtx4090 --weights int4 -o llama-int4.svg
    """
    from llmir.backends.analysis.workload import Workload

    target = given["output_file"]
    if target == "-":
        raise click.UsageError("-o -: a picture goes to a file, such as llama.svg")
    if target is not None:
        output.choose(target, None, Workload, picture=True)
    if given["phase"] == "decode" and given["generate"] == 1:
        raise click.UsageError("--phase decode: with --generate 1 there is no decode step")
    program = inputs.lowered(given)
    target = target or output.file_name(program.name, ".svg")
    output.choose(target, None, Workload, picture=True)
    job = inputs.workload(program, given)
    import llmir

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        written = llmir.draw(job, target, level=given["level"], phase=given["phase"])
    echo(os.fspath(written))
    output.note(*job.notes, *(str(w.message) for w in caught))
