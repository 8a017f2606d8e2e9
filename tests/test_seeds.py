"""Names of models and devices that stand in the pages this project began from."""

from __future__ import annotations

import pytest

import llmir
from llmir import hw

MODELS = {
    "llama-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "Llama-2-7b-chat": 6_738_415_616,
    "Llama-2-13b-chat": 13_015_864_320,
    "lmsys/vicuna-7b-v1.5": 6_738_415_616,
    "Qwen3-30B-A3B": 30_532_122_624,
    "facebook/opt-125m": 125_239_296,
    "lmms-lab/llava-onevision-qwen2-0.5b-ov": 893_675_552,
    "DiT-XL/2": 749_826_464,
    "gpt3_175b": 174_604_259_328,
    "gpt2": 124_439_808,
    "DeepSeek-V3-671B": 671_026_404_352,
    "deepseek_v3": 671_026_404_352,
}
# Bytes a second of memory and the memory's size in GB, as the pages have them or their datasheets.
DEVICES = {
    "v100-sxm-32gb": (900, 32),
    "v100-sxm2-32gb": (900, 32),
    "nvidia_V100": (900, 32),
    "V100": (900, 32),
    "T4": (320, 16),
    "a100-sxm-40gb": (1555, 40),
    "A100-SXM40GB": (1555, 40),
    "A100_40GB_GPU": (1555, 40),
    "a100-sxm-80gb": (2039, 80),
    "A100_80GB_GPU": (2039, 80),
    "nvidia_A100": (2039, 80),
    "A100": (2039, 80),
    "H100_GPU": (3350, 80),
    "RTX3090_GPU": (936, 24),
    "RTX3090": (936, 24),
    "RTX 3090": (936, 24),
    "3090": (936, 24),
    "RTX4090_GPU": (1008, 24),
    "RTX4090": (1008, 24),
    "nvidia_A6000": (768, 48),
    "MI300X": (5300, 192),
    "TPUv6": (1640, 32),
}


@pytest.mark.parametrize(("name", "parameters"), MODELS.items())
def test_a_model_of_the_pages_is_found(name: str, parameters: int) -> None:
    assert llmir.load(name).parameters == parameters


@pytest.mark.parametrize(("name", "facts"), DEVICES.items())
def test_a_device_of_the_pages_is_found(name: str, facts: tuple[int, int]) -> None:
    device = hw.load(name)
    bandwidth, memory = facts
    assert device.memory_Bps == pytest.approx(bandwidth * 1e9, rel=0.01)
    assert device.memory_bytes == pytest.approx(memory * 2**30, rel=0.08)
