"""`llmir plot`: plots of a workload."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command, echo

if TYPE_CHECKING:
    from llmir.backends.request.workload import Workload

KINDS = ("roofline", "distributions", "memory", "batch", "context")
HEIGHTS = {"roofline": 6.2, "memory": 4.8}
STEPS = KINDS[:3]  # the kinds that also apply to a step
ELSEWHERE = {
    "front": "llmir plan or llmir sweep with -o front.png",
    "latencies": "llmir serve-sim --rates 2,4,8 -o latencies.png",
    "serving": "llmir serve-sim --rate 4 -o serving.png",
}


@command("plot", "Plot rooflines, distributions, memory, batch and context curves.")
@click.argument("kind", metavar="KIND")
@options.model
@options.workload
@options.lowering
@options.parallel
@options.memory
@options.phase
@click.option(
    "--by", metavar="[block|kind]", help="Rows of distributions: blocks, or kinds of op.  [default: block]"
)
@options.output("The file to write: .png, .svg or .pdf.  [default: the model's name and the kind, .png]")
def plot(**given: Any) -> None:
    """Plot figures of a workload with matplotlib (pip install 'llmir[plot]').

    KIND is roofline (every op below the rooflines, prefill and decode), distributions (parameters, FLOPs,
    bytes and time by block), memory (over a request, or with --phase over the ops of a step), batch
    (throughput and time over the batch) or context (time over the context). The path of the picture is
    printed on stdout.

    \b
    llmir plot roofline qwen3-30b-a3b --hw h100-sxm --batch 8 -o roofline.png
    llmir plot distributions deepseek-v3 --hw h200 --tp 8 --by kind
    llmir plot batch llama3.1-8b --prompt 4000 --generate 500 -o batch.svg
    Other figures: llmir plan … -o front.png, llmir sweep … -o grid.png,
    llmir serve-sim … -o serving.png, llmir serve-sim --rates 2,4,8 -o late.png
    """
    from llmir.backends.export.charts.frame import FORMATS, check

    kind, target = given["kind"], given["output_file"]
    if kind not in KINDS:
        hint = f"; {ELSEWHERE[kind]}" if kind in ELSEWHERE else ""
        raise InputError(f"KIND: expected one of {', '.join(KINDS)}; got {kind!r}{hint}")
    if target == "-":
        raise InputError("-o -: a picture must be written to a file, such as roofline.png")
    _acting(given)
    check("plot")
    if target is not None:
        output.choose(target, None, FORMATS)
    program = inputs.lower(given)
    target = target or output.file_name(f"{program.name}-{kind}", ".png")
    form = output.choose(target, None, FORMATS)
    job = inputs.workload(program, given)
    from llmir.backends.export.charts.files import render_plot
    from llmir.backends.export.files import write

    write(target, render_plot(_plot(kind, job, given), form, _height(kind, job, given)))
    echo(os.fspath(target))
    output.note(*job.notes)


def _acting(given: Mapping[str, Any]) -> None:
    """InputError for an option that has no effect on this kind of plot."""
    kind, phase = given["kind"], given["phase"]
    if given["by"] is not None and kind != "distributions":
        raise InputError(f"--by {given['by']}: applies only to distributions, not to {kind}")
    if phase != "both" and kind not in STEPS:
        raise InputError(f"--phase {phase}: applies only to {', '.join(STEPS)}; {kind} shows decode steps")


def _plot(kind: str, job: Workload, given: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A function that draws the plot in given axes."""
    from llmir.api import draw

    data: Any = job
    if (phase := given["phase"]) != "both":
        if phase not in job.steps:
            raise InputError(f"--phase {phase}: this workload has {' and '.join(job.steps)}")
        data = job.steps[phase]
    how = {} if given["by"] is None else {"by": given["by"]}
    return lambda ax: getattr(draw, f"plot_{kind}")(data, ax, **how)


def _height(kind: str, job: Workload, given: Mapping[str, Any]) -> float:
    """The size of the page in inches."""
    if kind != "distributions":
        return HEIGHTS.get(kind, 5.2)
    from llmir.backends.export.charts.shares import height

    steps = job.steps if given["phase"] == "both" else {given["phase"]: job.steps[given["phase"]]}
    return height(job.program, steps, given["by"] or "block")
