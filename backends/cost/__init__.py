"""Cost models: what each op of a program takes on a device."""

from .basis import Basis
from .calibrated import Calibrated
from .ideal import Ideal, limits
from .limit import BOUNDS, Limit
from .models import model
from .names import COSTS, cost_model
from .network import Exchange
from .own import CostModel
from .price import Model, Price, Roofline
from .rows import TRAFFIC, Row, rows

__all__ = [
    "BOUNDS",
    "COSTS",
    "TRAFFIC",
    "Basis",
    "Calibrated",
    "CostModel",
    "Exchange",
    "Ideal",
    "Limit",
    "Model",
    "Price",
    "Roofline",
    "Row",
    "cost_model",
    "limits",
    "model",
    "rows",
]
