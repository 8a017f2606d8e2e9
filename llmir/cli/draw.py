"""`llmir draw`: an annotated picture of a model's ops."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

from . import inputs, options, output
from .command import command, echo
from .diff import difference, notes


@command("draw", "An annotated diagram of the model, as SVG, PNG, PDF or DOT.")
@options.model
@click.option("--diff", is_flag=True, help="Draw two sides next to each other, as in `llmir diff`.")
@options.sides
@options.workload
@options.lowering
@options.draft
@options.parallel
@options.phase
@click.option(
    "--level",
    type=click.Choice(["overview", "layer", "full"]),
    help="overview: blocks; layer: each op, layers folded; full: every layer, with weights, caches and "
    "shapes.  [default: layer, or overview if a layer has more than 60 ops]",
)
@options.output("The file to write: .svg, .png, .pdf or .dot (.gv).  [default: the model's name, .svg]")
def draw(**given: Any) -> None:
    """Draw the model: each op with its time, share, FLOPs, bytes and bound.

    MODEL is a bundled name (`llmir models`), a config.json or its folder, or an .ir file. The path of the
    picture is printed on stdout. Without Graphviz the .dot file is written instead.

    \b
    llmir draw llama3.1-8b --hw h100-sxm --batch 8 -o llama.svg
    llmir draw qwen3-30b-a3b --phase decode --level overview -o qwen.png
    llmir draw llama3.1-8b --hw rtx4090 --weights int4 -o llama-int4.svg
    llmir draw llama3.1-8b --diff --batch 8 -o fused.svg
    llmir draw llama3.1-8b --diff --hw a100 --hw-after h100-sxm --phase decode
    """
    from llmir.backends.request.workload import Workload

    target = given["output_file"]
    if target == "-":
        raise click.UsageError("-o -: a picture must be written to a file, such as llama.svg")
    if target is not None:
        output.choose(target, None, Workload, picture=True)
    if given["phase"] == "decode" and given["generate"] == 1:
        raise click.UsageError("--phase decode: with --generate 1 there is no decode step")
    _refused(given)
    job, name, notes = _compared(given) if given["diff"] else _analyzed(given)
    target = target or output.file_name(name, ".svg")
    output.choose(target, None, Workload, picture=True)
    from llmir.api import save

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        written = save.draw(job, target, level=given["level"], phase=given["phase"])
    echo(os.fspath(written))
    output.note(*notes, *(str(w.message) for w in caught))


def _analyzed(given: dict[str, Any]) -> tuple[Any, str, tuple[str, ...]]:
    """The workload, the name of its model, and its notes."""
    program = inputs.lower(given)
    job = inputs.workload(program, given)
    return job, program.name, job.notes


def _compared(given: dict[str, Any]) -> tuple[Any, str, tuple[str, ...]]:
    """The difference of two sides, the name of the first, and the notes."""
    found = difference(given)
    return found, f"{found.before.program.name}-diff", tuple(notes(found))


def _refused(given: dict[str, Any]) -> None:
    """`UsageError` for options that have no effect on a picture of one side, or of two sides."""
    names = {"other": "MODEL2", "step": "--pass", "pipeline": "--pipeline", "mla": "--mla"}
    names |= {n: f"--{n.replace('_', '-')}" for n in ("before", "after", "hw_after", "engine_after", "level")}
    if not given["diff"]:
        for name in ("other", "before", "after", "step", "hw_after", "engine_after"):
            if given[name] is not None:
                raise click.UsageError(f"{names[name]}: requires --diff, because it describes a second side")
        return
    for name in ("pipeline", "mla"):
        if given[name] is not None:
            raise click.UsageError(
                f"{names[name]}: has no effect with --diff; set the passes with --before and --after"
            )
    if given["attention"] == "eager":
        raise click.UsageError(
            "--attention eager: has no effect with --diff; set the passes with --before and --after"
        )
    if given["level"] is not None:
        raise click.UsageError(
            f"--level {given['level']}: cannot be combined with --diff, which draws each op of a layer"
        )
    for name in ("draft", "image_tokens", "layer_tokens"):
        if given[name]:
            raise click.UsageError(f"--{name.replace('_', '-')}: --diff draws prefill and decode without it")
