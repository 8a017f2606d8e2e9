"""The ops, one class each. Importing this package registers them all."""

from . import attention, elementwise, gather, linear, moe, norm, region, source

__all__ = ["attention", "elementwise", "gather", "linear", "moe", "norm", "region", "source"]
