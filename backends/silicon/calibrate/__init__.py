"""From measured times to the parameters of kernels, and of what engines add to them."""

from . import overview
from .cases import Case, cases
from .fit import fit
from .hosts import TABLE, overheads, step_shape
from .refit import Refit, block, fitted, with_fits

__all__ = [
    "TABLE",
    "Case",
    "Refit",
    "block",
    "cases",
    "fit",
    "fitted",
    "overheads",
    "overview",
    "step_shape",
    "with_fits",
]
