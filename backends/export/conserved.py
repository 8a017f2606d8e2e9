"""What is conserved when a program is laid over ranks, as a terminal shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmir.backends.compare.conservation import Conservation, Total

from . import table, units, wording

if TYPE_CHECKING:
    from rich.console import RenderableType

LABELS = {"weights": "weights", "kv_cache": "KV cache", "matmul_flops": "matmul FLOPs"}


@table.printed(of=Conservation)
def shown(held: Conservation) -> RenderableType:
    """The sums, what is replicated by name, and the verdict."""
    named, at = str(held.after.parallelism), held.at.symbols
    step = f"batch {at['B']:,}, {at['T']:,} new tokens each, {at['C'] or 'none'} cached"
    step = wording.images(at["B"], held.after.patches) if held.after.patches else step
    sums = ("unsharded", "+ replicated", "+ uneven", "= all ranks", "a rank")
    totals = table.columns(("", *sums), sums)
    for what, total in held.totals.items():
        table.add(totals, (LABELS[what], *_amounts(what, total)), styles=["bold"])
    numeric = ("layers", "ranks each", "adds")
    copies = table.columns(("replicated", "what", "block", *numeric), numeric)
    for share in held.replicated:
        adds = _unit(share.what)(share.replicated)
        cells = (share.name, LABELS[share.what], share.block, f"{share.repeat:,}", f"{share.copies:,}", adds)
        table.add(copies, cells)
    ranks = f"{held.after.devices} ({named})" if named else f"{held.after.devices}"
    head = table.pairs([("model", held.after.name), ("ranks", ranks), ("step", step)])
    parts: list[RenderableType] = [head, "", totals, ""]
    parts += [copies, ""] if held.replicated else []
    rows = [("verdict", "NOT CONSERVED" if held.problems else "conserved")]
    return table.stack(*parts, table.pairs(rows + [("", problem) for problem in held.problems]))


def _unit(what: str) -> Any:
    return units.flops if what == "matmul_flops" else units.bytes


def _amounts(what: str, total: Total) -> list[str]:
    amounts = (total.unsharded, total.replicated, total.uneven, total.ranks, total.per_rank)
    return [_unit(what)(amount) if amount else "0" for amount in amounts]
