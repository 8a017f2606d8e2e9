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
    """Plot tokens per second and step time over the batch size.

    A workload is plotted at its decode steps halfway through the output, up to the largest batch that fits. A
    report on a grid and a sweep are plotted at their own points, one line per structure. Bands show the mean
    relative error of the estimated times.

    Args:
        data: The estimates.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_batch(llmir.workload("qwen3-0.6b", "l4"))  # doctest: +SKIP
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
    """Plot the step time over the number of cached tokens of each sequence.

    A workload is plotted at decode steps of its batch, up to the maximum positions of the model.

    Args:
        data: The estimates, as in `plot_batch`.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_context(llmir.workload("qwen3-0.6b", "l4"))  # doctest: +SKIP
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
    """Plot the FLOP/s of every op over its arithmetic intensity, below the rooflines of the device.

    The area of a mark is the op's share of the step time, and its letter is the bound. Prefill and decode of
    a workload are in one plot.

    Args:
        data: The estimates.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_roofline(llmir.analyze("qwen3-0.6b", "l4", batch=8, context=1000))  # doctest: +SKIP
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
    """Plot the shares of parameters, FLOPs, bytes and time, by block of the model or by kind of op.

    Each row has one bar for each phase of a workload, prefill above decode. Each column adds up to 1.

    Args:
        data: The estimates.
        ax: The matplotlib axes to draw in. The default is new axes.
        by: `block` or `kind`.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, `data` has another type, or `by` is unknown.

    >>> import llmir
    >>> axes = plot_distributions(llmir.workload("qwen3-0.6b", "l4"), by="kind")  # doctest: +SKIP
    """
    from llmir.backends.export.charts import frame, shares

    frame.ready("plot_distributions", ax)
    drawn: Axes = shares.distributions(_workload_data(data), ax, by)
    return drawn


def plot_memory(data: Workload | Report, ax: Axes | None = None) -> Axes:
    """Plot the memory of one rank and mark its peak.

    A workload is plotted over time, with weights, caches, activations and the usable memory. A report is
    plotted over the ops of its step, with activations only.

    Args:
        data: The estimates.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_memory(llmir.workload("qwen3-0.6b", "l4"))  # doctest: +SKIP
    """
    from llmir.backends.export.charts import frame, memory

    frame.ready("plot_memory", ax)
    drawn: Axes = memory.memory(_workload_data(data), ax)
    return drawn


def plot_front(data: Plans | Sweep, ax: Axes | None = None) -> Axes:
    """Plot tokens per second per GPU over tokens per second per user, with the Pareto front of each device.

    The best plan is marked, the other plans have their numbers, and a line shows the TPOT limit. A sweep is
    plotted at its decode steps.

    Args:
        data: Plans, or a sweep.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_front(llmir.sweep("qwen3-0.6b", {"batch": "1:64:x2"}))  # doctest: +SKIP
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
    """Plot percentiles of a latency over the request rates of several simulations.

    Replications are plotted with confidence intervals. The plot also shows the latency limits of the runs and
    the largest stable rate.

    Args:
        data: Simulations or replications at several rates.
        ax: The matplotlib axes to draw in. The default is new axes.
        of: The latency: `ttft`, `tpot` or another latency of a simulation.
        rate: A request rate per second to mark, such as the expected one.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, `data` has another type, or `of` is unknown.

    >>> import llmir
    >>> runs = [llmir.simulate("qwen3-0.6b", "l4", llmir.Traffic(rate)) for rate in (1, 2)]  # doctest: +SKIP
    >>> axes = plot_latencies(runs, of="ttft", rate=1.5)  # doctest: +SKIP
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
    """Plot a simulated server over time: running requests, waiting requests and the share of used KV blocks.

    Args:
        data: The simulation.
        ax: The matplotlib axes to draw in. The default is new axes.

    Returns:
        The axes.

    Raises:
        InputError: matplotlib is not installed, or `data` has another type.

    >>> import llmir
    >>> axes = plot_serving(llmir.simulate("qwen3-0.6b", "l4", llmir.Traffic(rate=2)))  # doctest: +SKIP
    """
    from llmir.backends.export.charts import frame, serving
    from llmir.backends.simulate.result import Simulation

    if not isinstance(data, Simulation):
        arguments.refuse("data", data, "a Simulation")
    frame.ready("plot_serving", ax)
    drawn: Axes = serving.serving(data, ax)
    return drawn
