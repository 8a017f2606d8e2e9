"""Names of models and devices that stand in the pages this project began from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import llmir
from llmir.hw import library

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
    device = library.load(name)
    bandwidth, memory = facts
    assert device.memory_Bps == pytest.approx(bandwidth * 1e9, rel=0.01)
    assert device.memory_bytes == pytest.approx(memory * 2**30, rel=0.08)


# The pages lie beside a checkout, and are not part of it. What they call a model or a device stands where one
# of these says.
PAGES = sorted((Path(__file__).parents[3] / "shared" / "seeds").glob("*.txt"))
NAMED_MODELS = (
    r"analyze\w*\.py (\S+)",
    r"model_name[^\n]*?[\"']([\w.-]+)[\"'](?:,|\.)$",
    r"--model[ `:]+(?!要)([\w.-]+)",
    r"--tokenizer-name (\S+)",
    r"支持：(llama\w+), (\w+), (\w+), (\w+?)等",
    r"### ([Ll]lama\S+|Qwen\S+)",
    r"(DeepSeek-V3-671B)",
    r"(Llama-2-\d+b-chat)",
)
NAMED_DEVICES = (
    r"analyze\w*\.py \S+ (nvidia_\S+)",
    r"gpu_name[^\n]*?\"([\w.-]+)\"",
    r"'gpu_config': \{ +'name': '([\w-]+)'",
    r"--system[ `]+([A-Z]\w+)",
    r"支持：(RTX\w+), (\w+), (\w+), (\w+?)等",
    r"\n\| (\w+) \| \d+ \| \d+ \| \d+ \| \d+ \|",
    r"`(A100|V100|T4)`",
    r"(A100-SXM40GB)",
    r"\| (RTX 3090|A100)x\d",
    r"single (RTX 3090) GPU",
)


def _stated(patterns: tuple[str, ...]) -> set[str]:
    """What stands in the pages where the patterns say."""
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    found = (match for pattern in patterns for match in re.finditer(pattern, text, re.MULTILINE))
    return {name for match in found for name in match.groups() if name}


@pytest.mark.skipif(not PAGES, reason="the pages do not lie beside this checkout")
def test_every_name_that_the_pages_state_is_found() -> None:
    models, devices = _stated(NAMED_MODELS), _stated(NAMED_DEVICES)
    assert {"lmsys/vicuna-7b-v1.5", "llama-13b", "gpt3_175b", "DiT-XL/2", "gpt2"} <= models <= {*MODELS}
    assert {"RTX3090_GPU", "v100-sxm-32gb", "TPUv6", "nvidia_A6000", "T4"} <= devices <= {*DEVICES}
    for name in models:
        llmir.load(name)
    for name in devices:
        library.load(name)
