"""From measured times to the parameters of a device's kernels."""

from .families import FAMILIES, PEAKS, Family, families
from .fit import fit
from .folds import Errors, errors, group_folds
from .judge import Case, block, cases, device_file, kept, unfitted
from .machines import Machines, engine, machine, named
from .rows import Column, Table, read

__all__ = [
    "FAMILIES",
    "PEAKS",
    "Case",
    "Column",
    "Errors",
    "Family",
    "Machines",
    "Table",
    "block",
    "cases",
    "device_file",
    "engine",
    "errors",
    "families",
    "fit",
    "group_folds",
    "kept",
    "machine",
    "named",
    "read",
    "unfitted",
]
