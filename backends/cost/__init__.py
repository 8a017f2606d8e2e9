"""Cost models: what each op of a program takes on a device."""

from .basis import Basis
from .calibrated import Calibrated
from .ideal import Ideal
from .limit import BOUNDS, Limit
from .models import NAMES, Model, model
from .network import Exchange
from .price import Price, Roofline
from .rows import TRAFFIC, Row, rows

__all__ = [
    "BOUNDS",
    "NAMES",
    "TRAFFIC",
    "Basis",
    "Calibrated",
    "Exchange",
    "Ideal",
    "Limit",
    "Model",
    "Price",
    "Roofline",
    "Row",
    "model",
    "rows",
]
