"""What a family reads of a config, what it assumes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.errors import ConfigError, UnsupportedError
from llmir.ops.rope import Rotary

from .commands import TINY

QWEN = {**TINY, "head_dim": 16, "architectures": ["Qwen3ForCausalLM"]}
MOE = {
    **QWEN,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
# The defaults of transformers' LlamaConfig, Qwen2Config, Qwen3Config and Qwen3MoeConfig.
POSITIONS = {
    "LlamaForCausalLM": 2048,
    "Qwen2ForCausalLM": 32768,
    "Qwen3ForCausalLM": 32768,
    "Qwen3MoeForCausalLM": 32768,
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


@pytest.mark.parametrize("architecture", POSITIONS)
def test_positions_that_no_config_states_are_no_fact(architecture: str) -> None:
    config = without(MOE, "max_position_embeddings", *(() if "Moe" in architecture else ("num_experts",)))
    program = llmir.load({**config, "architectures": [architecture]})
    assert "positions" not in program.facts
    job = llmir.workload(program, "h100-sxm", prompt=10**6, generate=2)
    assert not [note for note in job.notes if "positions" in note]


@pytest.mark.parametrize("kind", ["dynamic", "yarn"])
@pytest.mark.parametrize("architecture", POSITIONS)
def test_a_stretch_starts_from_the_positions_of_the_family(architecture: str, kind: str) -> None:
    config = without(MOE, "max_position_embeddings", *(() if "Moe" in architecture else ("num_experts",)))
    scaled = {"rope_scaling": {"rope_type": kind, "factor": 4.0}, "architectures": [architecture]}
    program = llmir.load({**config, **scaled})
    ropes = [at.node.op for at in program.instances() if isinstance(at.node.op, Rotary)]
    assert ropes and {rope.factors[1] for rope in ropes} == {POSITIONS[architecture]}


@pytest.mark.parametrize("config", [TINY, MOE], ids=["dense", "moe"])
def test_layers_beyond_reason_are_one_line(config: dict[str, Any]) -> None:
    for layers in (10_001, 2**47):
        with pytest.raises(ConfigError, match=f"^.\\.num_hidden_layers: .* up to 10,000, got {layers}$"):
            llmir.load({**config, "num_hidden_layers": layers})


ACTING: list[tuple[dict[str, Any], str, object]] = [
    *((TINY, key, 50.0) for key in ("attn_logit_softcapping", "final_logit_softcapping")),
    (TINY, "kv_lora_rank", 512),
    (TINY, "attention_chunk_size", 8192),
    (TINY, "use_qk_norm", True),
    (TINY, "no_rope_layers", [1, 1, 1, 0]),
    *((TINY, key, 0.5) for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling")),
    (TINY, "attention_multiplier", 1.0),  # heads of 16 have 0.25
    (TINY, "query_pre_attn_scalar", 256),
    *((TINY, key, 8) for key in ("num_experts", "num_local_experts", "n_routed_experts")),
    (QWEN, "num_experts", 8),
    (TINY, "sliding_window", 4096),
    (MOE, "shared_expert_intermediate_size", 64),
]


@pytest.mark.parametrize(("config", "key", "value"), ACTING, ids=[a[1] for a in ACTING])
def test_what_changes_the_computation_is_refused_by_name(
    config: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError) as error:
        llmir.load({**config, key: value})
    assert str(error.value).startswith(f"$.{key}: ") and str(error.value).isprintable()
    assert [n for n in llmir.load({**config, key: value}, lenient=True).notes if f"$.{key}" in n]


NEUTRAL: list[tuple[dict[str, Any], dict[str, object]]] = [
    (TINY, dict.fromkeys(key for config, key, _ in ACTING if config is TINY)),
    (TINY, dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)),
    (TINY, {"attention_multiplier": 0.25, "query_pre_attn_scalar": 16, "use_qk_norm": False}),
    (TINY, dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank"), 0)),
    (QWEN, {"sliding_window": 4096, "use_sliding_window": False}),
    # As Qwen3-Coder-30B-A3B-Instruct has them.
    (MOE, {"use_qk_norm": True, "shared_expert_intermediate_size": 0}),
]


@pytest.mark.parametrize(("config", "fields"), NEUTRAL)
def test_what_changes_nothing_is_read_without_a_note(
    config: dict[str, Any], fields: dict[str, object]
) -> None:
    assert llmir.load({**config, **fields}).notes == ()


@pytest.mark.parametrize(
    ("config", "key", "default"),
    [
        ({**TINY, "architectures": ["Qwen2ForCausalLM"]}, "num_key_value_heads", 32),
        (QWEN, "num_key_value_heads", 32),
        (QWEN, "head_dim", 128),
        (MOE, "num_key_value_heads", 4),
        (MOE, "num_experts", 128),
        (MOE, "num_experts_per_tok", 8),
        (MOE, "moe_intermediate_size", 768),
    ],
)
def test_a_size_that_the_family_fills_in_is_noted(config: dict[str, Any], key: str, default: int) -> None:
    config = {**config, "num_attention_heads": 32}
    program = llmir.load(without({**config, "hidden_size": 512}, key))
    assert program.notes == (f"config names no {key}; {default} assumed",)
    assert llmir.load({**config, "hidden_size": 512, key: default}).notes == ()


def test_the_config_of_a_picture_model_is_unsupported_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"^\$\._class_name: FluxTransformer2DModel is not supported"):
        llmir.load({"_class_name": "FluxTransformer2DModel", "num_layers": 19})
    assert llmir.load({**TINY, "_class_name": "x"}).facts["architecture"] == "LlamaForCausalLM"


def test_a_kind_of_layer_that_is_not_modelled_is_named_with_its_place() -> None:
    config = {**TINY, "layer_types": ["full_attention", "sliding_attention"]}
    says = r'^\$\.layer_types\[1\]: "sliding_attention" is not modelled; "full_attention" is$'
    with pytest.raises(UnsupportedError, match=says):
        llmir.load(config)
    assert "sliding_attention" in llmir.load(config, lenient=True).notes[0]
