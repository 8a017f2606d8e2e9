"""Plots of results, drawn by matplotlib: `plot_*`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llmir.base import arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from llmir.backends.request.workload import Workload
    from llmir.backends.search.plan import Plans
    from llmir.backends.search.sweep import Sweep
    from llmir.backends.simulate.replications import Replications
    from llmir.backends.simulate.result import Simulation
    from llmir.backends.step.report import Report


def plot_batch(data: Workload | Report | Sweep, ax: Axes | None = None) -> Axes:
    """Tokens a second and the time of a step over the batch, in `ax` or in new axes, which are returned.

    Of a workload its decode steps half way through the answers, up to the largest batch that fits; of a
    report on a grid, or of a sweep, its own points, by structure. Bands are the mean relative error of times.
    """
    from llmir.backends.export.charts import curves, frame
    from llmir.backends.request.workload import Workload
    from llmir.backends.search.sweep import Sweep
    from llmir.backends.step.report import Report

    if not isinstance(data, (Workload, Report, Sweep)):
        arguments.refuse("data", data, "a Workload, a Report on a grid or a Sweep")
    frame.ready("plot_batch", ax)
    drawn: Axes = curves.batch(data, ax)
    return drawn


def plot_context(data: Workload | Report | Sweep, ax: Axes | None = None) -> Axes:
    """The time of a step over the tokens that each sequence has in the cache, of what `plot_batch` takes.

    Of a workload that is a decode step of its batch, up to as many tokens as the model has positions.
    """
    from llmir.backends.export.charts import curves, frame
    from llmir.backends.request.workload import Workload
    from llmir.backends.search.sweep import Sweep
    from llmir.backends.step.report import Report

    if not isinstance(data, (Workload, Report, Sweep)):
        arguments.refuse("data", data, "a Workload, a Report on a grid or a Sweep")
    frame.ready("plot_context", ax)
    drawn: Axes = curves.context(data, ax)
    return drawn


def plot_roofline(data: Workload | Report, ax: Axes | None = None) -> Axes:
    """Every op of a step by FLOPs a byte and FLOP/s reached, below the roofs of the device.

    Areas are shares of the step; each mark has the letter of its bound. Prefill and decode of a workload
    stand in one picture.
    """
    from llmir.backends.export.charts import frame, roofline

    frame.ready("plot_roofline", ax)
    drawn: Axes = roofline.roofline(_workload_data(data), ax)
    return drawn


def _workload_data(data: object) -> Workload | Report:
    from llmir.backends.request.workload import Workload
    from llmir.backends.step.report import Report

    if not isinstance(data, (Workload, Report)):
        arguments.refuse("data", data, "a Workload or a Report")
    return data


def plot_distributions(data: Workload | Report, ax: Axes | None = None, *, by: str = "block") -> Axes:
    """Shares of parameters, FLOPs, bytes and time, by `block` of the model or by `kind` of op.

    Each phase of a workload has a bar in each row, prefill above decode, and each column adds up to 1.
    """
    from llmir.backends.export.charts import frame, shares

    frame.ready("plot_distributions", ax)
    drawn: Axes = shares.distributions(_workload_data(data), ax, by)
    return drawn


def plot_memory(data: Workload | Report, ax: Axes | None = None) -> Axes:
    """What a rank holds: of a workload over its time, of a report over the ops of the step; the peak marked.

    A workload has weights, caches and activations, and the memory that may be used; a report its activations.
    """
    from llmir.backends.export.charts import frame, memory

    frame.ready("plot_memory", ax)
    drawn: Axes = memory.memory(_workload_data(data), ax)
    return drawn


def plot_front(data: Plans | Sweep, ax: Axes | None = None) -> Axes:
    """Tokens a second of a GPU against those of a user: the front of each device, and what it beats.

    Of plans with the first one marked, the others by their numbers, and the limit of TPOT; of a sweep its
    decode steps.
    """
    from llmir.backends.export.charts import frame, front
    from llmir.backends.search.plan import Plans
    from llmir.backends.search.sweep import Sweep

    if not isinstance(data, (Plans, Sweep)):
        arguments.refuse("data", data, "Plans or a Sweep")
    frame.ready("plot_front", ax)
    drawn: Axes = front.front(data, ax)
    return drawn


def plot_latencies(
    data: Iterable[Simulation | Replications],
    ax: Axes | None = None,
    *,
    of: str = "ttft",
    rate: float | None = None,
) -> Axes:
    """Percentiles of a latency over the rates of some simulations, or of replications, with intervals.

    `of` is `ttft`, `tpot` or another that a simulation has. The limits of the runs and the largest stable
    rate stand there, and `rate`, one that is asked for.
    """
    from llmir.backends.export.charts import frame, serving
    from llmir.backends.simulate.replications import Replications
    from llmir.backends.simulate.result import Simulation

    one = isinstance(data, (Simulation, Replications))
    runs: Any = [data] if one else arguments.items("data", data, "simulations or replications")
    for run in runs:
        if not isinstance(run, (Simulation, Replications)):
            arguments.refuse("data", run, "simulations or replications")
    marked = None if rate is None else arguments.number("rate", rate, above=True)
    frame.ready("plot_latencies", ax)
    drawn: Axes = serving.latencies(runs, ax, of, serving.ChartTarget(marked))
    return drawn


def plot_serving(data: Simulation, ax: Axes | None = None) -> Axes:
    """A simulated server over time: requests that run, requests that wait, and the share of blocks in use."""
    from llmir.backends.export.charts import frame, serving
    from llmir.backends.simulate.result import Simulation

    if not isinstance(data, Simulation):
        arguments.refuse("data", data, "a Simulation")
    frame.ready("plot_serving", ax)
    drawn: Axes = serving.serving(data, ax)
    return drawn
