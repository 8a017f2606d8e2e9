"""Predictions held against measurements: tables of kernels, of whole models, and chat logs."""

from .chat import Chat
from .judged import BY, KEYS, METRICS, Group, Judged, Refused, Validation
from .overheads import Overheads, overheads
from .pricing import IdealPricing, Pricing, priced_by
from .requests import Layout
from .run import validate

__all__ = [
    "BY",
    "KEYS",
    "METRICS",
    "Chat",
    "Group",
    "IdealPricing",
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
