"""Pages of results: one exporter per class, such as `workload`, `plans` and `simulation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from llmir.backends.cost.models import model as default_model
from llmir.backends.request.workload import Workload
from llmir.backends.search.plan import Plans
from llmir.backends.search.sweep import Sweep
from llmir.backends.simulate.replications import RateSeries, Replications
from llmir.backends.simulate.result import Simulation
from llmir.backends.step.report import Report
from llmir.base.arguments import integer
from llmir.base.errors import InputError
from llmir.base.formats import exporter
from llmir.base.version import __version__

_SIZES = ("batch", "prompt", "generate")


def largest(max_size: int | None) -> int:
    """Largest number of bytes of a page."""
    from .bundle import SIZE

    return SIZE if max_size is None else integer("max_size", max_size, 1)


@exporter("page", of=Workload)
def workload(job: Workload, *, max_size: int | None = None) -> str:
    """The page that computes, with its sliders at the values of a workload.

    InputError for workloads that the page does not support.
    """
    from .bundle import page
    from .setups import Setup

    if type(job) is not Workload:
        raise InputError(f"page: expected a plain workload, got a {type(job).__name__}")
    told = {f.name for f in fields(job) if f.metadata and getattr(job, f.name) != f.default}
    if other := sorted(told - {*_SIZES}):
        raise InputError(f"page: does not support {' and '.join(other)}; leave it out")
    split = {f.name: getattr(job.program.parallelism, f.name) for f in fields(job.program.parallelism)}
    split["micro_batches"] = job.program.micro_batches
    values = {"hw": job.device.name, **{name: n for name, n in split.items() if name == "tp" or n > 1}}
    setup = Setup(values, job.program, job.model or default_model(job.device), passes=None)
    start = {name: getattr(job, name) for name in _SIZES}
    return page([setup], start, __version__, largest(max_size))


def _written(told: Mapping[str, Any], max_size: int | None, fewer: str) -> str:
    from .bundle import result_page

    return result_page(told, largest(max_size), fewer)


@exporter("page", ".html", of=Plans)
def plans(found: Plans, *, max_size: int | None = None) -> str:
    """The front, where each point shows why it lost; the table of plans; and latencies of the first plan over
    the rate.
    """
    from .plans import plans

    return _written(plans(found), max_size, "ask for fewer devices, types, --chunk or --batch")


@exporter("page", ".html", of=RateSeries)
def rates(found: RateSeries, *, max_size: int | None = None) -> str:
    """Latencies over the rate, with limits and overload; and a table of the rates."""
    from .serving import rates

    return _written(rates(found), max_size, "ask for fewer rates")


@exporter("page", ".html", of=Simulation)
def simulation(found: Simulation, *, max_size: int | None = None) -> str:
    """The distribution of latencies with limits, the server over time, and the tables."""
    from .serving import simulation

    return _written(simulation(found), max_size, "it has no more than curves and tables")


@exporter("page", ".html", of=Replications)
def replications(found: Replications, *, max_size: int | None = None) -> str:
    """Latencies and other figures with their confidence intervals."""
    from .serving import replications

    return _written(replications(found), max_size, "it has no more than tables")


def timeline(job: Report | Workload, *, phase: str = "both", max_size: int | None = None) -> str:
    """The work of each stage in a step, to scale, with the activations that are alive; and a table of the
    ops.
    """
    from .timeline import timeline

    return _written(timeline(job, phase), max_size, "ask for one --phase, or fewer layers")


@exporter("page", ".html", of=Sweep)
def sweep(found: Sweep, *, max_size: int | None = None) -> str:
    """A chart of any column over any other, and the table of all rows."""
    from .sweeps import sweep

    return _written(sweep(found), max_size, "leave some values out of the axes")
