"""Families with experts: what their checkpoints hold, and configs that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError
from llmir.frontends.checkpoints.weights import expected

from .expert_cases import SPARSE


def config(case: str, **changes: object) -> dict[str, Any]:
    return {**SPARSE[case], **changes}


GPT_OSS, LLAMA_4 = "gpt-oss, a window of 3 in the first layer", "llama-4, a window of 3 tokens as chunks"
ERNIE, MINIMAX, GLM = "ernie-4.5-moe", "minimax-m2", "glm-4.5, groups"
OLMOE, GRANITE, PHI = "olmoe", "granite-moe", "phi-3.5-moe, biases"


# As transformers' own classes have them, or as its conversions take them from published checkpoints.
@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (
            GPT_OSS,
            {
                "self_attn.sinks": (4,),
                "mlp.router.weight": (5, 24),
                "mlp.router.bias": (5,),
                "mlp.experts.gate_up_proj": (5, 24, 40),
                "mlp.experts.gate_up_proj_bias": (5, 40),
                "mlp.experts.down_proj": (5, 20, 24),
                "mlp.experts.down_proj_bias": (5, 24),
            },
        ),
        (
            LLAMA_4,
            {
                "feed_forward.router.weight": (5, 24),
                "feed_forward.experts.gate_up_proj": (5, 24, 40),
                "feed_forward.experts.down_proj": (5, 20, 24),
                "feed_forward.shared_expert.down_proj.weight": (24, 20),
            },
        ),
        (
            GRANITE,
            {
                "block_sparse_moe.router.layer.weight": (5, 24),
                "block_sparse_moe.input_linear.weight": (5, 40, 24),
                "block_sparse_moe.output_linear.weight": (5, 24, 20),
            },
        ),
        (
            MINIMAX,
            {
                "block_sparse_moe.e_score_correction_bias": (5,),
                "block_sparse_moe.gate.weight": (5, 24),
                "block_sparse_moe.experts.4.w1.weight": (20, 24),
                "block_sparse_moe.experts.4.w2.weight": (24, 20),
                "self_attn.q_norm.weight": (32,),
            },
        ),
        (GLM, {"mlp.gate.e_score_correction_bias": (8,), "mlp.shared_experts.up_proj.weight": (12, 24)}),
        (PHI, {"block_sparse_moe.gate.weight": (5, 24), "input_layernorm.bias": (24,)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_experts_lie_in_checkpoints_as_published(case: str, shapes: dict[str, tuple[int, ...]]) -> None:
    found = expected(llmir.load(SPARSE[case]))
    assert {name: found[f"model.layers.1.{name}"].shape for name in shapes} == shapes


def test_a_correction_is_in_fp32_and_no_parameter() -> None:
    program = llmir.load(SPARSE[MINIMAX])
    stored = expected(program)
    corrections = [t for name, t in stored.items() if name.endswith("e_score_correction_bias")]
    assert {t.dtype for t in corrections} == {"fp32"} and len(corrections) == 2
    assert program.parameters == sum(_count(t.shape) for t in stored.values()) - 2 * 5


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


WRONG: list[tuple[str, dict[str, object], str]] = [
    (GPT_OSS, {"num_experts_per_tok": 6}, "$.num_experts_per_tok: 6 is more than the 5 experts"),
    (GPT_OSS, {"layer_types": ["full_attention"]}, "$.layer_types: 1 kinds for 2 layers"),
    (
        GPT_OSS,
        {"layer_types": ["full_attention", "linear"]},
        '$.layer_types[1]: "linear" is not modelled; "sliding_attention" or "full_attention" is',
    ),
    (GPT_OSS, {"swiglu_limit": 0}, "$.swiglu_limit: expected a number above 0, got 0"),
    (GPT_OSS, {"hidden_act": "gelu"}, '$.hidden_act: "gelu" is not modelled'),
    (LLAMA_4, {"no_rope_layers": [1]}, "$.no_rope_layers: 1 places for 4 layers"),
    (LLAMA_4, {"moe_layers": ["1"]}, "$.moe_layers[0]: expected an integer from 0 to 2**48"),
    (LLAMA_4, {"attention_chunk_size": 0}, "$.attention_chunk_size: expected an integer from 1 to 2**48"),
    (OLMOE, {"clip_qkv": 8.0}, "$.clip_qkv: 8.0 is not modelled"),
    (OLMOE, {"num_local_experts": 4}, "$.num_local_experts: 4 contradicts num_experts 5"),
    (MINIMAX, {"attn_type_list": [0, 1]}, "$.attn_type_list: "),
    (MINIMAX, {"scoring_func": "softmax"}, '$.scoring_func: "softmax" is not modelled'),
    (MINIMAX, {"rotary_dim": 40}, "$.partial_rotary_factor: 5.0 of 8 elements are 40; expected 1 to all"),
    (ERNIE, {"moe_layer_end_index": -2}, "$.moe_layer_end_index: expected an integer from -1 to 2**48"),
    (ERNIE, {"moe_k": 9}, "$.num_experts_per_tok: 9 is more than the 5 experts"),
    (
        GLM,
        {"first_k_dense_replace": -1},
        "$.first_k_dense_replace: expected an integer from 0 to 2**48, got -1",
    ),
    (GRANITE, {"residual_multiplier": 0}, "$.residual_multiplier: expected a number above 0, got 0"),
    (PHI, {"num_experts_per_tok": 3}, "$.num_experts_per_tok: 3 is not modelled"),
]


@pytest.mark.parametrize(("case", "changes", "says"), WRONG, ids=[w[2] for w in WRONG])
def test_a_config_that_cannot_be_is_an_error_that_names_its_field(
    case: str, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load(config(case, **changes))
    assert str(error.value).startswith(says)


def test_absent_fields_are_those_of_the_classes() -> None:
    whole = llmir.load({**SPARSE[GPT_OSS], "num_hidden_layers": 5, "sliding_window": 128})
    said = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    assert (
        whole.graphs
        == llmir.load(
            {**config(GPT_OSS), "num_hidden_layers": 5, "layer_types": said, "sliding_window": 128}
        ).graphs
    )
    bare = {k: v for k, v in SPARSE[LLAMA_4].items() if k != "attention_chunk_size"}
    assert llmir.load(bare).graphs == llmir.load({**bare, "attention_chunk_size": 8192}).graphs


def test_the_language_model_of_a_published_llama_4_is_read() -> None:
    """Its config is nested, with an empty list of layers without positions and a number for true."""
    text = {k: v for k, v in SPARSE[LLAMA_4].items() if k != "architectures"}
    text |= {"no_rope_layers": [], "attn_temperature_tuning": 4, "for_llm_compressor": False}
    nested = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        **dict.fromkeys(("boi_token_index", "eoi_token_index", "image_token_index"), 3),
    }
    program = llmir.load(nested)
    assert program.graphs == llmir.load(SPARSE[LLAMA_4]).graphs
    assert "the language model alone is modelled" in program.notes[0]


@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_of_minimax_m2_add_up_squares_of_q_and_k_at_once(tp: int) -> None:
    """One sum of two numbers a token, and none counted twice where ranks share a key head (tp 4 of 2)."""
    whole = llmir.load(config(MINIMAX, num_attention_heads=8, num_key_value_heads=2), logits="all")
    sharded = llmir.run(whole, f"{llmir.pipeline_of()},shard{{tp={tp}}}")
    assert llmir.equivalent(whole, sharded, tolerance=1e-9)
    ops = [at.node.op.opcode for at in sharded.instances() if at.node.op.block == "norm"]
    assert "all_gather" not in ops
    assert ops.count("all_reduce") == ops.count("pair_squares") > 0


@pytest.mark.parametrize("passes", ["", "rotate,", "quantize{kv=fp8},"])
def test_one_kernel_precedes_minimax_m3_attention_to_blocks(passes: str) -> None:
    """As vLLM's `fused_minimax_m3_qknorm_rope_kv_insert`; products of the index are part of qkv's."""
    program = llmir.run(llmir.load("MiniMax-M3"), f"{passes}fuse-attention,fuse,dce")
    sparse = next(graph for name, graph in program.graphs.items() if name.startswith("sparse"))
    ops = [node.op.opcode for node in sparse.nodes if node.op.block in ("attention", "indexer")]
    run = [op for op in ops if op not in ("weight", "cache")]
    assert run == ["linear", "norm_rope_append_index", "block_scores", "linear"]
