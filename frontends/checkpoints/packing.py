"""How checkpoints store a quantized matrix: the names, shapes and dtypes of its tensors, by method.

A method takes the name of a matrix, its shape as [out, in] (after the experts, where one tensor has all of
them), its element type and the model's element type. The docstring of each method names the source, which is
the layer that the library saves.
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
    """The tensors of one matrix, and the ends of names that a checkpoint may have beside them.

    Those are scales of inputs and caches, shapes and formats, which no total here counts.
    """

    tensors: Callable[[str, tuple[int, ...], DType, str], Tensors]
    beside: tuple[str, ...] = ()


def packing(method: object) -> Packing:
    """That of a `quant_method`; `UnsupportedError` for one whose layout llmir does not have."""
    if method not in _PACKINGS:
        known = ", ".join(_PACKINGS)
        raise UnsupportedError(f"check: how {method} stores matrices is not known; known are {known}")
    return _PACKINGS[str(method)]


def tensor(dtype: str, *shape: int) -> TensorHeader:
    """One of that type, as we call it or, without a name of ours, as safetensors does."""
    bits = DTYPES[dtype].bits if dtype in DTYPES else {"U8": 8}[dtype]
    return TensorHeader(shape, dtype, math.prod(shape) * bits // 8)


def _groups(along: int, dtype: DType) -> int:
    return math.ceil(along / (dtype.block[1] or along))


def _gptq(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """AutoGPTQ's and GPTQModel's QuantLinear: numbers of 32 bits hold rows that follow one another."""
    (outs, ins), each, stem = shape, 32 // dtype.bits, name.removesuffix("weight")
    return {
        f"{stem}qweight": tensor("int32", ins // each, outs),
        f"{stem}qzeros": tensor("int32", _groups(ins, dtype), outs // each),
        f"{stem}scales": tensor("fp16", _groups(ins, dtype), outs),
        f"{stem}g_idx": tensor("int32", ins),
    }


def _awq(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """AutoAWQ's WQLinear_GEMM: numbers of 32 bits hold columns."""
    (outs, ins), each, stem = shape, 32 // dtype.bits, name.removesuffix("weight")
    return {
        f"{stem}qweight": tensor("int32", ins, outs // each),
        f"{stem}qzeros": tensor("int32", _groups(ins, dtype), outs // each),
        f"{stem}scales": tensor("fp16", _groups(ins, dtype), outs),
    }


def _scales(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """The shape of the scales of tiles: of a matrix, of channels as columns, or of blocks."""
    outs, ins = shape
    across, along = dtype.block
    return (math.ceil(outs / across), math.ceil(ins / (along or ins))) if across else (1,)


def _fp8(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """transformers' FP8Linear, whose blocks have the inverse of scales, and vLLM's."""
    inverse = "_inv" if dtype.block[0] > 1 else ""
    scale = tensor("fp32", *_scales(shape, dtype))
    return {name: tensor(dtype.plain.name, *shape), f"{name}_scale{inverse}": scale}


def _compressed(name: str, shape: tuple[int, ...], dtype: DType, model: str) -> Tensors:
    """compressed-tensors' `pack-quantized`, `nvfp4-pack-quantized`, and those of 8 bits."""
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
    """gpt-oss's experts: of each row blocks of 32, as 16 bytes and an exponent."""
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
