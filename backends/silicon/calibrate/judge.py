"""How well a family of kernels predicts shapes that it was not fitted to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from llmir import hw
from llmir.backends.cost.calibration import to_yaml
from llmir.backends.cost.kernels import Kernel, parameters
from llmir.errors import HardwareError, InputError
from llmir.hw import Calibration, Device, Fitted
from llmir.names import plain, spans

from .families import FAMILIES, PEAKS, Family
from .fit import fit
from .folds import Errors, errors, group_folds
from .machines import named
from .rows import Array, Table, read

Judgements = Sequence[tuple["Case", Errors]]
NO_HOSTS: Mapping[str, Mapping[str, Fitted]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Case:
    """The rows of one family, device and engine; `engine` is the framework without its version.

    Of an engine's several kernels the one with most rows bears its name alone, others theirs behind it.
    `hot` are rows set apart by rule: faster than the memory's bandwidth, so that operands lay in the L2.
    """

    family: Family
    device: Device
    engine: str
    origin: str
    rows: Table
    hot: Table

    @property
    def seconds(self) -> Array:
        """Measured."""
        return self.rows["latency_us"] * 1e-6

    @property
    def groups(self) -> list[tuple[Any, ...]]:
        """What is left out together, for each row."""
        return self.family.groups(self.rows)

    def fit(self, index: Any = slice(None), **options: int) -> Kernel:
        """The kernel of some of the rows, of all if none are named."""
        shape = self.family.shape(self.rows.take(index))
        family, starts = self.family, options.pop("starts", self.family.starts)
        seconds = self.seconds[index]
        return fit(family.kernel, self.device, shape, seconds, starts=starts, loss=family.loss, **options)

    def predicted(self, kernel: Kernel, index: Any = slice(None)) -> Array:
        """Seconds by `kernel`."""
        return np.asarray(kernel.seconds(self.device, self.family.shape(self.rows.take(index))))

    def left_out(self, **options: int) -> Array:
        """Seconds of each row by a fit that saw none of its group."""
        found = np.empty(len(self.rows))
        for seen, judged in group_folds(self.groups):
            found[judged] = self.predicted(self.fit(seen, **options), judged)
        return found

    def errors(self, **options: int) -> Errors:
        """Errors on groups left out."""
        return errors(self.left_out(**options), self.seconds)

    def ideal_errors(self) -> Errors:
        """Errors of the roofline."""
        return errors(np.asarray(self.family.shape(self.rows).roofline(self.device)), self.seconds)

    @property
    def parameters(self) -> int:
        """How many are fitted."""
        return len(parameters(self.family.kernel))


def cases(
    family: Family, folder: Path, load: Callable[[str], Device] = hw.load
) -> tuple[list[Case], tuple[str, ...]]:
    """The cases of a family in a folder of CSV files, by device and engine, and its bad rows.

    So are GPUs that `load` knows no file of, and cases of fewer than two groups, which cannot be judged.
    """
    table = read(folder / family.file, family.columns, family.words, where=family.where)
    found, problems = [], list(table.problems)
    if family.keeps:
        table = table.take(family.keeps(table))
    by = [table[w] for w in ("gpu", "framework", "kernel") if w in family.words]
    kinds = list(zip(*by, strict=True))
    most = sorted(Counter(kinds).items(), key=lambda kind: (kind[0][:2], -kind[1], kind[0][2:]))
    mains = {(gpu, framework): rest for (gpu, framework, *rest), _ in reversed(most)}
    for (gpu, framework, *kernel), _ in most:
        rows = table.take(np.array([kind == (gpu, framework, *kernel) for kind in kinds]))
        what = f"{family.file}: {len(rows)} rows of {family.name}, {plain(gpu)}, {plain(framework)}"
        try:
            device = load(gpu)
        except HardwareError as error:
            problems.append(f"{what}: {error}")
            continue
        hot = rows["latency_us"] * 1e-6 < family.shape(rows).roofline(device)
        name = named(framework, *([] if mains[gpu, framework] == kernel else kernel))
        if not name:
            problems.append(f"{what}: no framework is named")
            continue
        origin = f"{framework}, measured by {', '.join(sorted(set(rows['source'])))}"
        case = Case(family.on(device), device, name, origin, rows.take(~hot), rows.take(hot))
        if len(set(case.groups)) < 2:
            problems.append(f"{what}: fewer than two groups by {', '.join(family.group)}, too few to judge")
        else:
            found.append(case)
    return found, tuple(problems)


def unfitted(file: str, folder: Path) -> tuple[str, ...]:
    """Words of a file by which some of its rows are of no family, with those rows' numbers."""
    own = [f for f in FAMILIES.values() if f.file == file]
    found = []
    for column in dict.fromkeys(c for f in own for c in f.where):
        known = {word for f in own for word in f.where.get(column, ())} | {*PEAKS}
        try:
            table = read(folder / file, {}, (column,))
        except InputError:  # the column is missing, which reading a family says
            continue
        rows: dict[str, list[int]] = {}
        for line, word in zip(table["line"], table[column], strict=True):
            if word not in known:
                rows.setdefault(word, []).append(int(line))
        found += [
            f"{file}: {column} {plain(w, 40)!r} is of no family: rows {spans(n, 5)}" for w, n in rows.items()
        ]
    return tuple(found)


def kept(judged: Judgements) -> list[tuple[Case, Errors]]:
    """Of several cases of one engine and family, such as of two of its versions, that of most rows."""
    best: dict[tuple[str, str], tuple[Case, Errors]] = {}
    for case, error in judged:
        key = case.engine, case.family.name
        if key not in best or len(case.rows) > len(best[key][0].rows):
            best[key] = case, error
    return list(best.values())


def device_file(extends: str, judged: Judgements) -> str:
    """A device file with these cases' calibration."""
    return f"extend: {extends}\n{block(judged)}"


def block(judged: Judgements, hosts: Mapping[str, Mapping[str, Fitted]] = NO_HOSTS) -> str:
    """The `calibration:` of these cases and hosts, by engine; first is the device's, or has most families."""
    engines: dict[str, dict[str, Fitted]] = {}
    for case, error in kept(judged):
        values = {n: float(v) for n, v in vars(case.fit()).items()}
        fitted = Fitted(values, case.origin, len(case.rows), error.mape)
        engines.setdefault(case.engine, {})[case.family.name] = fitted
    known = judged[0][0].device.calibration
    first = max(engines, key=lambda e: (known is not None and e == known.engine, len(engines[e])))
    for engine, host in hosts.items():
        engines.setdefault(engine, {}).update(host)
    return to_yaml(Calibration(first, engines))
