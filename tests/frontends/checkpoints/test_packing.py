"""Checkpoints of few bits, and of multimodal models: names, shapes and totals as libraries store them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.frontends.checkpoints import tensors as checkpoint
from llmir.frontends.checkpoints import weights
from llmir.ir.core.dtype import DTYPES
from tests.frontends.config.test_quantization_config import EIGHT, FOUR, FP8_BLOCKS, group

from .test_bitsandbytes import BNB
from .test_check import header, index, safetensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
DOWN = "model.layers.1.mlp.down_proj"
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
Shape = list[int]

# Of a matrix of 1,024 inputs and 256 outputs, what each format's library writes.
FORMATS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, Shape]]]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {
            "qweight": ("I32", [128, 256]),
            "qzeros": ("I32", [8, 32]),
            "scales": ("F16", [8, 256]),
            "g_idx": ("I32", [1024]),
        },
    ),
    "gptq in 8 bits, a scale a channel": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1},
        {
            "qweight": ("I32", [256, 256]),
            "qzeros": ("I32", [1, 64]),
            "scales": ("F16", [1, 256]),
            "g_idx": ("I32", [1024]),
        },
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        {"qweight": ("I32", [1024, 32]), "qzeros": ("I32", [8, 32]), "scales": ("F16", [8, 256])},
    ),
    "fp8 in blocks": (
        FP8_BLOCKS,
        {"weight": ("F8_E4M3", [256, 1024]), "weight_scale_inv": ("F32", [2, 8])},
    ),
    "pack-quantized": (
        {"quant_method": "compressed-tensors", "config_groups": group(INT4), "ignore": ["lm_head"]},
        {
            "weight_packed": ("I32", [256, 128]),
            "weight_scale": ("BF16", [256, 8]),
            "weight_shape": ("I64", [2]),
        },
    ),
    "fp8 by channel": (
        {"quant_method": "compressed-tensors", "config_groups": group(EIGHT), "ignore": ["lm_head"]},
        {"weight": ("F8_E4M3", [256, 1024]), "weight_scale": ("BF16", [256, 1])},
    ),
    "nvfp4": (
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "config_groups": group(FOUR, FOUR),
            "ignore": ["lm_head"],
        },
        {
            "weight": ("U8", [256, 512]),
            "weight_scale": ("F8_E4M3", [256, 64]),
            "weight_scale_2": ("F32", []),
            "input_scale": ("F32", []),
        },
    ),
    "nf4, scales quantized again": (
        BNB,
        {
            "weight": ("U8", [131072, 1]),
            "weight.absmax": ("U8", [4096]),
            "weight.nested_absmax": ("F32", [16]),
            "weight.nested_quant_map": ("F32", [256]),
            "weight.quant_map": ("F32", [16]),
            "weight.quant_state.bitsandbytes__nf4": ("U8", [94]),
        },
    ),
    "nf4": (
        {**BNB, "bnb_4bit_use_double_quant": False},
        {"weight": ("U8", [131072, 1]), "weight.absmax": ("F32", [4096]), "weight.quant_map": ("F32", [16])},
    ),
    "int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"weight": ("I8", [256, 1024]), "SCB": ("F32", [256]), "weight_format": ("U8", [])},
    ),
}
BITS = {"U8": 8, "I8": 8, "F8_E4M3": 8, "F16": 16, "BF16": 16, "I32": 32, "F32": 32, "I64": 64}
SAFETENSORS = {d.name: d.stored for d in DTYPES.values() if d.stored}


def stored(program: llmir.Program) -> dict[str, Any]:
    """A header with what the program expects."""
    fields = {}
    for name, tensor in weights.expected(program).items():
        dtype = SAFETENSORS.get(tensor.dtype, tensor.dtype)
        fields[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [0, tensor.bytes]}
    return fields


@pytest.mark.parametrize("form", FORMATS)
def test_a_matrix_is_stored_as_its_library_does(form: str, tmp_path: Path) -> None:
    scheme, tensors = FORMATS[form]
    program = llmir.load({**CONFIG, "quantization_config": scheme})
    fields = {n: f for n, f in stored(program).items() if not n.startswith(f"{DOWN}.")}
    assert f"{DOWN}.weight" not in fields
    for end, (dtype, shape) in tensors.items():
        taken = math.prod(shape) * BITS[dtype] // 8
        fields[f"{DOWN}.{end}"] = {"dtype": dtype, "shape": shape, "data_offsets": [0, taken]}
    found = llmir.check(program, safetensors(tmp_path / "model.safetensors", fields))
    assert found.agrees, str(found)
    assert found.parameters == program.parameters
    first = next(iter(tensors))
    fields[f"{DOWN}.{first}"]["shape"] = [*tensors[first][1][::-1], 1]
    wrong = llmir.check(program, safetensors(tmp_path / "wrong.safetensors", fields))
    assert [d.name for d in wrong.wrong_shape] == [f"{DOWN}.{first}"]
    del fields[f"{DOWN}.{first}"]
    missing = llmir.check(program, safetensors(tmp_path / "missing.safetensors", fields))
    assert missing.missing == (f"{DOWN}.{first}",)


@pytest.mark.parametrize("form", FORMATS)
def test_the_tensors_take_what_the_program_says(form: str) -> None:
    """But for scales by channel, of 32 bits where they are used and of 16 in some files."""
    program = llmir.load({**CONFIG, "quantization_config": FORMATS[form][0]})
    tensors = sum(tensor.bytes for tensor in weights.expected(program).values())
    held = llmir.analyze(program, "h100").weight_bytes
    outputs = 2 * (256 + 2 * 128 + 256 + 2 * 1024 + 256)
    assert held - tensors == (2 * outputs if form == "fp8 by channel" else 0)


# In the index of openai/gpt-oss-20b as published, of each layer; and its total.
OSS_LAYER = (
    *("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.sinks"),
    *(f"self_attn.{x}_proj.{what}" for x in "qkvo" for what in ("weight", "bias")),
    *(f"mlp.experts.{x}_proj_{what}" for x in ("gate_up", "down") for what in ("blocks", "scales", "bias")),
    *("mlp.router.weight", "mlp.router.bias"),
)
OSS_TOTAL = 13_761_264_768


def test_the_index_of_gpt_oss_agrees(tmp_path: Path) -> None:
    names = ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{i}.{end}" for i in range(24) for end in OSS_LAYER]
    program = llmir.load("gpt-oss-20b")
    found = llmir.check(program, index(tmp_path / "i.json", dict.fromkeys(names, ()), total_size=OSS_TOTAL))
    assert found.agrees, str(found)
    assert weights.expected(program)["model.layers.0.mlp.experts.gate_up_proj_blocks"].shape == (
        32,
        5760,
        90,
        16,
    )
    del names[-3]
    found = llmir.check(
        program, index(tmp_path / "i.json", dict.fromkeys(names, ()), total_size=OSS_TOTAL - 1)
    )
    assert len(found.missing) == len(found.wrong_total) == 1


# As checkpoints call the language model and the rest: of LLaVA and Gemma 3, of Qwen2.5-VL, and newer ones.
SPELLINGS = {
    "first": (
        "language_model.model.",
        "language_model.lm_head.",
        ("vision_tower.a", "multi_modal_projector.b", "image_newline"),
    ),
    "old": ("model.", "lm_head.", ("visual.blocks.0.attn.qkv.weight",)),
    "new": ("model.language_model.", "lm_head.", ("model.visual.a", "model.multi_modal_projector.b")),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_of_a_multimodal_checkpoint_the_language_model_is_compared(spelling: str, tmp_path: Path) -> None:
    backbone, head, others = SPELLINGS[spelling]
    config = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}, "text_config": CONFIG}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    program = llmir.load(str(tmp_path / "config.json"))
    shapes = {n: tuple(f["shape"]) for n, f in stored(program).items()}
    renamed = {
        name.replace("model.", backbone, 1)
        if name.startswith("model.")
        else name.replace("lm_head.", head): s
        for name, s in shapes.items()
    }
    whole = header({**renamed, **dict.fromkeys(others, (3,))})
    found = llmir.check(program, safetensors(tmp_path / "m.safetensors", whole))
    assert found.agrees, str(found)
    assert (found.found_tensors, found.ignored_tensors) == (len(shapes), len(others))
    total = sum(t.bytes for t in weights.expected(program).values())
    for tower, agrees in ((6 * len(others), True), (-1, False)):
        names = {**renamed, **dict.fromkeys(others, (3,))}
        path = index(tmp_path / "i.json", names, total_size=total + tower)
        assert llmir.check(program, path).agrees == agrees
    del whole[next(name for name in renamed if "k_proj" in name)]
    broken = llmir.check(program, safetensors(tmp_path / "m.safetensors", whole))
    assert broken.missing == ("model.layers.0.self_attn.k_proj.weight",)
    alone = weights.compare(llmir.load(CONFIG), checkpoint.read(str(tmp_path / "m.safetensors")))
    assert set(others) <= set(alone.unexpected)
