"""Families with gates, sinks, scales and choices of their own: what checkpoints hold, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.dtype import FP32
from llmir.ir.core.op import ExecutionPlace, infer
from llmir.ir.core.tensor import Tensor
from llmir.ir.ops import make

from .gate_cases import (
    AFMOE,
    APERTUS,
    AXK1,
    CASES,
    COHERE,
    EXAONE,
    FLINT,
    GRANITE,
    HUNYUAN,
    HY3,
    MELLUM,
    MIMO,
    SOLAR,
    YOUTU,
)

# Under the names of published checkpoints.
HELD: list[tuple[str, int, dict[str, tuple[int, ...]]]] = [
    (
        "afmoe, a window of 3",
        3,
        {
            "self_attn.gate_proj.weight": (32, 24),
            "mlp.expert_bias": (8,),
            "mlp.router.gate.weight": (8, 24),
            "mlp.experts.7.down_proj.weight": (24, 12),
            "mlp.shared_experts.up_proj.weight": (24, 24),
            "pre_mlp_layernorm.weight": (24,),
        },
    ),
    (
        "exaone-moe, a window of 3",
        1,
        {"mlp.e_score_correction_bias": (8,), "mlp.gate.weight": (8, 24), "self_attn.k_norm.weight": (8,)},
    ),
    (
        "apertus",
        1,
        {"mlp.act_fn.alpha_n": (1,), "mlp.up_proj.weight": (20, 24), "attention_layernorm.weight": (24,)},
    ),
    (
        "cohere2-moe, a window of 3, dense layers first, shared experts",
        0,
        {"mlp.gate_proj.weight": (28, 24), "input_layernorm.weight": (24,)},
    ),
    (
        "flint, a window of 3",
        2,
        {"self_attn.softmax_offset": (4,), "mlp.shared_expert.up_proj.weight": (1024, 24)},
    ),
    ("axk1", 1, {"post_mlp_layernorm.weight": (24,), "mlp.gate.e_score_correction_bias": (8,)}),
    (
        "hunyuan-moe",
        1,
        {
            "mlp.gate.wg.weight": (8, 24),
            "mlp.shared_mlp.up_proj.weight": (20, 24),
            "self_attn.query_layernorm.weight": (8,),
        },
    ),
    (
        "hy3",
        1,
        {
            "mlp.expert_bias": (8,),
            "mlp.router.gate.weight": (8, 24),
            "mlp.shared_mlp.down_proj.weight": (24, 12),
        },
    ),
    (
        "mimo-v2-flash, a window of 3",
        1,
        {
            "self_attn.attention_sink_bias": (4,),
            "self_attn.k_proj.weight": (24, 24),
            "self_attn.v_proj.weight": (12, 24),
            "self_attn.o_proj.weight": (24, 24),
            "mlp.gate.e_score_correction_bias": (8,),
        },
    ),
]


@pytest.mark.parametrize(("case", "layer", "shapes"), HELD, ids=[row[0] for row in HELD])
def test_checkpoints_hold_these(case: str, layer: int, shapes: dict[str, tuple[int, ...]]) -> None:
    found = expected(llmir.load(CASES[case]))
    assert {name: found[f"model.layers.{layer}.{name}"].shape for name in shapes} == shapes


REFUSED: list[tuple[dict[str, Any], str, object]] = [
    (AFMOE, "score_func", "softmax"),
    (AFMOE, "route_norm", False),
    (AFMOE, "num_expert_groups", 4),
    (AFMOE, "hidden_act", "relu2"),
    (EXAONE, "scoring_func", "softmax"),
    (EXAONE, "attention_bias", True),
    (APERTUS, "hidden_act", "silu"),
    (APERTUS, "qk_norm", False),
    (APERTUS, "mlp_bias", True),
    (AXK1, "topk_method", "greedy"),
    (HUNYUAN, "n_shared_experts", 2),
    (HY3, "n_group", 2),
    (COHERE, "expert_selection_fn", "relu"),
    (COHERE, "shared_expert_combination_strategy", "product"),
    (GRANITE, "num_local_experts", 8),
    (FLINT, "use_sliding_window", True),
    (MELLUM, "mlp_only_layers", [0]),
    (SOLAR, "partial_rotary_factor", 0.5),
    (SOLAR, "use_qk_norm", True),
    (YOUTU, "n_routed_experts", 8),
    (MIMO, "swa_v_head_dim", 8),
    (MIMO, "add_full_attention_sink_bias", True),
    (MIMO, "moe_layer_freq", [1, 1, 1, 1, 1, 1, 1]),
    (MIMO, "n_shared_experts", 1),
]


@pytest.mark.parametrize(("config", "key", "value"), REFUSED, ids=[f"{r[1]}-{r[2]}" for r in REFUSED])
def test_what_changes_the_computation_is_refused_by_name(
    config: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(UnsupportedError) as error:
        llmir.load({**config, key: value})
    assert str(error.value).startswith(f"$.{key}: ") and str(error.value).isprintable()


WRONG: list[tuple[dict[str, Any], dict[str, object], str]] = [
    (AFMOE, {"num_experts_per_tok": 9}, "$.num_experts_per_tok: 9 is more than the 8 experts"),
    (AFMOE, {"num_experts": None}, "$.num_experts: expected an integer from 1 to 2**48, got null"),
    (AFMOE, {"layer_types": ["sliding_attention"]}, "$.layer_types: 1 kinds for 6 layers"),
    (AFMOE, {"head_dim": 7}, "$.head_dim: rotary positions need an even head size"),
    (EXAONE, {"mlp_layer_types": ["dense"]}, "$.mlp_layer_types: expected dense or sparse for each of 5"),
    (APERTUS, {"num_key_value_heads": 3}, "$.num_key_value_heads: 3 does not divide 4 attention heads"),
    (AXK1, {"q_lora_rank": None}, "$.q_lora_rank: expected an integer from 1 to 2**48, got null"),
    (HUNYUAN, {"moe_topk": [2, 3]}, "$.moe_topk: expected a number above zero, the same in all layers"),
    (HUNYUAN, {"moe_topk": 9}, "$.num_experts_per_tok: 9 is more than the 8 experts"),
    (HUNYUAN, {"rope_scaling": {"type": "yarn", "alpha": 9.0}}, '$.rope_scaling.type: "yarn" is not'),
    (COHERE, {"num_experts_per_tok": 9}, "$.num_experts_per_tok: 9 is more than the 8 experts"),
    (COHERE, {"layer_types": ["full_attention"]}, "$.layer_types: 1 kinds for 6 layers"),
    (
        GRANITE,
        {"layer_rope_theta": [100.0]},
        "$.layer_rope_theta: expected a list of 5 numbers, got a list of 1",
    ),
    (
        GRANITE,
        {"layer_rope_theta": [0, 0, 0, 0, -1]},
        "$.layer_rope_theta[4]: expected a number above 0",
    ),
    (
        GRANITE,
        {"layer_rope_theta": [0, 0, 0, 0, [1]]},
        "$.layer_rope_theta[4]: expected a number above 0",
    ),
    (FLINT, {"mlp_only_layers": 3}, "$.mlp_only_layers: expected a list of integers, got 3"),
    (MELLUM, {"mlp_layer_types": ["dense"]}, "$.mlp_layer_types: expected dense or sparse for each of 4"),
    (MELLUM, {"rope_parameters": {"rope_theta": 9.0}}, "$.rope_parameters.rope_theta: expected objects for"),
    (HY3, {"router_scaling_factor": 0}, "$.router_scaling_factor: expected a number above 0, got 0"),
    (YOUTU, {"qk_rope_head_dim": 5}, "$.qk_rope_head_dim: rotary positions need an even size, got 5"),
    (MIMO, {"num_key_value_heads": 4}, "$.num_key_value_heads: twice 4 does not divide 4 attention heads"),
    (MIMO, {"hybrid_layer_pattern": [0, 1]}, "$.layer_types: 2 kinds for 7 layers"),
    (MIMO, {"partial_rotary_factor": 1.5}, "$.partial_rotary_factor: 1.5 of 12 elements are 18"),
    (EXAONE, {"num_shared_experts": 0}, "$.num_shared_experts: expected an integer from 1 to 2**48, got 0"),
]


@pytest.mark.parametrize(("config", "fields", "says"), WRONG, ids=[next(iter(w[1])) for w in WRONG])
def test_what_contradicts_is_one_line(config: dict[str, Any], fields: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load({**config, **fields})
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_the_released_mimo_reads_as_its_class_by_default() -> None:
    """Its config says windows, sinks and experts in the words of the code that it brings along."""
    spelled = {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "attention_chunk_size": 128,
        "add_swa_attention_sink_bias": True,
        "hidden_size": 4096,
        "hybrid_layer_pattern": [0, *([1] * 4 + [0]), *([1] * 5 + [0]) * 7],
        "layernorm_epsilon": 1e-5,
        "max_position_embeddings": 262144,
        "moe_layer_freq": [0] + [1] * 47,
        "num_attention_heads": 64,
        "num_hidden_layers": 48,
        "partial_rotary_factor": 0.334,
        "rope_theta": 5000000,
        "routed_scaling_factor": None,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "swa_num_key_value_heads": 8,
        "swa_rope_theta": 10000,
        "vocab_size": 152576,
    }
    program = llmir.load(spelled)
    assert program.parameters == 308_778_768_832  # transformers' own of the class
    flash = {
        n.op.mask
        for g in llmir.run(program, "fuse-attention").graphs.values()
        for n in g.nodes
        if "flash" in n.op.opcode
    }
    assert flash == {"causal", "window(129)"}


def test_xielu_is_a_parabola_above_0_and_an_exponential_below() -> None:
    """arXiv:2411.13010, equation 8: of numbers 0, whose softplus is ln 2, with a slope of 1/2 at 0."""
    x, zero = np.array([-1.0, -1e-4, 0.0, 1e-4, 2.0]), np.zeros(1)
    op, types = make("xielu"), tuple(Tensor(a.shape, FP32) for a in (x, zero, zero))
    (found,) = op.evaluate((x, zero, zero), infer(op, types), ExecutionPlace())
    due = [np.exp(-1) * (np.log(2) + 0.5) - 0.5, -5e-5, 0, 5e-5, 4 * np.log(2) + 1]
    assert np.allclose(found, due, atol=2e-6)
