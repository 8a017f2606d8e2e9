"""Tuned and quantized releases: the preset with their sizes, and the dtypes of their weights.

Publishers add suffixes to the name of a model that they tune or quantize. Each publisher defines the dtypes
behind a suffix, so a note calls them assumptions; the checkpoint's own config.json declares them exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmir.base.names import split_format

from . import presets
from .presets import Preset

# A release with the same sizes: fine-tuned, dated, or in another container.
_TUNED = re.compile(
    r"[-_.](instruct|chat|it|base|thinking|reasoning|hf|bf16|fp16|preview|\d{4}|\d{6}|\d{8})$", re.IGNORECASE
)

Scheme = Mapping[str, object]


def _group(weights: Scheme, inputs: Scheme | None = None) -> Scheme:
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}


_LEFT: list[str] = ["lm_head", "re:.*mlp.gate$", "re:.*router"]  # the head and the routers
_TENSOR = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}
_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def _compressed(weights: Scheme, inputs: Scheme | None = None) -> Scheme:
    return {"quant_method": "compressed-tensors", "config_groups": _group(weights, inputs), "ignore": _LEFT}


def _gptq(bits: int) -> Scheme:
    return {"quant_method": "gptq", "bits": bits, "group_size": 128, "sym": True}


def _modelopt(algorithm: str, weights: Scheme) -> Scheme:
    groups = _group(weights, weights)
    return {"quant_method": "modelopt", "quant_algo": algorithm, "config_groups": groups, "ignore": _LEFT}


# Schemes of suffixes by the start of an id ("" for all), from the configs of these releases; the longest
# match counts.
_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": _LEFT}
_META = [*_LEFT, "re:.*self_attn", "model.layers.0.mlp", "model.layers.125.mlp"]
_NVIDIA = _modelopt("NVFP4", _NVFP4)
_RED_HAT = {
    "fp8": _compressed(_TENSOR, _TENSOR),
    "fp8-dynamic": _compressed(_CHANNEL, _TOKEN),
    "nvfp4": _compressed(_NVFP4, _NVFP4),
    "quantized.w8a8": _compressed(_INT8, {**_INT8, "strategy": "token", "dynamic": True}),
    "quantized.w4a16": _compressed(_INT4),
}
STORED: Mapping[str, Mapping[str, Scheme]] = {
    "": {
        "fp8": {"quant_method": "fp8", "modules_to_not_convert": _LEFT},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": _LEFT},
        "gptq": _gptq(4),
        "gptq-int4": _gptq(4),
        "gptq-int8": _gptq(8),
    },
    "Qwen/": {"fp8": _BLOCKS},
    "deepseek-ai/": {"fp8": _BLOCKS},
    # GLM-4.5 to 4.7 are in compressed-tensors with one scale per channel; from GLM-5 on in DeepSeek's blocks.
    "zai-org/": {"fp8": _compressed(_CHANNEL, _TOKEN)},
    "zai-org/GLM-5": {"fp8": {**_BLOCKS, "modules_to_not_convert": [*_LEFT, "re:.*indexer.weights_proj"]}},
    # Attention, the first layer and the last one are not quantized (arXiv:2407.21783, 6.2); here for the
    # 405B.
    "meta-llama/": {"fp8": {"quant_method": "fbgemm_fp8", "modules_to_not_convert": _META}},
    "nvidia/": {"fp8": _modelopt("FP8", _TENSOR), "nvfp4": _NVIDIA, "fp4": _NVIDIA},
    "RedHatAI/": _RED_HAT,
    "neuralmagic/": _RED_HAT,
}


def find(name: str) -> tuple[Preset, Scheme | None] | None:
    """The preset with the sizes of a release, and its `quantization_config` if its weights are quantized.

    >>> preset, scheme = find("Qwen/Qwen2.5-7B-Instruct-AWQ")
    >>> preset.name, scheme["quant_method"], scheme["group_size"]
    ('Qwen2.5-7B', 'awq', 128)
    """
    forms: dict[str, Scheme] = {}
    for start in sorted(STORED, key=len):
        forms |= STORED[start] if name.lower().startswith(start.lower()) else {}
    rest, form = split_format(name)
    if form and form.lower() not in forms:
        return None
    preset = (presets.find(rest) if form else None) or _tuned(rest)
    return (preset, forms[form.lower()] if form else None) if preset else None


def _tuned(name: str) -> Preset | None:
    """The preset of a name without suffixes for tuning and date."""
    while shorter := _TUNED.sub("", name):
        if shorter == name:
            return None
        if preset := presets.find(shorter):
            return preset
        name = shorter
    return None
