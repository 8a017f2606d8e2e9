"""`llmir explain`: one op, from its equation to its time."""

from __future__ import annotations

from typing import Any

import click

from llmir.errors import InputError, LlmirError

from . import inputs, options, output
from .command import command


@command("explain", "One op: its equation, its costs in symbols and numbers, its time.")
@options.model
@click.argument("op", metavar="OP")
@click.option(
    "--phase",
    type=click.Choice(["encode", "prefill", "decode", "draft"]),
    help="The step: decode is the last one.  [default: prefill]",
)
@options.workload
@options.lowering
@options.draft
@options.parallel
@options.form("table", "json", "html")
@options.output("Write a file; .txt, .json or .html decides the format.")
def explain(**given: Any) -> None:
    """Explain one op: its equation and axes, what it computes and moves, and why it takes as long as it does.

    MODEL is a bundled name, a config.json or its folder, or an .ir file; OP is a name that `llmir analyze`
    shows, such as layer.qkv_proj or qkv_proj; engine_overhead and bubble are rows too.

    \b
    llmir explain llama3.1-8b qkv_proj --hw h100-sxm --batch 8
    llmir explain qwen3-30b-a3b experts_gate_up --phase decode --batch 32
    llmir explain llama3.1-8b scores --attention eager
    llmir explain llama3.1-8b engine_overhead --phase decode --batch 8
    """
    from llmir import api
    from llmir.backends.analysis.explain import Explanation

    form = output.choose(given["output_file"], given["form"], Explanation)
    if given["phase"] == "decode" and given["generate"] == 1:
        raise click.UsageError("--phase decode: with --generate 1 there is no decode step")
    program = inputs.lowered(given)
    job = inputs.workload(program, given)
    try:
        explanation = api.explain(job, given["op"], phase=given["phase"])
    except InputError as error:
        hint = _hint(given) if str(error).startswith("unknown op") else ""
        raise InputError(f"{error}{hint}") from None
    output.result(explanation, form, given["output_file"])
    output.note(*job.notes)


def _hint(given: dict[str, Any]) -> str:
    """Where an op is that the passes have merged into another."""
    from llmir.backends.analysis.explain import find

    try:
        find(inputs.read(given["model"], given["logits"], lenient=given["lenient"]), given["op"])
    except LlmirError:
        return ""
    return " (passes have changed it; --pipeline '' leaves it as it was)"
