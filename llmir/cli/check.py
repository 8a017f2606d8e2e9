"""`llmir check`: our weights against those of a checkpoint, or all ranks against one device."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from llmir.errors import InputError, UnsupportedError

from . import inputs, options, output
from .command import command
from .kinds import Count

if TYPE_CHECKING:
    from llmir.frontends.weights import Comparison, Difference

_OF_INDEX = ("model", "index", "lenient", "form", "output_file")


@command("check", "Hold the weights against a checkpoint, or all ranks against one device.")
@options.model
@click.option(
    "--index",
    metavar="FILE",
    help="model.safetensors.index.json, a .safetensors file, its header as JSON, or a folder of these.",
)
@options.parallel
@options.lowering
@click.option("--batch", type=Count(), help="Sequences at once, with --tp and its like.  [default: dp]")
@click.option("--prompt", type=Count(), help="Tokens of each, with --tp and its like.  [default: tp]")
@options.form("table", "json")
@options.output("Write a file; .txt or .json decides the format.")
def check(**given: Any) -> int:
    """Compare the model's weights with a checkpoint's: names, shapes, element types, bytes.

    Only headers are read. An index knows names and totals; a .safetensors header knows shapes too. Exit 0
    if all agree, 1 if not. A tied lm_head may be stored or not; rotary tables are ignored.

    With --tp and its like instead: whether all ranks together hold and compute what one device does. Each
    weight, cache and product that is replicated is named with how often; pieces that are uneven (sizes do
    not divide, or each piece has scales of its own) are summed. Exit 0 if nothing is left over, 1 if not.

    \b
    llmir check llama3.1-8b --index Llama-3.1-8B/model.safetensors.index.json
    llmir check ./my-model --index ./my-model --format json
    llmir check qwen3-235b-a22b --tp 8 --dp 2 --ep 16
    """
    form = output.choose(given["output_file"], given["form"], {".txt": "table", ".json": "json"})
    if given["index"] is None:
        return _conserved(given, form)
    source = click.get_current_context().get_parameter_source
    for name in given:
        if name not in _OF_INDEX and source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option}: with --index, the model is held against a file as it is")
    return _compared(given["model"], given["index"], form, given["output_file"], lenient=given["lenient"])


def _compared(model: str, index: str, form: str, output_file: str | None, *, lenient: bool) -> int:
    """The verdict on weights, as an exit code."""
    from llmir.frontends import checkpoint, weights

    program = inputs.read(model, lenient=lenient)
    if stored := program.facts.get("quantization"):
        raise UnsupportedError(f"check: a checkpoint that is quantized ({stored}) cannot be compared yet")
    found = checkpoint.read(index)
    compared = weights.compare(program, found)
    if form == "json":
        from llmir.backends.export.jsonio import to_json

        where = {"model": program.name, "checkpoint": found.path}
        output.emit(to_json(where | compared.to_dict()), output_file)
    else:
        output.emit_table(_shown(program.name, found.path, compared), output_file)
    output.note(*program.notes)
    return 0 if compared.agrees else 1


def _conserved(given: dict[str, Any], form: str) -> int:
    """The verdict on ranks, as an exit code."""
    from llmir.backends.analysis.conserve import conservation
    from llmir.backends.analysis.workload import parallel
    from llmir.backends.export.jsonio import to_json

    before, after = inputs.halves(given)
    if before.devices > 1:
        raise InputError(f"check: {before.name} lies over {before.devices} ranks before --tp and its like")
    if after.devices == 1:
        raise click.UsageError("say --index FILE, or more than one rank: --tp, --pp, --dp")
    degrees = parallel(after)
    batch, prompt = (
        given["batch"] or int(degrees["dp"]) * after.micro_batches,
        given["prompt"] or int(degrees["tp"]),
    )
    held = conservation(before, after, batch=batch, new=prompt)
    if form == "json":
        step = {"batch": batch, "new": prompt, "context": 0}
        data = {"model": after.name, "devices": after.devices, "parallel": degrees, "step": step}
        output.emit(to_json(data | held.to_dict()), given["output_file"])
    else:
        from .conserved import shown

        named = ", ".join(k if v is True else f"{k} {v}" for k, v in degrees.items() if v > 1 or v is True)
        sentences = f"batch {batch:,}, {prompt:,} new tokens each, none cached"
        ranks = f"{after.devices} ({named})"
        output.emit_table(shown(held, after.name, ranks, sentences), given["output_file"])
    output.note(*after.notes)
    return 1 if held.problems else 0


def _shown(model: str, path: str, c: Comparison) -> Any:
    from llmir.backends.export import table, units

    size = f"{units.bytes(c.bytes)} ({c.bytes:,})"
    known = "names, shapes, element types" if c.shapes_known else "names (an index does not know shapes)"
    rows = [
        ("model", model),
        ("checkpoint", path),
        ("expected", f"{c.tensors:,} tensors, {c.parameters:,} parameters, {size}"),
        ("found", f"{c.found_tensors:,} tensors"),
        ("compared", known),
        ("verdict", "all agree" if c.agrees else "DIFFERENT"),
    ]
    problems: list[tuple[str, Iterable[tuple[str, str]]]] = [
        ("missing", ((name, "") for name in c.missing)),
        ("unexpected", ((name, "") for name in c.unexpected)),
        ("wrong shape", map(_difference, c.wrong_shape)),
        ("wrong type", map(_difference, c.wrong_dtype)),
        ("wrong total", map(_difference, c.wrong_total)),
    ]
    for label, found in problems:
        rows += [(label if i == 0 else "", text) for i, text in enumerate(_folded(found))]
    return table.pairs(rows)


def _difference(d: Difference) -> tuple[str, str]:
    return d.name, f"expected {d.expected}, found {d.found}"


def _folded(found: Iterable[tuple[str, str]]) -> list[str]:
    """One line for all names that differ only in their numbers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, text in found:
        groups.setdefault((re.sub(r"\d+", "*", name), text), []).append(name)
    lines = []
    for (pattern, text), names in groups.items():
        shown = names[0] if len(names) == 1 else f"{pattern} ({len(names):,} tensors)"
        lines.append(f"{shown}: {text}" if text else shown)
    return lines
