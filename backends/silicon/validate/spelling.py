"""What tables call models, devices, engines and types, and what we call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple



class Campaign(NamedTuple):
    """What is known of a benchmark and its table leaves out.

    `lengths` is the mean length of prompts and answers, to the one stated. `caches` are types of the KV cache
    where none is stated, by the engine, a word in the model's name and the type of its weights ("" for any).
    """

    lengths: float = 1.0
    caches: Mapping[tuple[str, str, str], str] = MappingProxyType({})


# By the table's word for its source.
CAMPAIGNS = {
    # InferenceMAX (SemiAnalysisAI/InferenceX): benchmarks/70b_*.sh keep the cache in fp8 on every GPU, and
    # RANDOM_RANGE_RATIO of 0.8 draws lengths evenly from 0.8 of the stated ones to all of it.
    "aic_silicon_inferencex": Campaign(0.9, MappingProxyType({("", "70b", ""): "fp8"})),
    # AIConfigurator's runs of TensorRT-LLM hold 128 sequences of 2176 tokens beside Qwen3-32B in fp8 on one
    # H100 without queueing, which takes 106 GB with a cache of 16 bits and 70 GB with one of 8.
    "aic_silicon_gap": Campaign(1.0, MappingProxyType({("trtllm", "qwen3-32b", "fp8"): "fp8"})),
}


def campaign(source: str, engine: str, model: str, weights: str) -> tuple[float, str]:
    """The mean length of requests, to the stated one, and the cache's type where none is stated.

    >>> campaign("aic_silicon_inferencex", "vllm", "meta-llama/Llama-3.1-70B", "fp4")
    (0.9, 'fp8')
    >>> campaign("mine", "vllm", "meta-llama/Llama-3.1-70B", "fp4")
    (1.0, '')
    """
    found = CAMPAIGNS.get(source.strip().lower(), Campaign())
    name, weights = model.lower(), weights.strip().lower()
    caches = (
        cache
        for (by, word, type), cache in found.caches.items()
        if by in ("", engine) and word in name and type in ("", weights)
    )
    return found.lengths, next(caches, "")


_STORED = re.compile(r"[-_](gptq|awq|gguf|fp8|nvfp4|int4|int8)([-_]\w+)*$", re.IGNORECASE)


def model(name: str) -> str:
    """A model's name without the format that a release of it is stored in; the dtype column says that.

    >>> model("TheBloke/Llama-2-7B-GPTQ"), model("x/vicuna-7b-v1.5-awq-gemv"), model("Qwen/Qwen3-32B")
    ('TheBloke/Llama-2-7B', 'x/vicuna-7b-v1.5', 'Qwen/Qwen3-32B')
    """
    return _STORED.sub("", name.strip())


_DEGREE = re.compile(r"\b(TP|PP|EP)\b(?: *= *(\d+))?")


def degrees(note: str, gpus: int) -> dict[str, int]:
    """How a note says that GPUs are used: by one kind of parallelism all, or so many by each.

    Experts lie over the ranks that split all else.

    >>> degrees("PP", 4), degrees("Hybrid TP = 2 and PP = 2", 4), degrees("Hybrid TP = 2 and EP = 2", 4)
    ({'pp': 4, 'tp': 1}, {'tp': 2, 'pp': 2}, {'tp': 4, 'ep': 2, 'pp': 1})
    """
    found = {kind.lower(): int(count or gpus) for kind, count in _DEGREE.findall(note)}
    if not found:
        return {}
    pp = found.get("pp", 1)
    return found | {"tp": found["tp"] if "pp" in found and "tp" in found else gpus // pp, "pp": pp}


# weights -> the options of `quantize`: weights, activations. 16 bits are the model's own.
WEIGHTS = {
    "": ("", ""),
    "fp16": ("", ""),
    "float16": ("", ""),
    "bf16": ("", ""),
    "bfloat16": ("", ""),
    "fp32": ("fp32", "fp32"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8_b128x128", "fp8"),
    "fp4": ("nvfp4", "nvfp4"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("mxfp4", ""),
    "int8": ("int8", ""),
    "w8a8": ("int8", "int8"),
    "int4": ("int4", ""),
    "gptq4": ("int4", ""),
    "awq4": ("int4", ""),
    "nf4": ("int4_g64", ""),  # QLoRA (arXiv:2305.14314): blocks of 64
}
CACHES = {
    "": "",
    "fp16": "",
    "float16": "",
    "bf16": "",
    "bfloat16": "",
    "fp8": "fp8",
    "int8": "int8",
    "fp32": "fp32",
}
