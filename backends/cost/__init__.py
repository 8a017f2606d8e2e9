"""Cost models: what each op of a program takes on a device."""

from .ideal import Ideal
from .rows import Row, rows

__all__ = ["Ideal", "Row", "rows"]
