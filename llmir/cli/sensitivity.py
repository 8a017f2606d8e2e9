"""`llmir sensitivity`: the time that more of each resource saves."""

from __future__ import annotations

from typing import Any

import click

from . import inputs, options, output
from .command import command
from .options import Number


@command("sensitivity", "Estimate the effect of faster resources, by phase and op.")
@options.model
@options.workload
@options.lowering
@options.draft
@options.parallel
@click.option(
    "--more",
    type=Number("PERCENT", most=1e4),
    default=10.0,
    show_default=True,
    help="Increase of each resource, in percent.",
)
@options.form("table", "json")
@options.output("Write a file; .txt or .json selects the format.")
def sensitivity(**given: Any) -> None:
    """Estimate the time that faster resources save in a prefill step and in a decode step.

    Resources are the rates of the device as named in its file, the kernel launch time, and the engine CPU
    time. Resources that save nothing are omitted; JSON contains the saving in every op.

    \b
    llmir sensitivity llama3.1-8b --hw h100-sxm --batch 64
    llmir sensitivity qwen3-32b --hw h200 --tp 4 --more 50 --format json
    """
    from llmir.api import compare
    from llmir.backends.compare.sensitivity import Sensitivity

    form = output.choose(given["output_file"], given["form"], Sensitivity)
    job = inputs.workload(inputs.lower(given), given)
    output.result(compare.sensitivity(job, given["more"] / 100), form, given["output_file"])
    output.note(*job.notes)
