"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""

from .base import Kernel, Parameter, Shape, parameter, parameters
from .gemm import DynamicGemm, Gemm, GemmShape
from .stream import Stream, StreamShape

# Each family that a device's `calibration:` may name.
KERNELS: dict[str, type[Kernel]] = {
    "gemm_bf16": Gemm,
    "gemm_fp8": DynamicGemm,
    "gemm_fp8_block": DynamicGemm,
    "gemm_nvfp4": DynamicGemm,
    "gemm_int8": DynamicGemm,
    "gemm_int8_weights": Gemm,
    "gemm_int4_weights": Gemm,
    "rms_norm": Stream,
    "layer_norm": Stream,
    "softmax": Stream,
    "add": Stream,
    "activation": Stream,
    "rope": Stream,
    "quantize": Stream,
}

__all__ = [
    "KERNELS",
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
