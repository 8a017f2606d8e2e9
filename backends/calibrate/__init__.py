"""From measured times to the parameters of a device's kernels."""

from .families import FAMILIES, Family, families
from .fit import fit
from .folds import Errors, errors, group_folds
from .judge import Case, block, cases, device_file, named
from .machines import Machines, machine
from .rows import Column, Table, read

__all__ = [
    "FAMILIES",
    "Case",
    "Column",
    "Errors",
    "Family",
    "Machines",
    "Table",
    "block",
    "cases",
    "device_file",
    "errors",
    "families",
    "fit",
    "group_folds",
    "machine",
    "named",
    "read",
]
