"""The ops, one class each. Importing this package registers them all in `OPS`."""

from ..op import OPS
from . import attention, elementwise, gather, linear, moe, norm, region
from .source import Cache, Source, Weight

__all__ = [
    "OPS",
    "Cache",
    "Source",
    "Weight",
    "attention",
    "elementwise",
    "gather",
    "linear",
    "moe",
    "norm",
    "region",
]
