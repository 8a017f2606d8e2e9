"""`llmir explain`: one op, from its equation to its time, or the memory of a rank."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from llmir.api.options import Lowering
from llmir.base.errors import InputError, LlmirError

from . import inputs, options, output
from .command import command

MEMORY = "memory"


@command("explain", "Explain one op: equation, cost and time.")
@options.model
@click.argument("op", metavar="OP")
@options.take(
    Lowering,
    "phase",
    choices=("encode", "prefill", "decode", "draft"),
    default=None,
    help="Step that contains the op; decode is the last decode step.",
    shown="prefill",
)
@options.workload
@options.lowering
@options.draft
@options.parallel
@options.memory
@options.form("table", "json", "html")
@options.output("Write a file; .txt, .json or .html selects the format.")
@click.pass_context
def explain(ctx: click.Context, /, **given: Any) -> None:
    """Explain one op: its equation and axes, its FLOPs and bytes, and the terms of its time.

    MODEL is a bundled name, a config.json or its folder, or an .ir file. OP is a name that `llmir analyze`
    shows, such as layer.qkv_proj or qkv_proj, or one of the rows engine_cpu, launch_gap, rank_skew and
    bubble. If OP is the word memory, the command explains the device memory, item by item as in the
    engine's log.

    \b
    llmir explain llama3.1-8b qkv_proj --hw h100-sxm --batch 8
    llmir explain qwen3-30b-a3b experts_gate_up --phase decode --batch 32
    llmir explain llama3.1-8b scores --attention eager
    llmir explain llama3.1-8b engine_cpu --phase decode --batch 8
    llmir explain llama3.1-8b memory --hw h100-sxm --max-model-len 8192
    """
    from llmir.api import compare
    from llmir.backends.compare.explain import Explanation
    from llmir.backends.memory.kv_capacity import MemoryBreakdown

    if given["model"] == MEMORY:
        raise InputError(f"the model comes first: llmir explain {given['op']} {MEMORY}")
    sums = given["op"] == MEMORY
    form = output.choose(given["output_file"], given["form"], MemoryBreakdown if sums else Explanation)
    _check(ctx, ("phase",) if sums else options.MEMORY, given["op"])
    if given["phase"] == "decode" and given["generate"] == 1:
        raise click.UsageError("--phase decode: with --generate 1 there is no decode step")
    program = inputs.lower(given)
    job = inputs.workload(program, given)
    if sums:
        output.result(job.memory, form, given["output_file"])
        return
    try:
        explanation = compare.explain(job, given["op"], phase=given["phase"])
    except InputError as error:
        hint = _hint(given) if str(error).startswith("unknown op") else ""
        raise InputError(f"{error}{hint}") from None
    output.result(explanation, form, given["output_file"])
    output.note(*job.notes)


def _check(ctx: click.Context, idle: tuple[str, ...], op: str) -> None:
    """Raise InputError for options that have no effect on the explanation."""
    for name in idle:
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            says = "a step, not to memory" if op == MEMORY else "memory, which no op depends on"
            raise InputError(f"--{name.replace('_', '-')}: applies only to {says}; leave it out")


def _hint(given: dict[str, Any]) -> str:
    """A hint for an op that the passes have fused into another op."""
    from llmir.backends.compare.explain import find_op

    try:
        find_op(inputs.read(given["model"], given["logits"], lenient=given["lenient"]), given["op"])
    except LlmirError:
        return ""
    return " (passes have changed it; --pipeline '' leaves it as it was)"
