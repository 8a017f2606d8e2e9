"""`llmir check`: compare the weights with a checkpoint, or all ranks with one device."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from llmir.api.options import Requests

from . import inputs, options, output
from .command import command

_OF_INDEX = ("model", "index", "lenient", "form", "output_file")


@command("check", "Compare the weights with a checkpoint's, or all ranks with one device.")
@options.model
@click.option(
    "--index",
    metavar="FILE",
    help="model.safetensors.index.json, a .safetensors file, its header as JSON, or a folder of these.",
)
@options.parallel
@options.lowering
@options.take(
    Requests,
    "batch",
    default=None,
    help="Number of sequences of the step in which ranks are compared.",
    shown="dp",
)
@options.take(Requests, "prompt", help="Tokens of each sequence of this step.", shown="tp")
@options.form("table", "json", "html")
@options.output("Write a file; .txt, .json or .html selects the format.")
def check(**given: Any) -> int:
    """Compare the model's weights with a checkpoint's: names, shapes, dtypes, bytes.

    Only headers are read. An index contains names and totals; a .safetensors header also contains shapes.
    Exit code 0 means that all agree, and 1 that something differs. A tied lm_head may be stored or omitted.
    Rotary tables and the vision and audio parts of a multimodal checkpoint are ignored; a total in the index
    is then only a lower bound.

    With --tp or other ranks, the command instead checks that all ranks together store and compute what one
    device does. Replicated weights, caches and products are listed with their number of copies. If sizes do
    not divide evenly, or pieces have separate scales, the differences are listed as a sum. Exit code 0 means
    that the sums agree, and 1 that they differ.

    \b
    llmir check llama3.1-8b --index Llama-3.1-8B/model.safetensors.index.json
    llmir check ./my-model --index ./my-model --format json
    llmir check qwen3-235b-a22b --tp 8 --dp 2 --ep 16
    """
    from llmir.api import compare
    from llmir.backends.compare.conservation import Conservation
    from llmir.frontends.checkpoints.weights import Comparison

    of = Conservation if given["index"] is None else Comparison
    form = output.choose(given["output_file"], given["form"], of)
    if given["index"] is None:
        before, program = inputs.before_and_after(given)
        if program.devices == 1:
            raise click.UsageError("check requires --index FILE, or more than one rank: --tp, --pp, --dp")
        found = compare.check(program, before, batch=given["batch"], new=given["prompt"])
    else:
        _refuse_more(given)
        program = inputs.read(given["model"], lenient=given["lenient"])
        found = compare.check(program, given["index"])
    output.result(found, form, given["output_file"])
    output.note(*program.notes)
    return 0 if found.agrees else 1


def _refuse_more(given: dict[str, Any]) -> None:
    source = click.get_current_context().get_parameter_source
    for name in given:
        if name not in _OF_INDEX and source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(
                f"{option}: has no effect with --index, which compares the model with a file as it is"
            )
