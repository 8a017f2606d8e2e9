"""Families whose queries see chosen or compressed keys: what they hold, and configs that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.base.errors import ConfigError
from llmir.frontends.checkpoints.weights import expected
from llmir.frontends.models.presets import PRESETS

from .sparse_attention_cases import CASES

GLM, DEEPSEEK, MINIMAX = "glm-5", "deepseek-v4", "minimax-m3"


def config(case: str, **changes: object) -> dict[str, Any]:
    return {**CASES[case], **changes}


# As transformers' own classes have them, with experts one by one as checkpoints do.
@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (
            GLM,
            {
                "self_attn.indexer.wq_b.weight": (128, 10),
                "self_attn.indexer.wk.weight": (8, 24),
                "self_attn.indexer.k_norm.bias": (8,),
                "self_attn.indexer.weights_proj.weight": (16, 24),
                "self_attn.kv_a_proj_with_mqa.weight": (12, 24),
                "mlp.experts.7.down_proj.weight": (24, 12),
            },
        ),
        (
            MINIMAX,
            {
                "self_attn.index_q_proj.weight": (12, 24),
                "self_attn.index_k_norm.weight": (6,),
                "block_sparse_moe.e_score_correction_bias": (5,),
                "block_sparse_moe.experts.4.w2.weight": (24, 12),
                "block_sparse_moe.shared_experts.up_proj.weight": (14, 24),
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_lie_in_checkpoints_as_the_class_has_them(
    case: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    found = expected(llmir.load(CASES[case]))
    assert {name: found[f"model.layers.2.{name}"].shape for name in shapes} == shapes


def test_the_tensors_of_deepseek_v4_are_those_that_transformers_converts() -> None:
    found = expected(llmir.load(CASES[DEEPSEEK]))
    shapes = {
        "embed.weight": (13, 24),
        "hc_head_fn": (3, 72),
        "layers.0.attn.wq_a.weight": (10, 24),
        "layers.0.attn.wq_b.weight": (32, 10),
        "layers.0.attn.wkv.weight": (8, 24),
        "layers.0.attn.wo_a.weight": (10, 16),
        "layers.0.attn.wo_b.weight": (24, 10),
        "layers.0.attn.attn_sink": (4,),
        "layers.0.ffn.gate.tid2eid": (13, 3),
        "layers.0.hc_attn_fn": (15, 72),
        "layers.0.hc_ffn_base": (15,),
        "layers.0.hc_ffn_scale": (3,),
        "layers.1.attn.compressor.wkv.weight": (8, 24),
        "layers.1.attn.compressor.ape": (3, 8),
        "layers.2.attn.compressor.wgate.weight": (16, 24),
        "layers.2.attn.compressor.ape": (2, 16),
        "layers.2.attn.compressor.norm.weight": (8,),
        "layers.2.attn.indexer.wq_b.weight": (128, 10),
        "layers.2.attn.indexer.compressor.ape": (2, 16),
        "layers.3.ffn.gate.bias": (8,),
        "layers.3.ffn.experts.7.w2.weight": (24, 12),
        "layers.3.ffn.shared_experts.w1.weight": (12, 24),
    }
    assert {name: found[name].shape for name in shapes} == shapes


WRONG: list[tuple[str, dict[str, object], str]] = [
    (GLM, {"indexer_types": ["full", "shared", "full"]}, '$.indexer_types[1]: "shared" is not modelled'),
    (GLM, {"index_topk_freq": 4}, "$.index_topk_freq: 4 is not modelled (keys that another layer's indexer"),
    (GLM, {"index_topk_pattern": "FSF"}, '$.index_topk_pattern: "FSF" is not modelled'),
    (GLM, {"mlp_layer_types": ["dense"]}, "$.mlp_layer_types: expected dense or sparse for each of 3 layers"),
    (GLM, {"q_lora_rank": None}, "$.q_lora_rank: expected an integer from 1 to 2**48, got null"),
    (GLM, {"index_topk": 0}, "$.index_topk: expected an integer from 1 to 2**48, got 0"),
    (MINIMAX, {"index_n_heads": 4}, "$.index_n_heads: 4 heads for 2 key/value heads, which need one each"),
    (MINIMAX, {"index_local_blocks": 3}, "$.index_local_blocks: 3 is more than the 2 blocks"),
    (MINIMAX, {"index_local_blocks": 0}, "$.index_local_blocks: expected an integer from 1 to 2**48, got 0"),
    (MINIMAX, {"layer_types": ["sliding_attention"] * 3}, '$.layer_types[0]: "sliding_attention" is not mod'),
    (MINIMAX, {"mlp_layer_types": ["moe"] * 3}, "$.mlp_layer_types: expected dense or sparse for each of 3"),
    (MINIMAX, {"use_gemma_norm": False}, "$.use_gemma_norm: false is not modelled"),
    (DEEPSEEK, {"o_groups": 3}, "$.o_groups: 3 groups do not divide 4 heads"),
    (DEEPSEEK, {"layer_types": ["full_attention"] * 4}, '$.layer_types[0]: "full_attention" is not modelled'),
    (DEEPSEEK, {"layer_types": ["sliding_attention"]}, "$.layer_types: 1 kinds for 4 layers"),
    (DEEPSEEK, {"compress_ratios": [4, 3, 0, 0]}, "$.compress_ratios: expected 0, 4 or 128 for each of 4"),
    (
        DEEPSEEK,
        {"mlp_layer_types": ["dense"] * 4},
        "$.mlp_layer_types: expected hash_moe or moe for each of 4",
    ),
    (DEEPSEEK, {"scoring_func": "softmax"}, '$.scoring_func: "softmax" is not modelled'),
    (DEEPSEEK, {"num_key_value_heads": 2}, "$.num_key_value_heads: 2 is not modelled"),
    (DEEPSEEK, {"hc_mult": 0}, "$.hc_mult: expected an integer from 1 to 2**48, got 0"),
    (DEEPSEEK, {"swiglu_limit": None}, "$.swiglu_limit: expected a number above 0, got null"),
    (DEEPSEEK, {"compress_rate_hca": 1}, "$.compress_rate_hca: expected an integer from 2 to 2**48, got 1"),
    (DEEPSEEK, {"rope_scaling": {"type": "llama4"}}, '$.rope_scaling.type: "llama4" is not modelled'),
]


@pytest.mark.parametrize(("case", "changes", "says"), WRONG, ids=[w[2] for w in WRONG])
def test_a_config_that_cannot_be_is_an_error_that_names_its_field(
    case: str, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load(config(case, **changes))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_glm_5_keeps_latents_and_an_index_of_each_token() -> None:
    program = llmir.load("GLM-5")
    assert program.kv_cache_bytes_per_token == 78 * 2 * (512 + 64 + 128)
    assert round(program.active_parameters / 1e9) == 42  # the publisher says 40B, without embeddings
    step = llmir.analyze(llmir.run(program, llmir.pipeline_of()), "h200", batch=1, new=1, context=32768)
    assert step.bytes_by_role["kv_cache_read_bytes"] == 2 * 78 * (2048 * 576 + 32769 * 128)


@st.composite
def compressed_models(draw: st.DrawFn) -> dict[str, Any]:
    """A small DeepSeek-V4, whose heads and experts four ranks can share."""
    layers = draw(st.integers(2, 4))
    kinds = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")

    def each(words: tuple[str, ...]) -> list[str]:
        return draw(st.lists(st.sampled_from(words), min_size=layers, max_size=layers))

    return config(
        DEEPSEEK,
        num_hidden_layers=layers,
        vocab_size=8,
        torch_dtype="float32",
        num_attention_heads=8,
        head_dim=draw(st.sampled_from((4, 8))),
        o_groups=draw(st.sampled_from((2, 4, 8))),
        sliding_window=draw(st.integers(1, 5)),
        index_topk=draw(st.integers(1, 3)),
        index_head_dim=8,
        hc_mult=draw(st.integers(1, 3)),
        layer_types=each(kinds),
        mlp_layer_types=each(("hash_moe", "moe")),
        compress_rates={kind: draw(st.integers(2, 4)) for kind in kinds[1:]},
    )


@pytest.mark.slow
@settings(max_examples=20)
@given(
    compressed_models(),
    st.sampled_from(
        (
            *("shard{tp=2}", "shard{tp=4, sp=1}", "shard{dp=2, ep=2}", "shard{tp=2, dp=2, ep=4}"),
            *("stages{pp=2}", "stages{pp=2, micro_batches=2},shard{tp=2}", "unroll", "absorb-mla"),
        )
    ),
    st.sampled_from(("", "fuse", llmir.pipeline_of())),
)
def test_passes_keep_what_compressed_models_mean(config: dict[str, Any], step: str, others: str) -> None:
    program = llmir.load(config, logits="all")
    after = llmir.run(program, [others, step])
    assert llmir.equivalent(program, after)
    assert llmir.parse_program(llmir.print_program(after)) == after


@pytest.mark.slow
@settings(max_examples=10)
@given(compressed_models(), st.sampled_from(("fuse", "unroll")))
def test_quantized_and_then_rewritten_is_quantized(config: dict[str, Any], step: str) -> None:
    narrow = llmir.run(llmir.load(config), "quantize{weights=fp8, activations=fp8, kv=fp8}")
    assert llmir.equivalent(narrow, llmir.run(narrow, step))


def test_deepseek_v4_has_the_parameters_of_the_class_and_caches_entries() -> None:
    program = llmir.load("DeepSeek-V4-Flash")
    assert program.parameters == 284_325_869_015
    assert round(program.active_parameters / 1e9, 1) == 13.8  # the publisher says 13B, without embeddings
    context = 1 << 20
    step = llmir.analyze(program, "h200", batch=1, new=1, context=context)
    window, heavy, sparse = 43 * 127 * 512, 23 * 512, 20 * (512 + 128)
    entries = heavy * (context // 128) + sparse * (context // 4)
    waiting = 2 * 23 * 512 * 1 + 2 * 20 * 2 * (512 + 128) * (4 + 1)  # rows of entries to come
    assert step.kv_cache_bytes == 2 * (window + entries + waiting)
    assert step.bytes_by_role["kv_cache_read_bytes"] < step.kv_cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize("context", [7, 8, 4096, 4098])
def test_each_op_of_deepseek_v4_is_priced_whether_an_entry_ends_or_not(context: int) -> None:
    program = llmir.run(llmir.load("DeepSeek-V4-Flash"), [llmir.pipeline_of(), "shard{tp=8, ep=8}"])
    step = llmir.analyze(program, "h100-sxm", batch=8, new=1, context=context)
    ops = [op for op in step.ops if op.kind != "overhead"]
    assert all(op.basis and op.time_s > 0 for op in ops) and 0.002 < step.time_s < 0.05


@st.composite
def block_models(draw: st.DrawFn) -> dict[str, Any]:
    """A small MiniMax-M3, whose heads two ranks can share."""
    return config(
        MINIMAX,
        vocab_size=8,
        torch_dtype="float32",
        num_local_experts=4,
        shared_intermediate_size=16,
        num_attention_heads=draw(st.sampled_from((4, 8))),
        index_block_size=draw(st.integers(1, 4)),
        index_topk_blocks=draw(st.integers(2, 3)),
        index_local_blocks=draw(st.integers(1, 2)),
    )


@pytest.mark.slow
@settings(max_examples=15)
@given(
    block_models(),
    st.sampled_from(
        (
            *("shard{tp=2}", "shard{tp=2, sp=1}", "shard{dp=2, ep=2}", "shard{tp=4, dp=2, ep=4}", "unroll"),
            "stages{pp=3},shard{tp=2}",
        )
    ),
    st.sampled_from(("", "fuse-attention", llmir.pipeline_of())),
)
def test_passes_keep_what_attention_to_blocks_means(config: dict[str, Any], step: str, others: str) -> None:
    program = llmir.load(config, logits="all")
    after = llmir.run(program, [others, step])
    assert llmir.equivalent(program, after)
    assert llmir.parse_program(llmir.print_program(after)) == after


def test_minimax_m3_reads_the_blocks_that_it_chooses_and_all_of_the_index() -> None:
    """Of its class on the meta device, 3 layers dense and full, 57 of the others: 426,174,565,632."""
    program = llmir.load("MiniMax-M3")
    assert program.parameters == 426_174_565_632
    program = llmir.run(program, llmir.pipeline_of())
    step = llmir.analyze(program, "h200", batch=1, new=1, context=131071)
    each = 2 * 4 * 128 * 2
    due = each * (3 * 131072 + 57 * 16 * 128) + 57 * 131072 * 128 * 2
    assert step.bytes_by_role["kv_cache_read_bytes"] == due
    assert step.kv_cache_bytes == 131072 * (60 * each + 57 * 128 * 2)
    assert all(op.basis for op in step.ops if op.kind != "overhead")


def test_the_language_model_of_minimax_m3_is_read_from_the_whole() -> None:
    text = {k: v for k, v in CASES[MINIMAX].items() if k != "architectures"}
    whole = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl"}
    program = llmir.load({**whole, "text_config": text, "vision_config": {"hidden_size": 8}})
    assert program.parameters == llmir.load(CASES[MINIMAX]).parameters
    assert program.notes[0].startswith("the language model alone is modelled")


def test_deepseek_v4_may_state_how_experts_are_chosen() -> None:
    """DeepSeek-V4-Pro's config states `topk_method`, as V3's does; the class has no other choice."""
    config = {**CASES[DEEPSEEK], "topk_method": "noaux_tc"}
    assert llmir.load(config).graphs == llmir.load(CASES[DEEPSEEK]).graphs
    with pytest.raises(ConfigError, match="topk_method"):
        llmir.load({**config, "topk_method": "greedy"})


def test_deepseek_v4_pro_has_its_published_size_and_experts_of_4_bits() -> None:
    """Its config.json states `expert_dtype` beside `quantization_config`, not in it."""
    config = dict(PRESETS["DeepSeek-V4-Pro"].config)
    scheme = {name: value for name, value in config["quantization_config"].items() if name != "expert_dtype"}
    program = llmir.load({**config, "quantization_config": scheme, "expert_dtype": "fp4"})
    assert round(program.parameters, -11) == 1.6e12
    types = {str(at.node.results[0].dtype) for at in program.instances() if "experts." in at.node.op.param}
    assert any("mxfp4" in dtype for dtype in types)
    assert program.graphs == llmir.load({**config, "expert_dtype": None}).graphs


@pytest.mark.parametrize("case", CASES)
def test_rolled_and_unrolled_cost_the_same_whether_entries_end_or_not(case: str) -> None:
    rolled = llmir.run(llmir.load({**CASES[case], "torch_dtype": "bfloat16"}), llmir.pipeline_of())
    unrolled = llmir.run(rolled, "unroll")
    grid = llmir.analyze(rolled, "h100-sxm", batch=2, new=1, context=[0, 3, 40, 41])
    for new, context in ((7, 0), (5, 9), (1, 40), (1, 41)):
        one, other = (
            llmir.analyze(p, "h100-sxm", batch=2, new=new, context=context) for p in (rolled, unrolled)
        )
        for figure in (
            "flops",
            "weight_bytes",
            "kv_cache_bytes",
            "read_bytes",
            "write_bytes",
            "peak_memory_bytes",
        ):
            assert getattr(one, figure) == getattr(other, figure)
        assert one.time_s == pytest.approx(other.time_s)
        if new == 1:
            assert grid.time_s[[0, 3, 40, 41].index(context)] == pytest.approx(one.time_s)


def test_a_late_token_of_deepseek_v4_leaves_a_share_of_an_entry() -> None:
    """In 20 layers an entry and its key for the index are of four tokens, in 23 an entry is of 128."""
    program = llmir.load("deepseek-v4-flash")
    assert program.kv_cache_bytes_per_later_token == 20 * (512 + 128) * 2 / 4 + 23 * 512 * 2 / 128
    assert program.kv_cache_bytes_per_later_token < program.kv_cache_bytes_per_token / 29
