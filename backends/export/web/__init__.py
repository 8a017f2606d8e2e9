"""A page that computes what `llmir.workload` says, in the browser of whoever opens it."""

from .answer import answer
from .page import MOST, SIZE, page, served
from .setups import Setup

__all__ = ["MOST", "SIZE", "Setup", "answer", "page", "served"]
