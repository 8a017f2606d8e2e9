"""Cost models: what each op of a program takes on a device."""

from .ideal import Ideal
from .limit import BOUNDS, Limit
from .network import Exchange
from .price import Price, Roofline
from .rows import Row, rows

__all__ = ["BOUNDS", "Exchange", "Ideal", "Limit", "Price", "Roofline", "Row", "rows"]
