"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""

from .base import Kernel, Parameter, Shape, parameter, parameters
from .gemm import DynamicGemm, Gemm, GemmShape
from .stream import Stream, StreamShape

__all__ = [
    "DynamicGemm",
    "Gemm",
    "GemmShape",
    "Kernel",
    "Parameter",
    "Shape",
    "Stream",
    "StreamShape",
    "parameter",
    "parameters",
]
