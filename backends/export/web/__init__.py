"""A page that computes what `llmir.workload` says, in the browser of whoever opens it."""

from .page import MOST, SIZE, page
from .setups import Setup

__all__ = ["MOST", "SIZE", "Setup", "page"]
