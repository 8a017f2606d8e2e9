"""Times of this machine's kernels, as eager PyTorch calls them, in the CSV files that calibration reads."""

from . import steps
from .eager import Eager
from .host import host_rate, host_text
from .machine import FRAMEWORK, Machine, Point
from .peaks import device_text
from .plan import Facts, plan
from .record import record, write

__all__ = [
    "FRAMEWORK",
    "Eager",
    "Facts",
    "Machine",
    "Point",
    "device_text",
    "host_rate",
    "host_text",
    "plan",
    "record",
    "steps",
    "write",
]
