"""The weights of a model by block and kind, as a terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmir.backends.step.facts import weights
from llmir.ir.core.program import Program

from . import units
from .table import add, columns

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("block", "weight", "dtype", "layers", "× params", "× bytes", "params", "bytes", "share")


def table(program: Program) -> Table:
    """A row a kind, of a layer and in all; they add up to the last."""
    rows = weights(program)
    whole = sum(w.bytes for w in rows)
    shown = columns(HEADINGS, HEADINGS[3:], gap=1)
    for i, w in enumerate(rows):
        inside = w.layers is not None and w.layer_parameters is not None and w.layer_bytes is not None
        each = ("", "", "")
        if inside:
            each = (str(w.layers), units.count(w.layer_parameters or 0), units.bytes(w.layer_bytes or 0))
        block = w.block if not i or rows[i - 1].block != w.block else ""
        total = (units.count(w.parameters), units.bytes(w.bytes), units.percent(w.bytes / whole))
        add(shown, (block, w.name, w.dtype, *each, *total))
    shown.add_section()
    sums = (units.count(program.parameters), units.bytes(whole), "100%")
    add(shown, ("total", *[""] * 5, *sums), "bold")
    return shown
