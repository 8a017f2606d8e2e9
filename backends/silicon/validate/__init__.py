"""Predictions held against measurements: tables of kernels, of whole models, and chat logs."""

from .chat import Chat
from .judged import BY, KEYS, METRICS, Group, Judged, Refused, Validation
from .overheads import Overheads, overheads
from .pricing import IDEAL, Pricing, priced_by
from .requests import Layout
from .run import validate

__all__ = [
    "BY",
    "IDEAL",
    "KEYS",
    "METRICS",
    "Chat",
    "Group",
    "Judged",
    "Layout",
    "Overheads",
    "Pricing",
    "Refused",
    "Validation",
    "overheads",
    "priced_by",
    "validate",
]
