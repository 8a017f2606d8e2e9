"""Models that keep states: what is read of their configs, what of wrong ones is said."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.errors import ConfigError

from .state_cases import CASES

QWEN, QWEN_MOE = CASES["qwen3.5"], CASES["qwen3.5-moe"]
WHOLE = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vision_config": {}}


@pytest.mark.parametrize("text", [QWEN, QWEN_MOE], ids=["dense", "moe"])
def test_the_text_of_a_multimodal_config_is_the_same_model(text: dict[str, Any]) -> None:
    inner = {key: value for key, value in text.items() if key != "architectures"}
    program = llmir.load({**WHOLE, "text_config": inner, "_name_or_path": "model"})
    assert program.graphs == llmir.load(text).graphs
    assert program.facts["architecture"] == text["architectures"][0]
    assert "the language model alone is modelled, without vision_config" in program.notes


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3.5", {"linear_num_value_heads": 3}, "$.linear_num_value_heads: 3 is no multiple of 2 key heads"),
    ("qwen3.5", {"attn_output_gate": False}, "$.attn_output_gate: false is not modelled"),
    ("qwen3.5", {"mlp_only_layers": [0]}, "$.mlp_only_layers: a list is not modelled (dense layers"),
    ("qwen3.5", {"num_experts": 8}, "$.num_experts: 8 is not modelled"),
    ("qwen3.5", {"mamba_ssm_dtype": "bfloat16"}, '$.mamba_ssm_dtype: "bfloat16" is not modelled'),
    ("qwen3.5-moe", {"norm_topk_prob": False}, "$.norm_topk_prob: false is not modelled"),
    ("qwen3.5-moe", {"num_experts_per_tok": 6}, "$.num_experts_per_tok: 6 is more than the 5 experts"),
    ("qwen3-next", {"layer_types": ["conv"] * 3}, '$.layer_types[0]: "conv" is not modelled'),
]


@pytest.mark.parametrize(("case", "fields", "says"), WRONG, ids=[f"{w[0]}-{next(iter(w[1]))}" for w in WRONG])
def test_a_wrong_field_is_named(case: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load({**CASES[case], **fields})
    assert str(error.value).startswith(says) and str(error.value).isprintable()
