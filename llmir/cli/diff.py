"""`llmir diff`: what a pipeline, a pass, another model or another device changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import inputs, options, output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llmir.backends.analysis.diff import WorkloadDiff
    from llmir.pipeline import Step


@click.command("diff", short_help="What passes, another model or another device change.")
@options.model
@click.argument("other", metavar="[MODEL2]", required=False)
@click.option("--before", metavar="PASSES", help="Passes on the one side; '' for none, as eager code runs.")
@click.option("--after", metavar="PASSES", help="Passes on the other side.")
@click.option(
    "--pass", "step", metavar="PASS", help="Instead of both: one pass, at its place in the default."
)
@options.workload
@click.option("--hw-after", metavar="DEVICE", help="Another device or cluster on the other side.")
@options.logits
@options.precision
@options.parallel
@options.form("table", "json", "csv", "md")
@options.output("Write a file; .txt, .json, .csv or .md decides the format.")
def command(**given: Any) -> None:
    """Compare two pipelines on a model, op by op: what is fused, new, gone, and what that saves.

    MODEL is a bundled name, a config.json or its folder, or an .ir file. Before is the model without
    passes, after is the default pipeline. With MODEL2 or --hw-after, both sides run the default pipeline
    (.ir as it is). A fused op is shown with the ops that it replaced. --weights, --tp and their like hold
    for both sides; what only one side has is a pass of --after or --before, such as shard{tp=8}.

    \b
    llmir diff llama3.1-8b --batch 8
    llmir diff qwen3-30b-a3b --pass fuse --batch 8 -o fuse.json
    llmir diff llama3.1-8b --before fuse-attention --after 'fuse-attention,fuse'
    llmir diff llama3.1-8b qwen3-8b
    llmir diff llama3.1-8b --hw a100 --hw-after h100-sxm
    llmir diff llama3.1-70b --tp 8 --weights fp8 --kv fp8
    """
    form = output.choose(given["output_file"], given["form"])
    models = given["model"], given["other"] or given["model"]
    pipelines = _pipelines(given, models)
    from llmir import api
    from llmir.backends.analysis.diff import WorkloadDiff
    from llmir.pipeline import label

    lenient = given["lenient"]
    read = {model: inputs.read(model, given["logits"], lenient=lenient) for model in dict.fromkeys(models)}
    jobs = []
    before = inputs.hardware(given)
    devices = before, given["hw_after"] or before
    steps = [inputs.around(given, *passes) for passes in pipelines]
    for model, passes, hw in zip(models, steps, devices, strict=True):
        program = api.run(read[model], passes)
        jobs.append(inputs.workload(program, given, hw))
    stated = [",".join(label(p) for p in passes if p) for passes in steps]
    _emit(WorkloadDiff(*jobs), (stated[0], stated[1]), form, given["output_file"])
    output.note(*(note for job in jobs for note in job.notes))


def _pipelines(given: dict[str, Any], models: tuple[str, str]) -> Iterable[Sequence[Step]]:
    """The passes of either side."""
    from llmir.passes import DEFAULT_PIPELINE
    from llmir.pipeline import around

    two = given["other"] is not None or given["hw_after"] is not None
    before, after = given["before"], given["after"]
    if given["step"] is None:
        if two:
            usual = [inputs.passes(m, "flash", None) for m in models]
            return [usual[0] if before is None else before], [usual[1] if after is None else after]
        return [before or ""], [DEFAULT_PIPELINE if after is None else after]
    if two or before is not None or after is not None:
        raise click.UsageError(
            "--pass: says both sides already, with --before, --after, MODEL2 or --hw-after"
        )
    return around(given["step"], DEFAULT_PIPELINE)


def _emit(diff: WorkloadDiff, pipelines: tuple[str, str], form: str, target: str | None) -> None:
    from llmir.backends.export import difftext, diffview, jsonio

    if form == "table":
        output.emit_table(diffview.workload(diff, pipelines), target)
    elif form == "json":
        data = diff.to_dict()
        for side, passes in zip(("before", "after"), pipelines, strict=True):
            data[side]["pipeline"] = passes
        output.emit(jsonio.to_json(data), target)
    elif form == "csv":
        output.emit(jsonio.to_csv(difftext.to_rows(diff)), target)
    else:
        output.emit(difftext.to_markdown(diff, pipelines), target)
