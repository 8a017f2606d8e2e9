"""A host fitted to runs, and what the hosts of servers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from llmir.backends.kernels.base import KERNELS, stacked
from llmir.backends.kernels.engine_cpu import Host
from llmir.backends.silicon.rows import Array
from llmir.hw import library
from llmir.hw.engine import HOSTS

from .fit import fit
from .runs import Run

_OF = library.load("h100-sxm")  # of a device a host asks nothing
# A parameter e times that of the engine's range with most runs costs as much as 0.5% of every time.
NEAR = 0.005
# Runs of one model on one device are off together, by their kernels, by some 8%, and servers' parameters
# differ by a factor of e or more: where all runs are of one such group, a parameter e times that of other
# servers costs as much as 5% of every time, and of several groups less, as errors that are averaged.
COMMON = 0.05


def family(engine: str, versions: Sequence[str]) -> str:
    """The family of hosts that a range of an engine's versions has."""
    known = engine in library.engines() and versions
    return library.engine(f"{engine}@{versions[-1]}").family if known else HOSTS[0]


def clock(runs: Sequence[Run]) -> Callable[[Host], Array]:
    """Seconds of each run by the parameters of a host, in the family of the run's own engine."""
    kinds: dict[tuple[str, bool], list[int]] = {}
    for i, run in enumerate(runs):
        kinds.setdefault((family(run.engine, run.versions), run.serial), []).append(i)
    each = [(*kind, at, stacked([runs[i].shape for i in at])) for kind, at in kinds.items()]

    def seconds(host: Host) -> Array:
        found = np.empty(len(runs))
        for name, serial, at, shape in each:
            own = KERNELS[name](**vars(host))
            assert isinstance(own, Host)
            found[at] = (own.serial if serial else own).seconds(_OF, shape)
        return found

    return seconds


def fitted(
    name: str, runs: Sequence[Run], near: Host | None, prior: float, weights: Array | None = None
) -> Host:
    """The host of a family whose times are nearest to the runs', and whose parameters to those of `near`."""
    times = clock(runs)

    def seconds(kernels: object) -> Array:
        assert isinstance(kernels, dict)
        return times(kernels["host"])

    found = fit(
        {"host": KERNELS[name]},
        seconds,
        np.array([run.seconds for run in runs]),
        starts=Host.starts,
        prior=prior,
        near={"host": near} if near else None,
        weights=weights,
    )["host"]
    assert isinstance(found, Host)
    return found


def group(run: Run) -> tuple[str, str, str]:
    """What runs are off together by: the engine's release, the device and the model."""
    return run.release, run.device, run.model


@cache
def common(servers: tuple[Run, ...]) -> Host:
    """What servers have in common: the host of all their runs; those of a model on a device count as one."""
    alike = [*map(group, servers)]
    share = {key: 1 / alike.count(key) for key in set(alike)}
    weights = np.array([share[key] for key in alike])
    return fitted("host", servers, None, Host.prior, weights / weights.mean())
