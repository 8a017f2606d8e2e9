"""Predictions held against measurements: tables of kernels, of whole models, and chat logs."""

from . import overview
from .chat import Chat
from .judged import BY, KEYS, METRICS, Group, Judged, Validation
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
    "Pricing",
    "Validation",
    "overview",
    "priced_by",
    "validate",
]
