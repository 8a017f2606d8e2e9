"""What real kernels take: one family a file, each a page of physics with a handful of parameters."""

from .attention import AttentionShape
from .base import Kernel, Parameter, Shape, parameter, parameters
from .collective import AllReduce, CollectiveShape, Exchange, SumShape
from .cpu import CpuAttention, CpuGemm, CpuHost
from .decode import Decode
from .gemm import DynamicGemm, Gemm, GemmShape
from .host import Host, RunShape, StepShape
from .moe import GroupedShape, Moe, MoeShape
from .prefill import Prefill
from .stream import Stream, StreamShape

# Each family that a device's `calibration:` may name.
KERNELS: dict[str, type[Kernel]] = {
    "gemm_bf16": Gemm,
    "gemm_fp32": Gemm,
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
    "scale": Stream,
    "attention_prefill": Prefill,
    "attention_prefill_fp32": Prefill,
    "attention_prefill_kv8": Prefill,
    "attention_prefill_fp8": Prefill,
    "attention_decode": Decode,
    "attention_decode_fp32": Decode,
    "attention_decode_kv8": Decode,
    "moe_bf16": Moe,
    "moe_fp8": Moe,
    "moe_fp8_block": Moe,
    "moe_nvfp4": Moe,
    "moe_mxfp4": Moe,
    "moe_mxfp4_weights": Moe,
    "moe_int4_weights": Moe,
    "host": Host,
    # What a CPU has in place of the family without the prefix.
    "cpu_gemm_bf16": CpuGemm,
    "cpu_gemm_fp32": CpuGemm,
    "cpu_attention_prefill": CpuAttention,
    "cpu_attention_prefill_fp32": CpuAttention,
    "cpu_attention_decode": CpuAttention,
    "cpu_attention_decode_fp32": CpuAttention,
    "cpu_host": CpuHost,
    "all_reduce": AllReduce,
    "all_reduce_eager": AllReduce,
    "all_gather": Exchange,
    "reduce_scatter": Exchange,
    "all_to_all": Exchange,
}

__all__ = [
    "KERNELS",
    "AllReduce",
    "AttentionShape",
    "CollectiveShape",
    "CpuAttention",
    "CpuGemm",
    "CpuHost",
    "Decode",
    "DynamicGemm",
    "Exchange",
    "Gemm",
    "GemmShape",
    "GroupedShape",
    "Host",
    "Kernel",
    "Moe",
    "MoeShape",
    "Parameter",
    "Prefill",
    "RunShape",
    "Shape",
    "StepShape",
    "Stream",
    "StreamShape",
    "SumShape",
    "parameter",
    "parameters",
]
