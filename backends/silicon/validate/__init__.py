"""Predictions held against measurements: tables of kernels, of whole models, and chat logs."""

from . import show
from .chat import Chat
from .judged import BY, Judged, Validation
from .pricing import priced_by
from .requests import Layout
from .run import validate

__all__ = ["BY", "Chat", "Judged", "Layout", "Validation", "priced_by", "show", "validate"]
