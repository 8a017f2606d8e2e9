"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""

from .base import Kernel, Parameter, Shape, parameter, parameters
from .gemm import Gemm, GemmShape

__all__ = ["Gemm", "GemmShape", "Kernel", "Parameter", "Shape", "parameter", "parameters"]
