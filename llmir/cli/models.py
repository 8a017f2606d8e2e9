"""`llmir models`: what is bundled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .command import command

if TYPE_CHECKING:
    from llmir import Program
    from llmir.frontends.presets import Preset


@command("models", "The bundled models.")
@click.argument("filter_", metavar="[NAME]", required=False, default="")
@options.form("table", "json", "csv", "md")
@options.output("Write a file; .txt, .json, .csv or .md decides the format.")
def models(filter_: str, form: str | None, output_file: str | None) -> None:
    """List the bundled models: size, active size, heads, and KV-cache bytes for each token.

    NAME is a model's, for its weights by block and kind, of a layer and in all; or a part of names, Hugging
    Face ids or architectures, for the models that have it.

    \b
    llmir models
    llmir models qwen3
    llmir models llama -o llama.csv
    llmir models llama3.1-8b
    """
    form = output.choose(output_file, form)
    from llmir.frontends.presets import PRESETS, find
    from llmir.names import suggest

    if one := find(filter_):
        _one(one, form, output_file)
        return
    rows = [_row(preset) for preset in PRESETS.values() if _matches(preset, filter_)]
    if not rows:
        raise click.UsageError(f"no bundled model matches {filter_!r}{suggest(filter_, PRESETS)}")
    output.emit_rows(rows, form, output_file, _shown(rows))


def _one(preset: Preset, form: str, output_file: str | None) -> None:
    """One model, with its weights: a row with them in JSON, a row each in CSV."""
    from rich.console import Group

    from llmir import api
    from llmir.backends.analysis.weights import weights
    from llmir.backends.export.weights import table

    program, row = api.load(preset.config), _row(preset)
    parts = [vars(w) for w in weights(program)]
    whole = row | {"weight_bytes": sum(w.bytes for w in weights(program)), "weights": parts}
    shown = Group(_shown([row]), "", table(program))
    output.emit_rows([whole] if form == "json" else parts, form, output_file, shown)


def _matches(preset: Preset, wanted: str) -> bool:
    from llmir.names import normalize

    architectures = preset.config["architectures"]
    fields = (preset.name, preset.hf_id, *(architectures if isinstance(architectures, list) else ()))
    # Normalized, an alias such as Distill-Qwen-32B would pass for a qwen3.
    loose = any(normalize(wanted) in normalize(f) for f in fields)
    return loose or any(wanted.lower() in f.lower() for f in (*fields, *preset.aliases))


def _row(preset: Preset) -> dict[str, Any]:
    from llmir import api

    program = api.load(preset.config)
    sizes = _sizes(program)
    return {
        "name": preset.name,
        "hf_id": preset.hf_id,
        "architecture": program.facts["architecture"],
        "parameters": program.parameters,
        "active_parameters": program.active_parameters,
        "layers": program.facts["layers"],
        "hidden": sizes["embed"],
        "heads": sizes["kv_heads"] * sizes["heads"],
        "kv_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "experts": sizes.get("expert", 0),
        "vocab": sizes["vocab"],
        "positions": program.facts["positions"],
        "kv_cache_bytes_per_token": program.kv_cache_bytes_per_token,
    }


def _sizes(program: Program) -> dict[str, int]:
    """The size of each logical axis of the weights."""
    found: dict[str, int] = {}
    for at in program.instances():
        if at.node.op.role == "weight":
            pairs = zip(at.node.op.axes, at.node.results[0].shape, strict=True)
            found |= {axis: n for axis, n in pairs if isinstance(n, int)}
    return found


def _shown(rows: list[dict[str, Any]]) -> Any:
    from rich.console import Group

    from llmir.backends.export import table, units

    numeric = ("params", "active", "layers", "hidden", "heads", "KV/token")
    shown = table.columns(("model", *numeric), numeric)
    for r in rows:
        active = units.count(r["active_parameters"]) if r["active_parameters"] != r["parameters"] else ""
        heads = f"{r['heads']}/{r['kv_heads']}"
        numbers = (str(r["layers"]), str(r["hidden"]), heads)
        kv = units.bytes(r["kv_cache_bytes_per_token"])
        table.add(shown, (r["name"], units.count(r["parameters"]), active, *numbers, kv))
    return Group(shown, "", "Heads are query/key-value heads, KV/token the cache of one token.")
