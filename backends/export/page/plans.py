"""The page of plans: the front, the table, reasons of rejection, and latencies of the first plan.

`by_rate` draws latency percentiles over the request rate; `plans` builds the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from llmir.backends.export import plan as plan_text
from llmir.backends.export import units
from llmir.backends.export.charts.front import BEATEN, FrontPoints, of_plans
from llmir.backends.export.charts.serving import Runs, curves, furthest, height, largest, title
from llmir.backends.export.plan import hourly_misses, hourly_sections
from llmir.backends.search.plan import Candidate, Plans, PoolCandidate

from .document import Document, axis, column, document, figure, marks, point, sheet

# Latencies against the rate


def by_rate(
    called: str,
    of: str,
    runs: Runs,
    *,
    limit: float | None = None,
    asked: float | None = None,
    servers: int = 1,
    said: str = "",
    choosable: bool = False,
) -> Document:
    """Percentiles of a latency over the rates of some runs, with the limit; rates are multiplied by the
    number of `servers`.

    `asked` is a rate that is marked, and `said` is a text below the chart that explains overload.
    """
    found, stable = curves(of, runs, servers), servers * largest(runs)
    series: list[Document] = []
    for shape, (stat, curve) in zip((0, 2, 1), found.items(), strict=True):
        half = curve.half.any()
        points = []
        for n, (rate, seconds, off) in enumerate(zip(*(a.tolist() for a in curve), strict=True)):
            within = f" ± {units.time(off)}" if half else ""
            words = f"{units.digits(rate)} requests/s: {units.time(seconds)}{within}"
            points.append(point(rate, seconds, n if choosable else None, words))
        series.append({"name": f"{stat} of requests", "shape": shape, "line": True, "points": points})
    right = furthest(found, stable, asked)
    limits: list[dict[str, Any]] = []
    if stable < right:
        limits.append({"axis": "x", "at": stable, "words": "overloaded", "side": "high"})
        said = "; ".join(
            filter(None, (said, f"hatched: above {units.digits(stable)} requests/s the queue grows"))
        )
    if limit:
        limits.append({"axis": "y", "at": limit, "words": f"limit {units.time(limit)}"})
    if asked:
        limits.append({"axis": "x", "at": asked, "words": f"asked: {units.digits(asked)}", "asked": True})
    x = axis("requests/s", "digits", "rate", log=False, least=right / 1.08)
    y = axis(f"{title(of)}", "time", f"{of}_s", log=False, most=height(found, stable, limit))
    return marks(called, x, y, series, file=of, limits=limits, note=said, high=240)


# The page of plans

SHOWN = ("ttft", "tpot")
_STATS = ("mean", "p50", "p90", "p99")


def plans(found: Plans) -> Mapping[str, Any]:
    """The data of the page."""
    whys = [plan_text.reason(found, found.why(each), each) for each in found.shown]
    about = [
        f"{plan_text.name(found, each)}: {'chosen; ' if each is found.best else ''}{why}"
        for each, why in zip(found.shown, whys, strict=True)
    ]
    model = found.structures[0].program.name if found.structures else "plans"
    curves, missed = _latencies(found), [] if found.best else plan_text.misses(found)
    absent = [f"{device}: {why}" for device, why in plan_text.devices_without_plan(found).items()]
    tables = [_table(found, whys)] if found.shown else []
    views = [_front(found, about, "tall" if curves else "wide"), *curves, *tables, *_refused(found)]
    changed = plan_text.settings(found.best) if found.best else []
    lines = [*changed, *plan_text.traffic_lines(found)]
    first = [plan_text.basis(found), *lines, *plan_text.doubts(found)]
    more = [
        *plan_text.sizes(found),
        *absent,
        *plan_text.goals(found),
        *plan_text.energy(found),
        *hourly_sections(found),
    ]
    return document(
        model,
        _objective(found),
        _figures(found),
        views,
        answer=plan_text.answer(found),
        lines=[*first, *missed, *hourly_misses(found)],
        basis=plan_text.counts(found),
        notes=[*more, *plan_text.assumptions(found), *found.notes],
        about=about,
    )


def _objective(found: Plans) -> Iterator[tuple[str, str]]:
    of = found.traffic
    yield "requests/s", units.digits(of.rate)
    yield "prompt", str(of.prompt)
    yield "generate", str(of.generate)
    for name, limit in (("TTFT", of.ttft), ("TPOT", of.tpot)):
        if limit:
            yield f"{name} of {limit.of}", f"≤ {units.time(limit.seconds)}"
    if found.most_devices is not None:
        yield "at most", f"{found.most_devices:,} GPU{'s' if found.most_devices > 1 else ''}"
    yield "decides", "cost" if found.priced else "GPUs"


def _figures(found: Plans) -> list[Document]:
    best = found.best
    if best is None:
        return []
    limits = found.traffic.ttft, found.traffic.tpot
    said = [f"limit {units.time(limit.seconds)} of {limit.of}" if limit else "no limit" for limit in limits]
    return [
        figure("GPUs", "whole", best.devices, best.structure.device.name),
        *([figure("cost an hour", "usd", best.cost_per_hour_usd)] if best.cost_per_hour_usd else []),
        figure("TTFT, p99", "time", best.trial.ttft_s.p99, said[0]),
        figure("TPOT, p99", "time", best.trial.tpot_s.p99, said[1]),
        figure("within all limits", "met", best.trial.within),
        figure("tokens/s a GPU", "digits", best.tokens_per_s_device),
        figure("stable to", "digits", found.largest_rate, "requests/s"),
    ]


def _front(found: Plans, about: list[str], look: str) -> Document:
    """The points that were estimated by closed form, by device, and the plans of the table with their
    numbers.
    """
    series: list[Document] = []
    devices = [(shape, each, _ClosedFormNames(found, each)) for shape, each in enumerate(of_plans(found))]
    for shape, each, named in devices:
        off = np.flatnonzero(~each.front)
        some = off[:: -(-off.size // BEATEN) or 1]
        beaten = [point(each.users[i], each.gpus[i], None, named.lost(i)) for i in some.tolist()]
        if beaten:
            series.append({"name": f"{each.device}, beaten", "shape": shape, "faint": True, "points": beaten})
    for shape, each, named in devices:
        on = np.flatnonzero(each.front)
        order = on[np.lexsort((-each.gpus[on], each.users[on]))]
        best = [point(each.users[i], each.gpus[i], None, named.ahead(i)) for i in order.tolist()]
        series.append({"name": f"front of {each.device}", "shape": shape, "line": True, "points": best})
    for name, chosen in (("other plans of the table", False), ("chosen", True)):
        own = [
            point(
                each.tokens_per_s_user, each.tokens_per_s_device, n, about[n], "✓" if chosen else f"{n + 1}"
            )
            for n, each in enumerate(found.shown)
            if (each is found.best) == chosen
        ]
        if own:
            said = [[own[0], f"chosen: {plan_text.name(found, found.best)}"]] if chosen and found.best else []
            more = {"numbered": True, "best": chosen, "points": own, "labels": said}
            series.append({"name": name, "shape": 0, **more})
    limits = []
    if slow := found.traffic.tpot:
        words_ = f"TPOT above {units.time(slow.seconds)}"
        limits.append({"axis": "x", "at": 1 / slow.seconds, "words": words_, "side": "low"})
    return marks(
        "Front: throughput against speed",
        axis("tokens/s of a user, 1 / TPOT", "digits", "tokens_per_s_user", log=True),
        axis("output tokens/s of a GPU", "digits", "tokens_per_s_device", log=False),
        series,
        file="front",
        limits=limits,
        high=560,
        look=look,
        none="No plan fits, so that there is no front.",
        note="Marks: closed forms of a replica that is always full; numbers: plans of the table, simulated.",
    )


def _rates(each: Candidate) -> tuple[float, float]:
    return each.tokens_per_s_user, each.tokens_per_s_device


class _ClosedFormNames:
    """The closed forms of one device, in words."""

    def __init__(self, found: Plans, of: FrontPoints) -> None:
        devices = np.array([s.device.name for s in found.structures], dtype=object)[found.points.structure]
        self.found, self.of, self.numbers = found, of, np.flatnonzero(devices == of.device)
        self.fronts = np.flatnonzero(of.front)

    def name(self, i: int) -> str:
        """The plan at a point of the front."""
        points, at = self.found.points, self.numbers[i]
        split = self.found.structures[int(points.structure[at])].split
        return f"{split}, {int(points.batch[at]):,} at once, steps of {int(points.chunk[at]):,} tokens"

    def ahead(self, i: int) -> str:
        """The text for a point on the front."""
        return f"{self.name(i)}\n{self._figures(i)}\nno other of its device is better in both"

    def lost(self, i: int) -> str:
        """The text for a point that another one dominates: the dominating point, and the difference."""
        users, gpus = self.of.users, self.of.gpus
        users_more, gpus_more = users[self.fronts] / users[i] - 1, gpus[self.fronts] / gpus[i] - 1
        by = int(np.argmax(np.minimum(users_more, gpus_more)))
        gpu, user = (units.percent(float(more[by])) for more in (gpus_more, users_more))
        gained = f"{gpu} more tokens/s a GPU and {user} more a user"
        return f"{self.name(i)}\n{self._figures(i)}\nbeaten by {self.name(int(self.fronts[by]))}: {gained}"

    def _figures(self, i: int) -> str:
        users, gpus = (units.digits(float(of[i])) for of in (self.of.users, self.of.gpus))
        return f"{users} tokens/s a user, {gpus} a GPU"


def _latencies(found: Plans) -> list[Document]:
    """TTFT and TPOT of the first plan over the rate; not available for pools."""
    from llmir.backends.export.charts.files import plan_rates

    best = found.best
    if best is None or isinstance(best, PoolCandidate):
        return []
    runs = tuple(plan_rates(best, found.largest_rate or 0.0))
    limits = {"ttft": found.traffic.ttft, "tpot": found.traffic.tpot}
    return [
        by_rate(
            f"{of.upper()} of the chosen plan",
            of,
            runs,
            limit=(limit := limits[of]) and limit.seconds,
            asked=found.traffic.rate,
            servers=best.replicas,
            said=f"the limit is of {limit.of}" if limit else "",
        )
        for of in SHOWN
    ]


def _table(found: Plans, whys: list[str]) -> Document:
    """The plans that were simulated, with percentiles."""
    columns = [
        column("plan", "plan"),
        column("devices", "GPUs", "whole"),
        column("cost_per_hour_usd", "$/h", "usd"),
        column("why", "what decides", prose=True),
        *(
            column(f"{of}_{stat}_s", f"{of.upper()} {stat}", "time", "simulated, on average over seeds")
            for of in SHOWN
            for stat in _STATS
        ),
        column("within", "within", "met", "requests within all limits"),
        column("tokens_per_s_device", "tokens/s a GPU", "digits"),
        column("tokens_per_s_user", "tokens/s a user", "digits"),
    ]
    rows, wrong = [], {}
    for n, (each, why) in enumerate(zip(found.shown, whys, strict=True)):
        sign = "✓" if each is found.best else f"{n + 1}"
        spreads = [*each.trial.ttft_s, *each.trial.tpot_s]
        costs = each.devices, each.cost_per_hour_usd
        rates = each.trial.within, each.tokens_per_s_device, each.tokens_per_s_user
        rows.append((f"{sign} {plan_text.name(found, each)}", *costs, why, *spreads, *rates))
        wrong[n] = list(_missed(found, each))
    return sheet("Plans", columns, rows, file="plans", choosable=True, wrong=wrong)


def _missed(found: Plans, each: Candidate) -> Iterator[int]:
    """The columns of statistics that exceed their limit."""
    for i, limit in enumerate((found.traffic.ttft, found.traffic.tpot)):
        if limit and limit.of in _STATS and each.trial.upper(i) > limit.seconds:
            yield 4 + len(_STATS) * i + _STATS.index(limit.of)


def _refused(found: Plans) -> list[Document]:
    if not found.refused:
        return []
    columns = [column("split", "split"), column("why", "why it cannot be", prose=True)]
    rows = [(name, refusal.why) for name, refusal in found.refused.items()]
    return [sheet("What cannot be", columns, rows, file="refused")]
