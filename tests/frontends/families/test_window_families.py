"""Families with windows in patterns, norms in other places, caps and scales: what is particular to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.checkpoints.weights import expected
from llmir.frontends.families.gemma import rounded
from llmir.ir.core.op import OPS
from tests.flat import records

from .test_torch_counts import CONFIGS
from .window_cases import CASES

GEMMA_2, GEMMA_3 = CASES["gemma2, no caps"], CASES["gemma3, a window of 3"]
COHERE, COHERE_2 = CASES["cohere"], CASES["cohere2, a window of 3"]
SMOLLM, EXAONE = CASES["smollm3"], CASES["exaone4, a window of 3"]
OLMO_3 = CASES["olmo3, a window of 3"]
MISTRAL_4 = CASES["mistral4, longer, groups, a dense layer, halves rotated"]


def repeats(program: llmir.Program, graph: str = "main") -> list[tuple[str, int]]:
    return [(loop.body, loop.times) for loop in program[graph].loops.values()]


def test_gemma_3_holds_a_fifth_of_what_it_would_without_windows() -> None:
    """48 layers of 8 heads of 256: at 32k, 2.48 GB, where 48 global layers would have 12.9."""
    config = CONFIGS["Gemma-3-12B-text"]
    step: dict[str, Any] = {"batch": 1, "new": 1, "context": 32768}
    program = llmir.load(config)
    held = llmir.analyze(program, "h100-sxm", **records(llmir.analyze, **step)).kv_cache_bytes
    row = 2 * 8 * 256 * 2  # a token's keys and values in a layer
    assert held == row * (8 * 32769 + 40 * 1023)
    assert round(held / 1e9, 2) == 2.48
    assert program.kv_cache_bytes_per_later_token == 8 * row
    whole = llmir.load({**config, "layer_types": ["full_attention"] * 48})
    assert (
        round(llmir.analyze(whole, "h100-sxm", **records(llmir.analyze, **step)).kv_cache_bytes / 1e9, 1)
        == 12.9
    )


def test_periods_are_repeats_of_repeats() -> None:
    program = llmir.load({**CONFIGS["Gemma-3-12B-text"], "num_hidden_layers": 62})
    assert repeats(program) == [("period", 10), ("sliding_layer", 2)]
    assert repeats(program, "period") == [("sliding_layer", 5), ("full_layer", 1)]
    layers = {at.path: list(at.layers) for at in program.instances() if at.node.name == "q_proj"}
    assert layers["period.full_layer.q_proj"] == [5 + 6 * i for i in range(10)]
    assert layers["sliding_layer.q_proj"] == [60, 61]


def test_embeddings_are_scaled_as_the_models_type_has_it() -> None:
    """√3072 is 55.43; the nearest numbers of 8 and of 11 bits are 55.5 and 55.4375."""
    assert (rounded(3072**0.5, "bf16"), rounded(3072**0.5, "fp16")) == (55.5, 55.4375)
    for dtype, factor in (("bfloat16", 55.5), ("float16", 55.4375)):
        program = llmir.load({**GEMMA_2, "hidden_size": 3072, "torch_dtype": dtype})
        assert program["main"]["embedding_scale"].op == OPS["scale"](factor, block="embedding")


def test_a_layer_of_command_r_has_one_norm() -> None:
    names = [n.name for n in llmir.load(COHERE)["layer"].nodes if n.op.kind == "norm"]
    assert names == ["input_norm"]


REFUSED: list[tuple[dict[str, Any], str, object]] = [
    (GEMMA_3, "use_bidirectional_attention", True),
    (GEMMA_2, "hidden_activation", "xielu"),
    (GEMMA_3, "num_experts", 4),
    (COHERE, "hidden_act", "xielu"),
    (COHERE_2, "layer_switch", 3),
    (COHERE_2, "use_parallel_block", False),
    (COHERE_2, "position_embedding_type", "alibi"),
    (COHERE_2, "use_qk_norm", True),
    (OLMO_3, "clip_qkv", 8.0),
    (CASES["olmo2"], "clip_qkv", 8.0),
    (CASES["gemma"], "sliding_window", 8),
    (CASES["gemma"], "query_pre_attn_scalar", 12),
    (CASES["ministral3"], "num_experts", 4),
    (SMOLLM, "rms_norm_offset", 1.0),
    (EXAONE, "attention_bias", True),
    (MISTRAL_4, "head_dim", 4),
    (MISTRAL_4, "num_key_value_heads", 2),
    (CASES["granite"], "num_local_experts", 8),
    (CASES["arcee"], "partial_rotary_factor", 0.5),
    (CASES["bitnet"], "num_experts", 4),
    (CASES["bitnet"], "hidden_act", "xielu"),
    (CASES["seed-oss"], "sliding_window", 8),
]


@pytest.mark.parametrize(("config", "key", "value"), REFUSED, ids=[f"{r[1]}-{r[2]}" for r in REFUSED])
def test_what_changes_the_computation_is_refused_by_name(
    config: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError) as error:
        llmir.load({**config, key: value})
    assert str(error.value).startswith(f"$.{key}: ") and str(error.value).isprintable()


WRONG: list[tuple[dict[str, Any], dict[str, object], str]] = [
    (GEMMA_3, {"layer_types": ["full_attention"]}, "$.layer_types: 1 kinds for 8 layers"),
    (
        GEMMA_3,
        {"sliding_window_pattern": "LLLLLG"},
        "$.sliding_window_pattern: expected an integer from 1 to 2**48",
    ),
    (GEMMA_3, {"rope_parameters": {"rope_theta": 5.0}}, "$.rope_parameters.rope_theta: expected objects for"),
    (GEMMA_2, {"attn_logit_softcapping": -1}, "$.attn_logit_softcapping: expected a number above 0"),
    (GEMMA_2, {"query_pre_attn_scalar": 0}, "$.query_pre_attn_scalar: expected a number above 0"),
    (CASES["gemma"], {"num_key_value_heads": 3}, "$.num_key_value_heads: 3 does not divide 4"),
    (COHERE_2, {"sliding_window": 0}, "$.sliding_window: expected an integer from 1 to 2**48"),
    (CASES["olmo2"], {"rms_norm_eps": 0}, "$.rms_norm_eps: expected a number above 0, got 0"),
    (COHERE, {"logit_scale": None}, "$.logit_scale: expected a number above 0, got null"),
    (SMOLLM, {"no_rope_layers": [1, 0]}, "$.no_rope_layers: 2 numbers for 5 layers"),
    (
        EXAONE,
        {"sliding_window_pattern": "LG"},
        '$.sliding_window_pattern: expected an integer from 1 to 2**48, got "LG"',
    ),
    (OLMO_3, {"sliding_window": None}, "$.layer_types"),
    (MISTRAL_4, {"rope_parameters": {"rope_type": "default"}}, "$.rope_parameters.llama_4_scaling_beta: mis"),
    (MISTRAL_4, {"partial_rotary_factor": 0.25}, "$.rope_parameters.partial_rotary_factor: 0.5 contradicts"),
    (MISTRAL_4, {"qk_rope_head_dim": 8}, "$.partial_rotary_factor: 6 of 12 elements have positions; qk_rope"),
    (MISTRAL_4, {"num_experts_per_tok": 9}, "$.num_experts_per_tok: 9 is more than the 8 experts"),
    (CASES["helium"], {"head_dim": 8}, "$.head_dim: 4 heads of 8 are not the hidden size"),
    (CASES["bitnet"], {"head_dim": 8}, "$.head_dim: 4 heads of 8 are not the hidden size"),
    (CASES["hyperclovax"], {"use_post_norm": 1}, "$.use_post_norm: expected true or false, got 1"),
    (CASES["vaultgemma, a window of 3"], {"head_dim": 7}, "$.head_dim: rotary positions need an even head"),
]


@pytest.mark.parametrize(("config", "fields", "says"), WRONG, ids=[next(iter(w[1])) for w in WRONG])
def test_what_contradicts_is_one_line(config: dict[str, Any], fields: dict[str, object], says: str) -> None:
    if "sliding_window" in fields:  # kinds that say a window, and none stated
        fields = {**fields, "layer_types": ["sliding_attention"] * config["num_hidden_layers"]}
    with pytest.raises(ConfigError) as error:
        llmir.load({**config, **fields})
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_the_language_model_of_gemma_3_is_read_with_its_class_defaults() -> None:
    """As google/gemma-3-4b-it states it: heads, their size and the vocabulary are the class's own."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": text,
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    }
    program = llmir.load(whole)
    assert program.parameters == llmir.load(CONFIGS["Gemma-3-4B-text"]).parameters
    # What its checkpoint has beside that: SigLIP's tower, and a projection with its norm.
    assert 4_300_079_472 - program.parameters == 416_866_032 + 1152 * 2560 + 1152
    assert [note for note in program.notes if "num_attention_heads; 8 assumed" in note]


@pytest.mark.parametrize(
    ("name", "due"),
    {
        # What transformers' classes save of the real models, by shape and number of layers.
        "OLMo-2-7B": {"self_attn.q_norm": ((4096,), 32), "post_feedforward_layernorm": ((4096,), 32)},
        "Command-R-Plus": {"self_attn.q_norm": ((96, 128), 64), "self_attn.k_norm": ((8, 128), 64)},
        "Gemma-2-2B": {"pre_feedforward_layernorm": ((2304,), 26), "self_attn.q_proj": ((2048, 2304), 26)},
        "Arcee": {"mlp.up_proj": ((18432, 2560), 32), "mlp.down_proj": ((2560, 18432), 32)},
        "Phi-4-mini": {"self_attn.qkv_proj": ((5120, 3072), 32), "mlp.gate_up_proj": ((16384, 3072), 32)},
    }.items(),
)
def test_checkpoints_hold_what_transformers_saves(
    name: str, due: dict[str, tuple[tuple[int, ...], int]]
) -> None:
    found = expected(llmir.load(CONFIGS.get(name, name)))
    for module, (shape, layers) in due.items():
        shapes = [found[f"model.layers.{i}.{module}.weight"].shape for i in range(layers)]
        assert shapes == [shape] * layers
        assert f"model.layers.{layers}.{module}.weight" not in found


def test_a_picture_says_how_periods_repeat(tmp_path: Path) -> None:
    job = llmir.workload(llmir.load("gemma-3-27b"), "h100-sxm", batch=1, prompt=64, generate=2)
    llmir.draw(job, tmp_path / "gemma.dot", level="overview", phase="decode")
    text = (tmp_path / "gemma.dot").read_text("utf-8")
    words = ("10 × (5 × sliding · full) · 2 × sliding", "sliding_layer × 52", "full_layer × 10")
    assert all(f"{each}<" in text for each in words)
