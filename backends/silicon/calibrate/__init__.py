"""From measured times to the parameters of kernels, and of what engines add to them."""

from . import overview
from .cases import Case, cases
from .fit import fit
from .hosts import TABLE, Overheads, overheads
from .refit import Refit, block, fitted, with_fits

__all__ = [
    "TABLE",
    "Case",
    "Overheads",
    "Refit",
    "block",
    "cases",
    "fit",
    "fitted",
    "overheads",
    "overview",
    "with_fits",
]
