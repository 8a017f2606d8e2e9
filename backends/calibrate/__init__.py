"""From measured times to the parameters of a device's kernels."""

from .families import FAMILIES, Family
from .fit import fit
from .folds import Errors, errors, group_folds
from .rows import Column, Table, read

__all__ = ["FAMILIES", "Column", "Errors", "Family", "Table", "errors", "fit", "group_folds", "read"]
