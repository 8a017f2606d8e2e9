"""Pages of simulated servers: latency against rate, or one run over time, with limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from llmir.backends.export import serving as serving_text
from llmir.backends.export import units, wording
from llmir.backends.export.charts.serving import load_timeline
from llmir.backends.simulate.replications import RATES, RateSeries, Replications
from llmir.backends.simulate.result import LatencySpread, Simulation

from .document import Document, axis, column, document, figure, marks, point, sheet
from .plans import by_rate

_SHOWN = ("ttft", "tpot")
_SHARES = np.linspace(0, 1, 201)  # shares of requests whose latency is drawn
_ABBREVIATED = ("ttft", "tpot", "itl", "e2e")
_KINDS = {"goodput_share": "percent"}


def _limits(run: Simulation) -> dict[str, float | None]:
    return {"ttft": run.max_ttft_s, "tpot": run.max_tpot_s}


def rates(found: RateSeries) -> Mapping[str, Any]:
    """The data of the page of several rates."""
    one, lines = serving_text.first_run(found.runs[0]), list(serving_text.rows(found))
    limits = _limits(one)
    charts = [
        by_rate(f"{of.upper()} against rate", of, found.runs, limit=limits[of], choosable=True)
        for of in _SHOWN
        if one.latencies.get(of)
    ]
    names = sorted((name for name, of in one.latencies.items() if of), key=lambda name: name not in _SHOWN)
    stats = [f"{name}_{stat}_s" for name in names for stat in LatencySpread._fields]
    columns = [
        column("rate", "requests/s", "digits"),
        column("overloaded", "overloaded", "percent" if isinstance(found.runs[0], Replications) else "yes"),
        *(column(key, _short(key), "time", _called(key)) for key in stats),
        *(column(key, serving_text.FIGURES[key], _KINDS.get(key, "digits")) for key in RATES),
    ]
    keys = [each["key"] for each in columns]
    rows, wrong = [], {}
    for n, row in enumerate(lines):
        over = row["overloaded"]
        if over is not None and not isinstance(found.runs[0], Replications):
            over = bool(over)
        rows.append([over if key == "overloaded" else row[key] for key in keys])
        wrong[n] = [
            keys.index(key)
            for of, limit in limits.items()
            if limit and (key := f"{of}_p99_s") in keys and (row[key] or 0.0) > limit
        ]
    stable = sum(row["largest_rate"] for row in lines) / len(lines)
    good = [row["rate"] for n, row in enumerate(lines) if not wrong[n] and (row["overloaded"] or 0.0) < 0.5]
    figures = [figure("stable to", "digits", stable, "requests/s")]
    if any(limits.values()):
        said = "requests/s, of those simulated"
        figures.append(figure("p99 within limits to", "digits", max(good) if good else None, said))
    about = [f"{units.digits(row['rate'])} requests/s" for row in lines]
    views = [*charts, sheet("Rates", columns, rows, file="rates", choosable=True, wrong=wrong)]
    load = f"capacity {units.digits(stable)} requests/s"
    asked = [*serving_text.rate_settings(found), ("load", load)]
    return _document(one, asked, figures, views, found.notes, about=about)


def _short(key: str) -> str:
    """`TTFT p99`, `queue mean`."""
    name, stat, _ = key.split("_")
    return f"{name.upper() if name in _ABBREVIATED else name} {stat}"


def _called(key: str) -> str:
    return serving_text.LATENCIES[key.split("_", maxsplit=1)[0]].strip()


def simulation(run: Simulation) -> Mapping[str, Any]:
    """The data of the page of one run."""
    limits = _limits(run)
    charts = [_within(run, of, limits[of]) for of in _SHOWN if run.latencies.get(of)]
    if len(run.load) and run.events["steps"].size:
        charts += _over_time(run)
    columns = [
        column("figure", "latency"),
        *(column(f"{stat}_s", stat, "time") for stat in LatencySpread._fields),
    ]
    rows = [(serving_text.LATENCIES[name].strip(), *of) for name, of in run.latencies.items() if of]
    what = [column("what", "what"), column("said", "how much", prose=True)]
    did = sheet("What the server did", what, serving_text.server_lines(run), file="did")
    spreads = {of: run.latencies.get(of) for of in _SHOWN}
    times = [
        figure(f"{of.upper()}, p99", "time", spread.p99, _limited(limits[of]))
        for of, spread in spreads.items()
        if spread
    ]
    good = run.goodput_share
    figures = [
        *times,
        *([] if good is None else [figure("within the limits", "met", good, "of requests")]),
        figure("requests/s", "digits", run.requests_per_s),
        figure("output tokens/s", "digits", run.output_tokens_per_s),
        figure("stable to", "digits", run.largest_rate, "requests/s"),
    ]
    views = [*charts, sheet("Latencies", columns, rows, file="latencies"), did]
    load = ("load", serving_text.load_text(run))
    return _document(run, [*serving_text.simulation_settings(run), load], figures, views, run.notes)


def _document(
    run: Simulation,
    asked: Sequence[tuple[str, str]],
    figures: Sequence[Document],
    views: Sequence[Document],
    notes: Sequence[str],
    basis: str = "",
    about: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The request comes first: short texts as chips, and longer texts as lines below the result."""
    pairs = dict(asked)
    chips = [("device", run.job.device.name), ("precision", pairs["precision"]), ("policy", run.policy.name)]
    said = ("load", "requests", "warm-up", "policy", "KV cache", "cost model")
    answer, *lines = (f"{name}: {pairs[name]}" for name in said if name in pairs)
    return document(
        run.job.program.name,
        chips,
        figures,
        views,
        answer=answer.removeprefix("load: "),
        lines=lines,
        basis=f"simulated, {wording.basis_text(run.job.prefill)}{basis}",
        notes=notes,
        about=about,
    )


def _limited(limit: float | None) -> str:
    return f"limit {units.time(limit)}" if limit else ""


def _within(run: Simulation, of: str, limit: float | None) -> Document:
    """The share of requests with a latency up to each value."""
    seconds, spread = getattr(run, f"{of}_s")[run.warm_up :], run.latencies[of]
    times = np.quantile(seconds[np.isfinite(seconds)], _SHARES).tolist()
    named = []
    for q in (50, 90, 99):
        at = getattr(spread, f"p{q}")
        named.append(point(at, q / 100, None, f"{q}% within {units.time(at)}"))
    limits = [{"axis": "x", "at": limit, "words": f"limit {units.time(limit)}"}] if limit else []
    least = limit if limit and limit < 3 * times[-1] else None
    points = [point(x, y) for x, y in zip(times, _SHARES.tolist(), strict=True)]
    return marks(
        f"{of.upper()} of requests",
        axis(serving_text.LATENCIES[of].strip(), "time", f"{of}_s", log=False, least=least),
        axis("share of requests within", "percent", "share", most=1.0),
        [
            {"name": "requests", "shape": 0, "line": True, "bare": True, "points": points},
            {"name": "p50, p90, p99", "shape": 1, "points": named},
        ],
        file=of,
        limits=limits,
        high=240,
    )


def _over_time(run: Simulation) -> Iterator[Document]:
    """Running and waiting requests, and used blocks."""
    found = load_timeline(run)
    middle = ((found.edges_s[1:] + found.edges_s[:-1]) / 2).tolist()
    each = units.time(float(found.edges_s[1] - found.edges_s[0]))

    def line(name: str, shape: int, values: Any) -> Document:
        points = [point(x, y) for x, y in zip(middle, values.tolist(), strict=True)]
        return {"name": name, "shape": shape, "line": True, "bare": True, "points": points}

    x = axis("time since the first request came", "time", "time_s", log=False)
    how = {"note": f"lines are means over {each}, of all replicas together", "high": 240}
    queue = [line("running", 0, found.running), line("waiting", 1, found.waiting)]
    y = axis("requests", "digits", "requests", log=False)
    yield marks("Requests over time", x, y, queue, file="queue", **how)
    y = axis("share of blocks", "percent", "blocks", most=1.0)
    yield marks("Blocks of caches in use", x, y, [line("blocks", 3, found.blocks)], file="blocks", **how)


def replications(found: Replications) -> Mapping[str, Any]:
    """The data of the page of replications."""
    columns = [column("figure", "latency")]
    for stat in LatencySpread._fields:
        columns += [column(f"{stat}_s", stat, "time"), column(f"{stat}_half_s", "±", "time")]
    rows = [
        (serving_text.LATENCIES[name].strip(), *(x for interval in of.values() for x in interval))
        for name, of in found.latencies.items()
    ]
    others = [column("figure", "figure"), column("mean", "mean", "digits"), column("half", "±", "digits")]
    means = [(serving_text.FIGURES[name], *interval) for name, interval in found.figures.items()]
    spreads = {of: found.latencies[of]["p99"] for of in _SHOWN if of in found.latencies}
    figures = [
        figure(f"{of.upper()}, p99", "time", mean, f"± {units.time(half)}")
        for of, (mean, half) in spreads.items()
    ]
    views = [
        sheet("Latencies", columns, rows, file="latencies"),
        sheet("Figures", others, means, file="figures"),
    ]
    count = len(found.runs)
    basis = (
        f"; {count} replications, ± holds the mean in 95% of cases; {found.overloaded} of {count} overloaded"
    )
    return _document(
        found.runs[0], serving_text.simulation_settings(found.runs[0]), figures, views, found.notes, basis
    )
