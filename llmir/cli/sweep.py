"""`llmir sweep`: steps of a model in many set-ups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from llmir.errors import InputError

from . import inputs, output
from .command import command
from .progress import bar

_AXES = {
    "hw": ("DEVICE,…", "Devices, or YAML files.  [default: h100-sxm]"),
    "batch": ("RANGE", "Sequences in a step, such as 1:1024:x2 or 1,8,64.  [default: 1]"),
    "new": ("RANGE", "New tokens of each: 1 is a decode step.  [default: 1]"),
    "context": ("RANGE", "Cached tokens of each, such as 1k:128k:x2.  [default: 0]"),
    "tp": ("RANGE", "Tensor-parallel ranks."),
    "pp": ("RANGE", "Pipeline stages."),
    "micro_batches": ("RANGE", "Equal parts of a batch that go through the stages."),
    "dp": ("RANGE", "Data-parallel ranks."),
    "ep": ("RANGE", "Expert-parallel ranks."),
    "sp": ("0,1", "Sequence parallelism."),
    "redundant_experts": ("RANGE", "Copies of the busiest experts."),
    "weights": ("DTYPE,…", "Types of weights, such as bf16,fp8; and so the next three."),
    "activations": ("DTYPE,…", ""),
    "kv": ("DTYPE,…", ""),
    "collectives": ("DTYPE,…", ""),
    "dispatch": ("HOW,…", "How tokens come to experts of other ranks: rows, ranks, gather."),
    "routing": ("LAW,…", "How tokens choose experts."),
    "engine": ("NAME,…", "Engines, such as vllm,sglang@0.5."),
    "cost": ("NAME,…", "Cost models: calibrated, ideal."),
}


def _axes(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, (metavar, words) in reversed(_AXES.items()):
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, name, metavar=metavar, help=words)(function)
    return function


@command("sweep", "Steps in many set-ups: devices, splits, types, batches, contexts.")
@click.argument("model", metavar="MODEL")
@click.option("--lenient", is_flag=True, help="Only note config fields that llmir does not model.")
@_axes
@click.option("-p", "--pipeline", metavar="PASSES", help="Passes to run instead of the engine's.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--format", "form", metavar="[table|json|jsonl|csv|parquet|arrow]", help="Default: table.")
@click.option("-o", "--output", "output_file", metavar="FILE", help="The suffix says the format.")
def sweep(**given: Any) -> None:
    """Price every combination of some axes: a row for each, as `llmir analyze` would have it.

    A RANGE is a list such as 1,8,32, with parts such as 1:8, 0:4k:1k (steps) or 1:1024:x2 (powers); k is
    1,024. A split that a model does not take is a row that says why.

    \b
    llmir sweep llama3.1-8b --batch 1:256:x2 --context 2000
    llmir sweep qwen3-32b --hw h100-sxm,h200 --tp 1,2,4 --batch 1:1k:x2 -o g.csv
    """
    from concurrent.futures import ProcessPoolExecutor
    from contextlib import nullcontext
    from functools import partial

    from llmir.backends.search.axes import axis
    from llmir.backends.search.sweep import Sweep
    from llmir.swept import sweep

    form = output.choose(given["output_file"], given["form"], Sweep)
    program = inputs.read(given["model"], lenient=given["lenient"])
    said = {name: given[name] for name in _AXES if given[name] is not None}
    axes = {name: axis(name, value, f"--{name.replace('_', '-')}") for name, value in said.items()}
    jobs = given["jobs"]
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as executor, bar() as progress:
        told = partial(progress, "structures")
        found = sweep(program, axes, pipeline=given["pipeline"], executor=executor, progress=told)
    if all(why for part in found.parts for why in part.columns["refused"]):
        raise InputError(f"all {len(found):,} refused, such as: {found.parts[0].columns['refused'][0]}")
    output.result(found, form, given["output_file"])
    output.note(*program.notes)
