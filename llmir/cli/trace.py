"""`llmir trace`: the predicted timeline of each step, for Perfetto."""

from __future__ import annotations

import os
from typing import Any

import click

from . import inputs, options, output
from .command import command, echo
from .options import Integer


@command("trace", "Write the estimated timeline of each step, for Perfetto.")
@options.model
@options.workload
@options.lowering
@options.draft
@options.parallel
@options.phase
@click.option(
    "--rank",
    type=Integer(None),  # the mesh limits the number of ranks
    help="Write this rank only, as the profiler does.  [default: the first of each stage]",
)
@options.max_size
@options.output(
    "The file to write: .json or .json.gz, or .html for a page.  [default: the model's name, .trace.json.gz]"
)
def trace(**given: Any) -> None:
    """Write the activity of each rank during a step, in the format of the PyTorch profiler.

    Every execution of every op is a slice, and layers are numbered ranges. Waits (engine CPU, rank skew,
    pipeline bubbles) have a separate row, above counters of activations in memory and of bandwidth. Open the
    file at https://ui.perfetto.dev next to a profile of your server, or in HolisticTraceAnalysis (with pp,
    one file for each --rank). An .html file is a page with the timeline to scale. The path of the file is
    printed on stdout.

    \b
    llmir trace llama3.1-8b --hw h100-sxm --batch 8 -o llama.json.gz
    llmir trace llama3.1-405b --tp 8 --pp 2 --batch 16 --phase decode -o step.html
    """
    if given["output_file"] == "-":
        raise click.UsageError("-o -: a trace must be written to a file, such as llama.json.gz")
    program = inputs.lower(given)
    job = inputs.workload(program, given)
    target = given["output_file"] or output.file_name(program.name, ".trace.json.gz")
    from llmir.api import save

    echo(os.fspath(save.trace(job, target, **{name: given[name] for name in ("phase", "rank", "max_size")})))
    output.note(*job.notes)
