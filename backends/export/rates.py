"""A server at several rates: a line for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmir.backends.simulate.replications import RATES, Rates, Replications
from llmir.backends.simulate.result import Simulation, Spread

from . import simulation as words
from . import table, units, wording

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = ("ttft", "tpot")
_PAIRS = ("model", "precision", "device", "links", "cost model", "policy", "cache")


def first(run: Simulation | Replications) -> Simulation:
    """The run, or the first of several."""
    return run.runs[0] if isinstance(run, Replications) else run


def asked(found: Rates) -> list[tuple[str, str]]:
    """What served which requests, whatever their rate."""
    one = first(found.runs[0])
    of = (("prompt", one.load.prompt), ("generate", one.load.generate))
    lengths = ", ".join(f"{name} {units.digits(float(n.mean()))}" for name, n in of)
    pairs = [pair for pair in words.asked(one) if pair[0] in _PAIRS]
    return [*pairs, ("requests", f"{len(one.load):,} a run, {lengths} tokens on average")]


def rows(found: Rates) -> Iterator[dict[str, Any]]:
    """Of each rate what latencies and figures are, on average over replications; `overloaded` as a share."""
    for run in found.runs:
        one = isinstance(run, Replications)
        each = run.runs if isinstance(run, Replications) else (run,)
        row: dict[str, Any] = {"rate": sum(float(r.rate or 0) for r in each) / len(each)}
        for name in each[0].latencies:
            of: Any = run.latencies.get(name)
            for stat in Spread._fields:
                known = None if of is None else of[stat].mean if one else getattr(of, stat)
                row[f"{name}_{stat}_s"] = known
        figures: Any = run.figures if isinstance(run, Replications) else None
        for name in RATES:
            own = figures.get(name) if one else getattr(run, name)
            row[name] = own.mean if one and own is not None else own
        over = [r.overloaded for r in each if r.overloaded is not None]
        yield {**row, "overloaded": sum(over) / len(over) if over else None}


@table.printed(of=Rates)
def rates(found: Rates) -> Group:
    """What was asked, and a line for each rate."""
    stats = (f"{of.upper()} {stat}" for of in _SHOWN for stat in ("p50", "p99"))
    heads = ("requests/s", *stats, "tokens/s", "")
    shown = table.columns(heads, heads[:-1], gap=1)
    for row in rows(found):
        times = [row[f"{of}_{stat}_s"] for of in _SHOWN for stat in ("p50", "p99")]
        said = ["–" if t is None else units.time(t) for t in times]
        over = row["overloaded"]
        state = "" if over is None else "overloaded" if over >= 0.5 else "stable"
        table.add(shown, (units.digits(row["rate"]), *said, units.digits(row["output_tokens_per_s"]), state))
    stable = sum(row["largest_rate"] for row in rows(found)) / len(found.runs)
    head = [*asked(found), ("load", f"{units.digits(stable)} requests/s can be served at most")]
    return table.stack(table.pairs([(name, wording.plain(text)) for name, text in head]), "", shown)
