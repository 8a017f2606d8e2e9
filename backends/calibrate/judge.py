"""How well a family of kernels predicts shapes that it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmir import hw
from llmir.backends.cost.kernels import Kernel, parameters
from llmir.errors import HardwareError
from llmir.hw import Device

from .families import Family
from .fit import fit
from .folds import Errors, errors, group_folds
from .rows import Array, Table, read


@dataclass(frozen=True, eq=False)
class Case:
    """The rows of one family, device and engine; `engine` is the framework without its version."""

    family: Family
    device: Device
    engine: str
    origin: str
    rows: Table

    @property
    def seconds(self) -> Array:
        """Measured."""
        return self.rows["latency_us"] * 1e-6

    @property
    def groups(self) -> list[tuple[Any, ...]]:
        """What is left out together, for each row."""
        return list(zip(*(self.rows[c] for c in self.family.group), strict=True))

    def fit(self, index: Any = slice(None), **options: int) -> Kernel:
        """The kernel of some of the rows, of all if none are named."""
        shape = self.family.shape(self.rows.take(index))
        return fit(self.family.kernel, self.device, shape, self.seconds[index], **options)

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

    @property
    def parameters(self) -> int:
        """How many are fitted."""
        return len(parameters(self.family.kernel))


def cases(family: Family, folder: Path) -> Iterator[Case]:
    """The cases of a family in a folder of CSV files, by device and engine; devices we do not know are left out."""
    table = read(folder / family.file, family.columns, family.words, where=family.where)
    gpus, frameworks = table["gpu"], table["framework"]
    for gpu, framework in sorted(set(zip(gpus, frameworks, strict=True))):
        try:
            device = hw.load(gpu)
        except HardwareError:
            continue
        rows = table.take((gpus == gpu) & (frameworks == framework))
        yield Case(family, device, engine(framework), framework, rows)


def engine(framework: str) -> str:
    """A framework without its version.

    >>> engine("vllm-0.24.0")
    'vllm'
    """
    return framework.partition("-")[0]
