"""From measured times to the parameters of kernels, and of what engines add to them."""

from . import overview
from .cases import Case, cases
from .fit import fit
from .hosts import overheads
from .left_out import left_out
from .refit import Refit, block, fitted, with_fits
from .runs import TABLES, runs, step_shape

__all__ = [
    "TABLES",
    "Case",
    "Refit",
    "block",
    "cases",
    "fit",
    "fitted",
    "left_out",
    "overheads",
    "overview",
    "runs",
    "step_shape",
    "with_fits",
]
