"""From measured times to the parameters of kernels, and of what engines add to them."""

from .cases import Case, cases
from .fit import fit
from .hosts import Overheads, overheads
from .refit import block, device_file, files, fitted, with_fits

__all__ = [
    "Case",
    "Overheads",
    "block",
    "cases",
    "device_file",
    "files",
    "fit",
    "fitted",
    "overheads",
    "with_fits",
]
