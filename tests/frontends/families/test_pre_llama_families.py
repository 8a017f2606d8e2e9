"""Families before Llama: what their checkpoints hold, and what their configs say and contradict."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError, UnsupportedError
from llmir.frontends.checkpoints.weights import expected

from .pre_llama_cases import OLDER

# How many tensors a published checkpoint has, and some of them, buffers apart.
STORED: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "openai-community/gpt2": (
        148,
        {
            "transformer.wpe.weight": (1024, 768),
            "transformer.h.0.attn.c_attn.weight": (768, 2304),
            "transformer.h.0.attn.c_attn.bias": (2304,),
            "transformer.h.11.mlp.c_fc.weight": (768, 3072),
            "transformer.h.11.mlp.c_proj.weight": (3072, 768),
        },
    ),
    "EleutherAI/gpt-j-6b": (
        285,
        {"transformer.h.27.mlp.fc_in.weight": (16384, 4096), "lm_head.bias": (50400,)},
    ),
    "bigcode/starcoder": (
        484,
        {"transformer.h.3.attn.c_attn.weight": (6400, 6144), "transformer.h.3.attn.c_attn.bias": (6400,)},
    ),
    "facebook/opt-13b": (
        644,
        {
            "model.decoder.embed_positions.weight": (2050, 5120),
            "model.decoder.layers.39.fc2.weight": (5120, 20480),
            "model.decoder.layers.39.self_attn.out_proj.bias": (5120,),
        },
    ),
    "EleutherAI/pythia-6.9b": (
        388,
        {
            "gpt_neox.layers.5.attention.query_key_value.weight": (12288, 4096),
            "embed_out.weight": (50432, 4096),
        },
    ),
    "bigscience/bloom-7b1": (
        365,
        {
            "transformer.word_embeddings_layernorm.bias": (4096,),
            "transformer.h.29.self_attention.query_key_value.bias": (12288,),
        },
    ),
    "tiiuae/falcon-40b": (
        483,
        {
            "transformer.h.7.self_attention.query_key_value.weight": (9216, 8192),
            "transformer.h.7.ln_mlp.bias": (8192,),
        },
    ),
    "databricks/dbrx-instruct": (
        323,
        {
            "transformer.blocks.0.ffn.experts.mlp.w2": (172032, 6144),
            "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight": (8192, 6144),
            "transformer.blocks.39.ffn.router.layer.weight": (16, 6144),
        },
    ),
    "mosaicml/mpt-7b": (194, {"transformer.blocks.31.attn.Wqkv.weight": (12288, 4096)}),
}


@pytest.mark.parametrize("name", STORED)
def test_a_published_checkpoint_has_the_tensors_that_are_expected(name: str) -> None:
    count, some = STORED[name]
    found = expected(llmir.load(name))
    assert len(found) == count
    assert {tensor: found[tensor].shape for tensor in some} == some


REFUSED: list[tuple[str, str, object]] = [
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "activation_function", "mish"),
    ("gpt2", "add_cross_attention", True),
    ("opt", "word_embed_proj_dim", 12),
    ("opt", "do_layer_norm_before", False),
    ("opt", "_remove_final_layer_norm", True),
    ("bloom", "apply_residual_connection_post_layernorm", True),
    ("falcon", "num_ln_in_parallel_attn", 2),
    ("falcon, new architecture", "parallel_attn", False),
    ("falcon, new architecture", "num_ln_in_parallel_attn", 3),
    ("stablelm", "qk_layernorm", True),
    ("starcoder2", "mlp_type", "gated"),
    ("mpt", "no_bias", False),
    ("mpt", "expansion_ratio", 3),
    ("mpt", "logit_scale", 0.5),
]


@pytest.mark.parametrize(("case", "key", "value"), REFUSED)
def test_what_acts_and_is_not_modelled_is_refused_by_name(case: str, key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=rf"^\$\.{key}: .* is not modelled"):
        llmir.load({**OLDER[case], key: value})
    assert any(key in note for note in llmir.load({**OLDER[case], key: value}, lenient=True).notes)


@pytest.mark.parametrize("key", ["alibi", "prefix_lm", "qk_ln", "attn_type", "kv_n_heads"])
def test_what_the_attention_of_mpt_has_not_is_refused_where_it_stands(key: str) -> None:
    value: object = {"alibi": False, "attn_type": "grouped_query_attention", "kv_n_heads": 2}.get(key, True)
    with pytest.raises(UnsupportedError, match=rf"^\$\.attn_config\.{key}: "):
        llmir.load({**OLDER["mpt"], "attn_config": {key: value}})


@pytest.mark.parametrize(
    ("case", "fields", "says"),
    [
        ("gptj", {"rotary_dim": 5}, "$.rotary_dim: expected an even number, got 5"),
        ("gptj", {"rotary_dim": 8}, "$.rotary_dim: expected an integer from 2 to 6, got 8"),
        ("gpt2", {"n_head": 5}, "$.n_head: 5 does not divide hidden_size 24, and there is no head_dim"),
        ("gpt2", {"n_embd": None}, "$.n_embd: expected an integer from 1 to 2**48, got null"),
        (
            "falcon, new architecture",
            {"num_kv_heads": 3},
            "$.num_kv_heads: 3 does not divide 4 attention heads",
        ),
        ("gpt_neox", {"rotary_pct": 0.01}, "$.rotary_pct: 0.01 of 6 elements are 0; expected 1 to all"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_field_as_it_is_spelled(
    case: str, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load({**OLDER[case], **fields})
    assert str(error.value) == says


def test_either_spelling_of_a_field_is_read() -> None:
    """As transformers' attribute_map has it; both at once are one too many."""
    own = OLDER["gpt2"]
    other = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    renamed: dict[str, Any] = {other.get(key, key): value for key, value in own.items()}
    assert llmir.load(renamed).graphs == llmir.load(own).graphs
    with pytest.raises(UnsupportedError, match=r"^\$\.hidden_size: 24 is not modelled \(unknown"):
        llmir.load({**own, "hidden_size": 24})


def test_a_size_that_the_family_fills_in_is_noted() -> None:
    sparse = {key: value for key, value in OLDER["gpt2"].items() if key != "n_positions"}
    assert "config names no n_positions; 1024 assumed" in llmir.load(sparse).notes


def test_caches_hold_each_group_of_falcon_once() -> None:
    """40B: 60 layers, 8 groups of keys and values of 64 elements; 7B has one."""
    assert llmir.load("falcon-40b").kv_cache_bytes_per_token == 2 * 60 * 8 * 64 * 2
    assert llmir.load("falcon-7b").kv_cache_bytes_per_token == 2 * 32 * 64 * 2


@pytest.mark.parametrize("name", ["gpt-j-6b", "falcon-40b", "pythia-6.9b", "phi-2"])
def test_attention_and_mlp_side_by_side_are_summed_over_ranks_once(name: str) -> None:
    """As GPT-J's authors and Megatron do: half the collectives of layers one after the other."""
    program = llmir.run(llmir.load(name), "fuse-attention,fuse,shard{tp=4}")
    assert [n.op.opcode for n in program["layer"].nodes if n.op.kind == "collective"] == ["all_reduce"]


TINY: dict[str, object] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "vocab_size": 13,
    "torch_dtype": "bfloat16",
}


def test_each_layer_of_decilm_has_its_own_heads_of_keys_and_values() -> None:
    config = {**TINY, "architectures": ["DeciLMForCausalLM"], "num_key_value_heads_per_layer": [4, 2, 1]}
    program = llmir.load(config)
    assert program.kv_cache_bytes_per_token == 2 * 2 * 6 * (4 + 2 + 1)
    whole = llmir.load({**TINY, "architectures": ["LlamaForCausalLM"]})
    assert whole.parameters - program.parameters == 2 * 24 * 6 * (0 + 2 + 3)
    assert llmir.equivalent(program, llmir.run(program, "fuse-attention,fuse,unroll"))
    for groups, says in (([4, 2], "2 numbers for 3 layers"), ([4, 3, 1], "3 does not divide 4")):
        with pytest.raises(ConfigError, match=says):
            llmir.load({**config, "num_key_value_heads_per_layer": groups})


@pytest.mark.parametrize(
    ("architecture", "like"),
    [("AquilaModel", "LlamaForCausalLM"), ("XverseForCausalLM", "LlamaForCausalLM")],
)
def test_a_class_of_llamas_shape_is_llama(architecture: str, like: str) -> None:
    own, other = (llmir.load({**TINY, "architectures": [name]}) for name in (architecture, like))
    assert own.graphs == other.graphs


def test_what_is_stored_of_own_code_is_by_its_names() -> None:
    found = expected(llmir.load("internlm2-7b"))
    assert len(found) == 32 * 7 + 3
    assert found["model.layers.0.attention.wqkv.weight"].shape == (6144, 4096)
    assert found["output.weight"].shape == found["model.tok_embeddings.weight"].shape == (92544, 4096)
    assert expected(llmir.load("baichuan2-13b"))["model.layers.39.self_attn.W_pack.weight"].shape == (
        15360,
        5120,
    )


@pytest.mark.parametrize(("name", "mask"), [("baichuan2-7b", "causal"), ("baichuan2-13b", "alibi(1)")])
def test_baichuan_has_alibi_where_it_is_wide(name: str, mask: str) -> None:
    [masked] = [n.op for n in llmir.load(name)["layer"].nodes if n.op.opcode == "attention_mask"]
    assert getattr(masked, "mask", "") == mask
