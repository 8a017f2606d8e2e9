"""`llmir diff`: what changes with another pipeline, pass, model or device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from llmir.api.options import Traffic
from llmir.base.errors import InputError

from . import inputs, options, output
from .command import command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llmir.backends.compare.diff import StepDiff, WorkloadDiff
    from llmir.ir.tools.pipeline import Step


@command("diff", "Compare pipelines, models or devices op by op.")
@options.model
@options.sides
@options.workload
@options.logits
@options.precision
@options.parallel
@options.serving
@options.take(Traffic, "lengths", shown="spread")
@options.price_option
@options.form("table", "json", "csv", "md", "html")
@options.output("Write a file; .txt, .json, .csv, .md or .html selects the format.")
def diff(**given: Any) -> None:
    """Compare two pipelines on a model, op by op: fused, new and removed ops, and the time saved.

    MODEL is a bundled name, a config.json or its folder, or an .ir file. The first side is the model without
    passes; the second runs the passes of the engine. With MODEL2 or --hw-after, both sides run these passes
    (an .ir file runs none). If two engines have different passes, both sides run the default pipeline. With
    --engine-after each side runs its own passes, kernels and engine CPU model. A fused op is shown with the
    ops that it replaced. Options such as --weights and --tp apply to both sides; for one side, add a pass to
    --after or --before, such as shard{tp=8}. Both sides use the same kind of cost model, which the first line
    names: measured kernels of one engine, or the roofline.

    \b
    llmir diff llama3.1-8b --batch 8
    llmir diff qwen3-30b-a3b --pass fuse --batch 8 -o fuse.json
    llmir diff llama3.1-8b --before fuse-attention --after 'fuse-attention,fuse'
    llmir diff llama3.1-8b qwen3-8b
    llmir diff llama3.1-8b --hw a100 --hw-after h100-sxm
    llmir diff llama3.1-70b --tp 8 --weights fp8 --kv fp8
    llmir diff qwen3-8b --engine vllm@0.12 --engine-after sglang --concurrency 32
    """
    from llmir.backends.compare.diff import WorkloadDiff

    form = output.choose(given["output_file"], given["form"], WorkloadDiff)
    found = difference(given)
    output.result(found, form, given["output_file"])
    output.note(*notes(found))


def notes(found: StepDiff | WorkloadDiff) -> list[str]:
    """The notes of both sides, except the note on passes, because the heading names the passes."""
    from llmir.backends.step.facts import UNLOWERED

    return [note for side in (found.before, found.after) for note in side.notes if note != UNLOWERED]


def difference(given: dict[str, Any]) -> StepDiff | WorkloadDiff:
    """Compare the two sides that the options describe, with one cost model."""
    from llmir.api import compare
    from llmir.api.deployment import lower
    from llmir.backends.compare.diff import WorkloadDiff
    from llmir.ir.tools.pipeline import label

    models = given["model"], given["other"] or given["model"]
    pipelines = _pipelines(given, models)

    lenient = given["lenient"]
    read = {model: inputs.read(model, given["logits"], lenient=lenient) for model in dict.fromkeys(models)}
    later = {**given, "engine": given["engine_after"] or given["engine"]}
    if given["hw_after"] is not None:
        later |= {"hw": given["hw_after"], "cluster": None}
    steps = [inputs.around(g, *passes) for g, passes in zip((given, later), pipelines, strict=True)]
    written = any(given[name] is not None for name in ("before", "after", "step"))
    pairs = zip(models, steps, strict=True)
    programs = [lower(read[model], passes, written=written) for model, passes in pairs]
    names = "hw_after", "engine_after", "batch", "prompt", "generate", "chunk", "cached"
    asked: dict[str, Any] = {name: given.get(name) for name in (*names, "concurrency", "lengths")}
    asked["estimation"] = inputs.estimation(given)
    if not any(program.patches for program in programs):
        asked |= {"generate": given["generate"] or 128}
    device = inputs.hardware(given, *programs)
    if asked["hw_after"] is not None and given["network"] is not None:
        asked["hw_after"] = inputs.join_nodes(asked["hw_after"], given["network"], *programs)
    if given.get("price"):
        if any(program.patches for program in programs):
            raise InputError("--price: has no effect on a step of images, which has no tokens; leave it out")
        device, *other = inputs.with_prices(given, device, *filter(None, [asked["hw_after"]]))
        asked["hw_after"] = other[0] if other else None
    found = compare.diff(programs[0], programs[1], device, **asked)
    if isinstance(found, WorkloadDiff):
        stated = [",".join(label(p) for p in passes if p) for passes in steps]
        found = replace(found, pipelines=(stated[0], stated[1]))
    return found


def _pipelines(given: dict[str, Any], models: tuple[str, str]) -> Iterable[Sequence[Step]]:
    """The passes of either side."""
    from llmir.ir.tools.pipeline import around

    engines = _engine_passes(given)
    two = any(given[name] is not None for name in ("other", "hw_after", "engine_after"))
    before, after = given["before"], given["after"]
    if given["step"] is None:
        if two:
            sides = zip(models, engines, strict=True)
            both = [inputs.passes(model, "flash", None, default=each) for model, each in sides]
            return [both[0] if before is None else before], [both[1] if after is None else after]
        return [before or ""], [engines[1] if after is None else after]
    if two or before is not None or after is not None:
        raise click.UsageError(
            "--pass: already defines both sides, so it excludes --before, --after, MODEL2, "
            "--hw-after and --engine-after"
        )
    return around(given["step"], engines[0])


def _engine_passes(given: dict[str, Any]) -> list[str]:
    """The passes of the engine that estimates each side."""
    from llmir.api.deployment import passes_of
    from llmir.backends.compare.diff import side_models
    from llmir.hw.library import load

    device = load(inputs.hardware({**given, "network": None}))
    other = device if given["hw_after"] is None else load(given["hw_after"])
    how = {name: given[name] for name in (*inputs.COST_OPTIONS, "engine_after")}
    models, _ = side_models((device, other), **how)
    return [passes_of(model.runs) for model in models]
