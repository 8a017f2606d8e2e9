"""`llmir check`: our weights against those of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from llmir.errors import UnsupportedError

from . import inputs, options, output

if TYPE_CHECKING:
    from llmir.frontends.weights import Comparison, Difference


@click.command("check", short_help="Hold the weights against a safetensors file or index.")
@options.model
@click.option(
    "--index",
    required=True,
    metavar="FILE",
    help="model.safetensors.index.json, a .safetensors file, its header as JSON, or a folder of these.",
)
@options.form("table", "json")
@options.output("Write a file; .txt or .json decides the format.")
def command(model: str, index: str, form: str | None, output_file: str | None, lenient: bool) -> int:
    """Compare the model's weights with a checkpoint's: names, shapes, element types, bytes.

    Only headers are read. An index knows names and totals; a .safetensors header knows shapes too. Exit 0
    if all agree, 1 if not. A tied lm_head may be stored or not; rotary tables are ignored.

    \b
    llmir check llama3.1-8b --index Llama-3.1-8B/model.safetensors.index.json
    llmir check ./my-model --index ./my-model --format json
    """
    form = output.choose(output_file, form, {".txt": "table", ".json": "json"})
    from llmir.frontends import checkpoint, weights

    program = inputs.read(model, lenient=lenient)
    if stored := program.facts.get("quantization"):
        raise UnsupportedError(f"check: a checkpoint that is quantized ({stored}) cannot be compared yet")
    found = checkpoint.read(index)
    compared = weights.compare(program, found)
    if form == "json":
        from llmir.backends.jsonio import to_json

        where = {"model": program.name, "checkpoint": found.path}
        output.emit(to_json(where | compared.to_dict()), output_file)
    else:
        output.emit_table(_shown(program.name, found.path, compared), output_file)
    output.note(*program.notes)
    return 0 if compared.agrees else 1


def _shown(model: str, path: str, c: Comparison) -> Any:
    from llmir.backends import table, units

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
