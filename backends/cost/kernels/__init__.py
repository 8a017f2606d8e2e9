"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""

from llmir.plugins import import_all

from .attention import AttentionShape
from .base import KERNELS, Kernel, Parameter, Shape, parameter, parameters, stacked
from .call import Call, calls
from .collective import AllReduce, CollectiveShape, Exchange
from .cpu import CpuAttention, CpuGemm, CpuHost
from .decode import Decode
from .dispatch import DeepEp
from .gemm import Gemm, GemmShape
from .host import EagerHost, Host, OverlappedHost, RunShape, StepShape, lateness
from .moe import GroupedShape, Moe, RoutedShape
from .network import HopsShape, Network, across
from .prefill import Prefill
from .stream import Elementwise, Stream, StreamShape

import_all(__name__)  # each file registers its families, and the ops that it prices

__all__ = [
    "KERNELS",
    "AllReduce",
    "AttentionShape",
    "Call",
    "CollectiveShape",
    "CpuAttention",
    "CpuGemm",
    "CpuHost",
    "Decode",
    "DeepEp",
    "EagerHost",
    "Elementwise",
    "Exchange",
    "Gemm",
    "GemmShape",
    "GroupedShape",
    "HopsShape",
    "Host",
    "Kernel",
    "Moe",
    "Network",
    "OverlappedHost",
    "Parameter",
    "Prefill",
    "RoutedShape",
    "RunShape",
    "Shape",
    "StepShape",
    "Stream",
    "StreamShape",
    "across",
    "calls",
    "lateness",
    "parameter",
    "parameters",
    "stacked",
]
