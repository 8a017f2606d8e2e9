"""Models that keep states: what is read of their configs, what of wrong ones is said."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.base.errors import ConfigError
from llmir.frontends.checkpoints.weights import expected
from llmir.frontends.models.presets import PRESETS
from llmir.ir.ops.rope import Rotary

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


@pytest.mark.slow
def test_blocks_that_layers_share_are_one_tensor_each() -> None:
    """Which layers read as often as they run, and which all stages hold that run it."""
    program = llmir.load(CASES["zamba2"])
    of_layers = {**CASES["zamba2"], "layers_block_type": ["mamba", "hybrid", "mamba"], "num_hidden_layers": 3}
    mamba, hybrid = (
        llmir.load({**of_layers, "layers_block_type": ["mamba", kind, "mamba"]}).parameters
        for kind in ("mamba", "hybrid")
    )
    # Of each use its own: an adapter of rank 3 in and out, and a product of hidden² = 24².
    more = 3 * 24 + 2 * 3 * 20 + 24 * 24
    longest = {**CASES["zamba2"], "layers_block_type": ["mamba"] * 6}
    assert program.parameters == llmir.load(longest).parameters + hybrid - mamba + 2 * more
    for passes in ("unroll", "shard{tp=2}", "stages{pp=3}", "shard{tp=2},stages{pp=2}"):
        other = llmir.run(program, passes)
        assert other.parameters == program.parameters
        assert llmir.equivalent(program, other)
        if passes != "unroll":
            assert conservation(program, other).problems == ()
    step = llmir.analyze(program, "h100-sxm", batch=1, new=1, context=8)
    assert step.weight_bytes == 2 * program.parameters
    assert step.weight_bytes == llmir.analyze(llmir.run(program, "unroll"), "h100-sxm").weight_bytes
    sizes = (math.prod(tensor.shape) for tensor in expected(program).values())
    assert sum(sizes) == program.parameters


# MiniMax's own code and transformers' say the same in different words.
MINIMAX = {key: value for key, value in CASES["minimax"].items() if key not in ("layer_types", "model_type")}
MINIMAX |= {"architectures": ["MiniMaxM1ForCausalLM"], "attn_type_list": [0, 1, 0], "postnorm": True}
FACTORS = {"full_attention": "full_attn", "linear_attention": "linear_attn", "mlp": "mlp"}


@pytest.mark.parametrize("name", ["MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"])
def test_a_config_for_the_code_of_minimax_is_read_as_that_for_transformers(name: str) -> None:
    alphas = {f"layernorm_{old}_alpha": 3.5 for old in FACTORS}
    ours = {f"{new}_alpha_factor": 3.5 for new in FACTORS.values()}
    program = llmir.load({**MINIMAX, **alphas, "architectures": [name], "shared_intermediate_size": 0})
    assert program.graphs == llmir.load({**CASES["minimax"], **ours}).graphs
    part = llmir.load({**MINIMAX, "rotary_dim": 4})  # of heads of 8
    assert {at.node.op.size for at in part.instances() if isinstance(at.node.op, Rotary)} == {4}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"postnorm": False}, "$.postnorm: residuals before norms are not modelled; true is"),
        ({"attn_type_list": [0, 2, 0]}, "$.attn_type_list: expected 0 or 1 for each of 3 layers"),
        ({"shared_intermediate_size": 8}, "$.shared_intermediate_size: 8 is not modelled (a shared expert)"),
        ({"layernorm_mlp_beta": 0.5}, "$.layernorm_linear_attention_beta: 1.0 is not that of the MLP, 0.5"),
    ],
)
def test_a_wrong_field_of_minimaxs_code_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        llmir.load({**MINIMAX, **fields})


# What the released configs say beside what the classes of transformers read.
RELEASED: list[tuple[str, dict[str, object]]] = [
    ("Bamba-9B", {"attn_rotary_emb": 64, "mamba_dt_rank": 256, "mamba_chunk_size": 256}),
    ("Zamba2-1.2B", {"ffn_hidden_size": 8192, "kv_channels": 64, "mamba_headdim": 64}),
    ("Kimi-Linear-48B-A3B", {"head_dim": 72, "mla_use_nope": True, "moe_layer_freq": 1, "topk_group": 1}),
    ("Qwen3.5-27B", {"mlp_only_layers": [], "mamba_ssm_dtype": "float32", "attn_output_gate": True}),
]


@pytest.mark.parametrize(("name", "fields"), RELEASED, ids=[name for name, _ in RELEASED])
def test_what_released_configs_say_again_changes_nothing(name: str, fields: dict[str, object]) -> None:
    preset = PRESETS[name]
    assert llmir.load({**preset.config, **fields}).graphs == llmir.load(name).graphs


@pytest.mark.parametrize("kind", ["mamba", "falcon-mamba"])
def test_stated_channels_of_a_scan_go_before_the_factor(kind: str) -> None:
    """As in tiiuae/falcon-mamba-7b: `expand` is 16, `intermediate_size` is twice the hidden size."""
    both = {**CASES[kind], "expand": 16, "intermediate_size": 2 * CASES[kind]["hidden_size"]}
    assert llmir.load(both).graphs == llmir.load(CASES[kind]).graphs


# What transformers 5 saves for a Nemotron-H without experts.
WITHOUT_EXPERTS = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
    "moe_shared_expert_overlap": True,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 0,
    "mtp_layers_block_type": ["full_attention", "moe"],
}


def test_fields_of_experts_do_not_act_without_experts() -> None:
    expertless = {**CASES["nemotron-h"], "hybrid_override_pattern": "M-*M"}
    plain = {name: value for name, value in expertless.items() if "moe" not in name and "routed" not in name}
    assert llmir.load({**expertless, **WITHOUT_EXPERTS}).graphs == llmir.load(plain).graphs


def test_latent_experts_have_the_published_sizes() -> None:
    """LatentMoE (NVIDIA Nemotron 3 white paper): experts and dispatched rows have the latent width."""
    config = {**CASES["nemotron-h"], "hybrid_override_pattern": "E"}
    hidden, latent, count, width = config["hidden_size"], 10, config["n_routed_experts"], 12
    plain, small = llmir.load(config), llmir.load({**config, "moe_latent_size": latent})
    saved = 2 * count * width * (hidden - latent) - 2 * hidden * latent
    assert plain.parameters - small.parameters == saved
    for split in ("shard{tp=2}", "shard{ep=2,dp=2}"):
        sharded = llmir.run(small, split)
        assert llmir.check(sharded, small).agrees
    rows = [at.node.results[0].shape[-1] for at in small.instances() if at.node.op.opcode == "dispatch"]
    assert rows == [latent]


@pytest.mark.parametrize("family", ["Qwen3_5", "Qwen3_5Moe"])
def test_a_flat_config_may_name_the_multimodal_class(family: str) -> None:
    text = CASES["qwen3.5-moe" if "Moe" in family else "qwen3.5"]
    found = llmir.load({**text, "architectures": [f"{family}ForConditionalGeneration"]})
    assert found.graphs == llmir.load(text).graphs
    whole = {"architectures": [f"{family}ForConditionalGeneration"], "vision_config": {}}
    assert llmir.load({**whole, "text_config": text}).graphs == found.graphs


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3.5", {"linear_num_value_heads": 3}, "$.linear_num_value_heads: 3 is no multiple of 2 key heads"),
    ("qwen3.5", {"attn_output_gate": False}, "$.attn_output_gate: false is not modelled"),
    ("qwen3.5", {"mlp_only_layers": [0]}, "$.mlp_only_layers: a list is not modelled (dense layers"),
    ("qwen3.5", {"num_experts": 8}, "$.num_experts: 8 is not modelled"),
    ("qwen3.5", {"mamba_ssm_dtype": "bfloat16"}, '$.mamba_ssm_dtype: "bfloat16" is not modelled'),
    ("qwen3.5-moe", {"norm_topk_prob": False}, "$.norm_topk_prob: false is not modelled"),
    ("qwen3.5-moe", {"num_experts_per_tok": 6}, "$.num_experts_per_tok: 6 is more than the 5 experts"),
    ("mamba", {"intermediate_size": 0}, "$.intermediate_size: expected an integer from 1 to 2**48, got 0"),
    (
        "mamba",
        {"time_step_rank": "some"},
        '$.time_step_rank: expected an integer from 1 to 2**48, got "some"',
    ),
    ("mamba", {"hidden_act": "gelu"}, "$.hidden_act: expected silu or swish"),
    ("falcon-mamba", {"mixer_rms_eps": 0}, "$.mixer_rms_eps: expected a number above 0, got 0"),
    ("mamba2", {"n_groups": 4}, "$.n_groups: 4 does not divide 6 heads"),
    ("mamba2", {"head_dim": 9}, "$.num_heads: 6 of size 9 are not the 48 channels"),
    ("mamba2", {"time_step_limit": [0.0, 1.0]}, "$.time_step_limit: a list is not modelled"),
    ("bamba", {"mamba_d_head": 7}, "$.mamba_n_heads: 8 of size 7 are not the 64 channels"),
    ("bamba", {"mamba_n_groups": 3}, "$.mamba_n_groups: 3 does not divide 8 heads"),
    ("bamba", {"attn_rotary_emb": 3}, "$.attn_rotary_emb: 3 is not modelled"),
    ("falcon-h1", {"attn_layer_indices": [0]}, "$.attn_layer_indices: a list is not modelled"),
    ("zamba2", {"ffn_hidden_size": 7}, "$.ffn_hidden_size: 7 is not modelled"),
    ("jamba", {"mamba_dt_rank": 0}, "$.mamba_dt_rank: expected an integer from 1 to 2**48, got 0"),
    ("jamba", {"num_experts_per_tok": 6}, "$.num_experts_per_tok: 6 is more than the 5 experts"),
    ("nemotron-h", {"n_groups": 4}, "$.n_groups: 4 does not divide 6 heads"),
    ("nemotron-h", {"hybrid_override_pattern": "M?"}, '$.hybrid_override_pattern: "?" is no layer'),
    ("nemotron-h", {"mamba_proj_bias": True}, "$.mamba_proj_bias: true is not modelled (biases unlike"),
    ("nemotron-h", {"moe_latent_size": 0}, "$.moe_latent_size: expected an integer from 1 to 2**48, got 0"),
    ("falcon-h1", {"ssm_multipliers": [1.0]}, "$.ssm_multipliers: expected a list of 5 numbers"),
    ("granite-hybrid", {"position_embedding_type": "alibi"}, "$.position_embedding_type: "),
    ("granite-hybrid", {"layer_types": ["mamba"]}, "$.layer_types: 1 kinds for 3 layers"),
    ("minimax", {"block_size": 64}, "$.block_size: 64 is not modelled"),
    ("minimax", {"mlp_beta_factor": 0.5}, "$.linear_attn_beta_factor: 1.0 is not that of"),
    ("kimi-linear", {"mla_use_nope": False}, "$.mla_use_nope: false is not modelled"),
    ("kimi-linear", {"hidden_act": "situ"}, '$.hidden_act: "situ" is not modelled'),
    ("kimi-linear", {"linear_attn_config": {"gate_lower_bound": -5}}, "$.linear_attn_config.gate_lower"),
    ("kimi-linear", {"linear_attn_config": {"kda_layers": [1]}}, "$.linear_attn_config.kda_layers: with"),
    ("kimi-linear", {"num_experts_per_token": 9}, "$.num_experts_per_token: 9 is more than the 8 experts"),
    ("kimi-linear", {"mlp_layer_types": ["dense"]}, "$.mlp_layer_types: expected dense or sparse"),
    ("olmo-hybrid", {"linear_num_key_heads": 3}, "$.linear_num_value_heads: 4 is no multiple of 3 key heads"),
    ("lfm2", {"conv_L_cache": 0}, "$.conv_L_cache: expected an integer from 1 to 2**48, got 0"),
    ("lfm2", {"layer_types": ["conv", "mamba"]}, "$.layer_types: 2 kinds for 4 layers"),
    ("zamba2", {"layers_block_type": ["mamba"]}, "$.layers_block_type: 1 kinds for 6 layers"),
    ("zamba2", {"n_mamba_heads": 5}, "$.mamba_ngroups: 2 does not divide 5 heads"),
    ("zamba2", {"hybrid_layer_ids": [1]}, "$.hybrid_layer_ids: a list is not modelled"),
    ("zamba2", {"use_long_context": True}, "$.use_long_context: true is not modelled"),
    ("zamba2", {"attention_head_dim": 8}, "$.attention_head_dim: 8 is not modelled"),
    ("lfm2-moe", {"layer_types": None}, "$.layer_types: 0 kinds for 4 layers"),
    ("lfm2-moe", {"num_experts_per_tok": 7}, "$.num_experts_per_tok: 7 is more than the 6 experts"),
    ("qwen3-next", {"layer_types": ["conv"] * 3}, '$.layer_types[0]: "conv" is not modelled'),
]


@pytest.mark.parametrize(("case", "fields", "says"), WRONG, ids=[f"{w[0]}-{next(iter(w[1]))}" for w in WRONG])
def test_a_wrong_field_is_named(case: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load({**CASES[case], **fields})
    assert str(error.value).startswith(says) and str(error.value).isprintable()
