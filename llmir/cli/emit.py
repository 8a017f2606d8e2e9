"""`llmir emit`: a step as a module that runs without llmir."""

from __future__ import annotations

from typing import Any

import click

from llmir.api.options import Lowering

from . import inputs, options, output
from .command import command

SUFFIXES = {".js": "js", ".mjs": "js", ".py": "py"}


@command("emit", "Write a standalone estimator in JavaScript or Python.")
@options.model
@options.hardware
@options.cost_options
@options.lowering
@options.draft
@options.parallel
@options.take(
    Lowering,
    "phase",
    choices=("encode", "prefill", "decode", "draft"),
    default=None,
    help="Write this step only.",
    shown="decode of one new token, else prefill",
)
@click.option("--to", type=click.Choice(["js", "py"]), help="The language.  [default: js, or by the suffix]")
@options.output("Write a file; .js, .mjs or .py selects the language.")
def emit(**given: Any) -> None:
    """Write the steps of a model as code: `price(batch, new, context)` returns seconds and bytes.

    `ops` returns the rows of a report for these sizes, with FLOPs and bytes as exact integers. Results equal
    those of `llmir analyze` to 12 digits; `about` contains the device, the cost model, inputs and units.

    \b
    llmir emit llama3.1-8b --hw h100-sxm -o llama.mjs
    llmir emit qwen3-235b-a22b --hw h200 --tp 8 --ep 8 --to py > qwen.py
    """
    from llmir.api import compile

    target, to = given["output_file"], given["to"]
    if target not in (None, "-"):
        to = output.choose(target, to, SUFFIXES, option="--to")
    program = inputs.lower(given)
    how = inputs.estimation(given)
    device = inputs.hardware(given, program)
    output.emit(compile.emit(program, device, to=to or "js", phase=given["phase"], estimation=how), target)
