"""Charts as files: PNG, SVG and PDF of plans, sweeps and simulations."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from llmir.backends.search.plan import Candidate, Plans, PoolCandidate
from llmir.backends.search.sweep import Sweep
from llmir.backends.simulate.engine import Profile
from llmir.backends.simulate.replications import RateSeries
from llmir.backends.simulate.result import Simulation
from llmir.base.errors import InputError
from llmir.base.formats import exporter

from . import curves, front, serving
from .frame import FORMATS, HEIGHT, WIDTH, check, head, notes, pad
from .serving import ChartTarget

DPI = 200  # pixels per inch of a PNG, so that it has two pixels for each of the 860 pixels of a page
# shares of the stable rate at which a plan is simulated for the chart
RATES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 0.97)
NEAR = 0.06  # if a rate is this near to the requested rate, the requested rate replaces it
SHOWN = ("ttft", "tpot")


@contextmanager
def page(height: float = HEIGHT) -> Iterator[Any]:
    """A figure of page width, independent of the user's matplotlib settings."""
    check("a picture of results")
    from matplotlib import rc_context, style
    from matplotlib.figure import Figure

    with style.context("default"), rc_context({"svg.hashsalt": "llmir", "hatch.linewidth": 0.7}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained", dpi=100)
        pad(figure)
        yield figure


def render_figure(figure: Any, form: str) -> bytes:
    """The figure as a file; it contains no date, so that equal figures give equal PNG and SVG files."""
    picture = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(picture, format=form, dpi=DPI, metadata=undated.get(form))
    return picture.getvalue()


def render_plot(plot: Callable[[Any], Any], form: str, height: float = HEIGHT) -> bytes:
    """The file of one plot, drawn into given axes."""
    with page(height) as figure:
        plot(figure.subplots())
        return render_figure(figure, form)


def plans(found: Plans, form: str) -> bytes:
    """The Pareto front; below it, the latencies of the first plan over the rate, unless the plan has
    pools.
    """
    if found.best is None or isinstance(found.best, PoolCandidate):
        return render_plot(lambda ax: front.front(found, ax), form, 5.6)
    runs = tuple(plan_rates(found.best, found.largest_rate or 0.0))
    limits = {"ttft": found.traffic.ttft, "tpot": found.traffic.tpot}
    with page(9.6) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(5.4, 4.2))
        front.front(found, above.subplots())
        said = ""
        for ax, of in zip(below.subplots(1, 2), SHOWN, strict=True):
            limit = limits[of]
            asked = ChartTarget(found.traffic.rate, limit and limit.seconds, found.best.replicas)
            said = serving.draw(ax, of, runs, asked)
            head(ax, f"{of.upper()} of the chosen plan", "" if not limit else f"the limit is of {limit.of}")
            if of == SHOWN[0]:
                notes(ax, serving.handles())
            else:
                notes(ax, (), said)
        return render_figure(figure, form)


def plan_rates(best: Candidate, largest: float) -> Iterator[Simulation]:
    """Simulations of one replica of a plan at several rates, up to the largest stable one; one of them is its
    share of the requested rate.
    """
    traffic = best.traffic
    s = best.structure
    profile = Profile(s.job(1, 1, None, best.chunk, best.batch), s.chunked, s.drafts)
    others = (part * largest for part in RATES)
    apart = [rate for rate in others if abs(rate - traffic.rate) > NEAR * largest]
    for rate in sorted([*apart, traffic.rate]):
        load = replace(traffic, rate=rate, margin=0.0).alone(best.replicas, 0)
        yield profile.run(load, warm_up=traffic.requests // 10)


def sweep(found: Sweep, form: str) -> bytes:
    """If there is one structure, curves over batch or context; if there are several, the Pareto front."""
    points = ("batch", "new", "context")
    several = any(len(values) > 1 for name, values in found.axes.items() if name not in points)
    many = {name: len(found.axes[name]) > 1 for name in points}
    if several and many["batch"] and found.axes["new"] == (1,):
        return render_plot(lambda ax: front.front(found, ax), form, 5.6)
    if many["batch"] or many["context"]:
        plot = curves.batch if many["batch"] else curves.context
        return render_plot(lambda ax: plot(found, ax), form)
    raise InputError("a picture of a sweep needs several batches or contexts; this sweep has one of each")


def rates(found: RateSeries, form: str) -> bytes:
    """TTFT over the rate of some runs, and TPOT below it."""
    with page(9.2) as figure:
        for part, of in zip(figure.subfigures(2, 1), SHOWN, strict=True):
            serving.latencies(found.runs, part.subplots(), of, ChartTarget())
        return render_figure(figure, form)


def _exporters(of: type, make: Callable[[Any, str], bytes]) -> None:
    for suffix, form in FORMATS.items():

        def picture(thing: Any, form: str = form) -> bytes:
            return make(thing, form)

        exporter(form, suffix, of=of)(picture)


_exporters(RateSeries, rates)
_exporters(Plans, plans)
_exporters(Sweep, sweep)
_exporters(Simulation, lambda run, form: render_plot(lambda ax: serving.serving(run, ax), form, 4.8))
