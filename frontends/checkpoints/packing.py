"""The storage of a quantized matrix in checkpoints: names, shapes and dtypes of its tensors, by method.

A method gets the name of a matrix, its shape as [out, in] (with experts first, if one tensor stores all of
them), its dtype, and the dtype of the model. The docstring of each method names its source, the layer that
the library saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from llmir.base.errors import UnsupportedError
from llmir.ir.core.dtype import DTYPES, DType

from .tensors import TensorHeader

Tensors = dict[str, TensorHeader]


class Packing(NamedTuple):
    """The tensors of one matrix, and the name suffixes of optional tensors that belong to it.

    Optional tensors are scales of inputs and caches, shapes and formats; totals do not count them.
    """

    tensors: Callable[[str, tuple[int, ...], DType, str], Tensors]
    beside: tuple[str, ...] = ()


def packing(method: object) -> Packing:
    """The packing of a `quant_method`; UnsupportedError for an unknown layout."""
    if method not in _PACKINGS:
        known = ", ".join(_PACKINGS)
        raise UnsupportedError(f"check: how {method} stores matrices is not known; known are {known}")
    return _PACKINGS[str(method)]


def tensor(dtype: str, *shape: int) -> TensorHeader:
    """A tensor of an llmir dtype or, if llmir has no name for it, a safetensors dtype."""
    bits = DTYPES[dtype].bits if dtype in DTYPES else {"U8": 8}[dtype]
    return TensorHeader(shape, dtype, math.prod(shape) * bits // 8)


def _groups(along: int, dtype: DType) -> int:
    return math.ceil(along / (dtype.block[1] or along))


def _gptq(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """QuantLinear of AutoGPTQ and GPTQModel: 32-bit integers pack consecutive rows."""
    (outs, ins), each, stem = shape, 32 // dtype.bits, name.removesuffix("weight")
    return {
        f"{stem}qweight": tensor("int32", ins // each, outs),
        f"{stem}qzeros": tensor("int32", _groups(ins, dtype), outs // each),
        f"{stem}scales": tensor("fp16", _groups(ins, dtype), outs),
        f"{stem}g_idx": tensor("int32", ins),
    }


def _awq(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """WQLinear_GEMM of AutoAWQ: 32-bit integers pack columns."""
    (outs, ins), each, stem = shape, 32 // dtype.bits, name.removesuffix("weight")
    return {
        f"{stem}qweight": tensor("int32", ins, outs // each),
        f"{stem}qzeros": tensor("int32", _groups(ins, dtype), outs // each),
        f"{stem}scales": tensor("fp16", _groups(ins, dtype), outs),
    }


def _scales(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """The shape of the scales: per matrix, per channel as a column, or per block."""
    outs, ins = shape
    across, along = dtype.block
    return (math.ceil(outs / across), math.ceil(ins / (along or ins))) if across else (1,)


def _fp8(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """FP8Linear of transformers, which stores inverse scales of blocks, and the fp8 layer of vLLM."""
    inverse = "_inv" if dtype.block[0] > 1 else ""
    scale = tensor("fp32", *_scales(shape, dtype))
    return {name: tensor(dtype.plain.name, *shape), f"{name}_scale{inverse}": scale}


def _compressed(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """The formats `pack-quantized`, `nvfp4-pack-quantized` and the 8-bit formats of compressed-tensors."""
    outs, ins = shape
    if dtype.name.startswith("nvfp4"):
        return {
            f"{name}_packed": tensor("U8", outs, ins // 2),
            f"{name}_scale": tensor("fp8_e4m3", outs, ins // 16),
            f"{name}_global_scale": tensor("fp32", 1),
        }
    scale = {f"{name}_scale": tensor(model, *_scales(shape, dtype))}
    if dtype.bits == 8:
        return {name: tensor(dtype.plain.name, *shape)} | scale
    zeros = {f"{name}_zero_point": tensor("int32", outs // 8, _groups(ins, dtype))} if dtype.zeros else {}
    return {f"{name}_packed": tensor("int32", outs, ins // 8)} | scale | zeros


def _modelopt(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """ModelOpt's export for Hugging Face."""
    if not dtype.name.startswith("nvfp4"):
        return {name: tensor(dtype.plain.name, *shape), f"{name}_scale": tensor("fp32")}
    outs, ins = shape
    return {
        name: tensor("U8", outs, ins // 2),
        f"{name}_scale": tensor("fp8_e4m3", outs, ins // 16),
        f"{name}_scale_2": tensor("fp32"),
    }


def _bitsandbytes(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """bitsandbytes' Linear8bitLt, and Linear4bit with the tensors of its QuantState."""
    if dtype.bits == 8:
        outs, ins = shape
        scale = f"{name.removesuffix('weight')}SCB"
        return {name: tensor("int8", outs, ins), scale: tensor("fp32", outs)}
    elements = math.prod(shape)
    blocks = math.ceil(elements / 64)
    found = {name: tensor("U8", math.ceil(elements / 2), 1), f"{name}.quant_map": tensor("fp32", 16)}
    if not dtype.nested_bits:
        return found | {f"{name}.absmax": tensor("fp32", blocks)}
    return found | {
        f"{name}.absmax": tensor("U8", blocks),
        f"{name}.nested_absmax": tensor("fp32", math.ceil(blocks / 256)),
        f"{name}.nested_quant_map": tensor("fp32", 256),
    }


def _mxfp4(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """The experts of gpt-oss: each row in blocks of 32, stored as 16 bytes and an exponent."""
    *before, ins = shape
    return {
        f"{name}_blocks": tensor("U8", *before, ins // 32, 16),
        f"{name}_scales": tensor("U8", *before, ins // 32),
    }


_CACHES = (".k_scale", ".v_scale", ".input_scale")
_PACKINGS: Mapping[str, Packing] = {
    "fp8": Packing(_fp8, _CACHES),
    "awq": Packing(_awq),
    "gptq": Packing(_gptq),
    "compressed-tensors": Packing(
        _compressed, (*_CACHES, ".weight_shape", ".weight_g_idx", ".input_global_scale")
    ),
    "modelopt": Packing(_modelopt, _CACHES),
    "fbgemm_fp8": Packing(_fp8, (".input_scale_ub",)),
    "mxfp4": Packing(_mxfp4),
    "bitsandbytes": Packing(_bitsandbytes, (".weight_format", "__nf4", "__fp4")),
}
