"""Whole models priced by hosts that were fitted without them: folds over what they are alike in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.engine_cpu import Host
from llmir.backends.silicon.folds import group_folds
from llmir.backends.silicon.validate.estimates import Pricing
from llmir.backends.silicon.validate.requests import Layout
from llmir.backends.silicon.validate.rows import Judged, Validation
from llmir.backends.silicon.validate.run import validate
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.engine import distance

from .engine_cpu import Overheads, major, overheads
from .host_fit import common, family
from .runs import Build, Run, runs_of

FOLDS = ("model", "device", "version", "tp")
Key = tuple[str, ...]
Tell = Callable[[str, int, int], None]


def left_out(
    paths: Sequence[Path], build: Build, by: Sequence[str], tell: Tell = lambda *_: None, folds: int = 5
) -> Validation:
    """Rows of tables of whole models; those alike in `by` are priced by hosts fitted to other folds' rows.

    A range of versions of which no run is left has the host of the nearest one of the same major version,
    else what other servers have in common. Rows that no host is fitted to are priced by those of all others.
    """
    for name in by:
        choice("folds", name, FOLDS)
    found = runs_of(paths, build)
    groups = [_key(by, run.model, run.device, run.release, run.tp) for run in found]
    if len(set(groups)) < 2:
        raise InputError(f"folds: {','.join(by)}: all rows are alike in them, none can be left out")
    judged: dict[tuple[str, int, str], Judged] = {}
    known = set(groups)
    for number, (rest, left) in enumerate(group_folds(groups, folds=folds)):
        some = {groups[i] for i in left}

        def only(layout: Layout, device: Device, some: set[Key] = some, first: bool = not number) -> bool:
            key = _key(by, layout.model, device.name, layout.engine, layout.tp)
            return key in some or (first and key not in known)

        some_runs = [found[i] for i in rest]
        hosts = _hosts(found, some_runs, overheads(some_runs))
        fold = validate(paths, build, pricing=Pricing("calibrated", hosts=hosts), tell=tell, only=only)
        judged |= {(row.file, row.row, row.metric): row for row in (*fold.rows, *fold.refused)}
    rows = sorted(judged.values(), key=lambda row: (row.file, row.row))
    priced, refused = ([r for r in rows if bool(r.reason) is no] for no in (False, True))
    return Validation("calibrated", priced, refused)


def _key(by: Sequence[str], model: str, device: str, release: str, tp: int) -> Key:
    said = dict(zip(FOLDS, (model, device, release, str(tp)), strict=True))
    return tuple(said[name] for name in by)


def _hosts(
    runs: Sequence[Run], rest: Sequence[Run], fitted: Sequence[Overheads]
) -> FrozenDict[tuple[str, str], Host]:
    """The host of each range of versions that any run is of, by hosts that were fitted to the rest."""
    ranges: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        ranges.setdefault((run.engine, run.versions), []).append(run)
    hosts: dict[tuple[str, str], Host] = {}
    for (engine, versions), its in ranges.items():
        found = _nearest(engine, versions, fitted)
        servers = tuple(run for run in rest if run.served) if its[0].served else ()
        host: Any = KERNELS[family(engine, versions)]
        if found or servers:
            host = host(**vars(found.host if found else common(servers)))
        hosts[engine, "–".join(dict.fromkeys(versions))] = host if isinstance(host, Host) else host()
    return FrozenDict(hosts)


def _nearest(engine: str, versions: tuple[str, ...], fitted: Sequence[Overheads]) -> Overheads | None:
    """The range itself, or the nearest of the same major version."""
    own = [host for host in fitted if host.engine == engine and major(host.versions) == major(versions)]
    if not versions or not own:
        return own[0] if own else None
    return min(own, key=lambda host: distance(library.engine(f"{engine}@{versions[-1]}"), host.versions[-1]))
