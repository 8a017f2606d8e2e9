"""What more of each resource buys, as a terminal shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmir.backends.compare.sensitivity import Gain, Sensitivity

from . import table, units, wording

if TYPE_CHECKING:
    from rich.console import RenderableType

OPS = 3  # of those that save most


@table.printed(of=Sensitivity)
def shown(of: Sensitivity) -> RenderableType:
    """A line a resource: what there is, what more of it saves of each phase's step, and in which ops."""
    from rich.padding import Padding
    from rich.text import Text

    what = f"what {100 * of.more:g}% more of each resource saves"
    time = ", ".join(f"{name} {units.time(seconds)}" for name, seconds in of.time_s.items())
    title = Text(wording.plain(f"{of.model} on {of.device}, {of.cost_model}: {what}"), style="bold")
    numeric, where = ["now", *of.time_s], "most of it in"
    rows = table.columns(["resource", *numeric, where], numeric, [where])
    for gain in of.gains:
        shares = [f"{100 * gain.saved_s[name] / seconds:.2f}%" for name, seconds in of.time_s.items()]
        now = "" if gain.value is None else f"{gain.value:,.4g}"
        table.add(rows, (gain.resource, now, *shares, _where(gain)), styles=["bold"])
    return table.stack(title, f"a step takes: {time}", "", Padding(rows, (0, 0, 0, 2), expand=False))


def _where(gain: Gain) -> str:
    """The ops that save most."""
    found = dict.fromkeys(op.op.rpartition(".")[2] for op in gain.ops if op.saved_s > 0)
    return ", ".join(list(found)[:OPS])
