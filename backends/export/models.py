"""The bundled models, and one with its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.backends.step.facts import weights
from llmir.ir.core.program import Program

from . import table, units
from .rows import Rows
from .weights import table as of_weights

if TYPE_CHECKING:
    from rich.console import RenderableType


def models(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """A row for each model."""
    return Rows(rows, _sizes(rows))


def model(program: Program, row: Mapping[str, Any]) -> Rows:
    """A row for each kind of weight; the JSON is the model's row with them."""
    parts = [vars(w) for w in weights(program)]
    sizes = {"weight_bytes": sum(w.bytes for w in weights(program)), "weights": parts}
    whole = {**row, **sizes, "notes": list(program.notes)}
    later = f"KV/tok once windows are full: {units.bytes(row['kv_cache_bytes_per_later_token'])}"
    grows = row["kv_cache_bytes_per_later_token"] != row["kv_cache_bytes_per_token"]
    notes = ("", *(f"note: {note}" for note in program.notes)) if program.notes else ()
    return Rows(parts, table.stack(_sizes([row]), *[later] * grows, "", of_weights(program), *notes), whole)


def _sizes(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    numeric = ("size", "active", "layers", "heads", "KV/tok", "state")
    shown = table.columns(("model", *numeric), numeric)
    for r in rows:
        active = units.count(r["active_parameters"]) if r["active_parameters"] != r["parameters"] else ""
        heads = f"{r['heads']}/{r['kv_heads']}" if r["heads"] else ""
        numbers = (str(r["layers"]), heads)
        caches = (r["kv_cache_bytes_per_token"], r["state_bytes_per_sequence"])
        kept = (units.bytes(n) if n else "" for n in caches)
        table.add(shown, (r["name"], units.count(r["parameters"]), active, *numbers, *kept))
    words = (
        "Sizes are in parameters, heads are query/key-value heads, KV/tok is the cache of the first "
        "token (less of later ones where windows are full or tokens compressed), state what a sequence has "
        "besides."
    )
    return table.stack(shown, "", words)
