"""Gemma 3n and 4: what layers hand to later ones, in all forms of a program; sizes, bad configs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import ConfigError, VerifyError
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.program import Program
from tests.figures import close, figures
from tests.logits import weight
from tests.naive_liveness import simulate

from .gemma_cases import CASES

TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 1, 2]])
PIECES = (5, 1, 6, 1, 1)  # past windows of 3
SHARED = "gemma4, a window of 3, shared keys"
GEMMA_3N, GEMMA_4 = "gemma3n, a window of 3", "gemma4, a window of 3"
EXPERTS = "gemma4, a window of 3, experts"
FORMS = (
    "unroll",
    "fuse-attention,fuse,dce",
    "shard{tp=4}",  # twice the key/value heads of most
    "fuse-attention,fuse,shard{tp=2, dp=2, sp=1}",
    "stages{pp=3, micro_batches=2},shard{tp=2}",
    "stages{pp=7},unroll",  # a layer each, and keys cross all after their own
)


@cache
def program(case: str) -> Program:
    return llmir.load(CASES[case], logits="all")


def logits(program: Program) -> np.ndarray[Any, Any]:
    start, caches, found = 0, {}, []
    for size in PIECES:
        step = {"tokens": TOKENS[:, start : start + size]}
        (out,), caches = interpret(program, step, weight, caches, context=start)
        found.append(out)
        start += size
    return np.concatenate(found, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_form_of_a_program_computes_the_same(case: str) -> None:
    due = logits(program(case))
    for form in FORMS:
        other = llmir.run(program(case), form)
        assert llmir.parse_program(llmir.print_program(other)) == other
        np.testing.assert_allclose(logits(other), due, rtol=0, atol=1e-9, err_msg=form)


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["", "fuse-attention,fuse"])
def test_what_is_handed_out_costs_as_if_all_layers_were_written_out(case: str, form: str) -> None:
    rolled = llmir.run(program(case), form)
    flat = llmir.run(rolled, "unroll")
    for new, context in ((9, 0), (1, 40), (4, 2)):
        one, other = (llmir.analyze(p, "h100", batch=3, new=new, context=context) for p in (rolled, flat))
        assert close(figures(one), figures(other))
        assert (one.weight_bytes + one.kv_cache_bytes, one.activation_peak_bytes) == simulate(
            flat["main"], one.at
        )


@pytest.mark.parametrize("kv", ["fp8", "int8"])
def test_shared_keys_are_as_narrow_as_the_cache_they_lie_in(kv: str) -> None:
    passes = f"stages{{pp=3}},quantize{{kv={kv}}},shard{{tp=2}},fuse-attention,fuse"
    narrow = llmir.run(program(SHARED), passes)
    for graph in narrow.graphs.values():
        for node in graph.sources:
            if "cached" in node.op.axes:
                assert node.results[0].dtype.scheme.startswith(kv)
    sent = [n.results[0] for n in narrow["stage1"].nodes if n.op.opcode == "send"]
    states = [type for type in sent if str(type.shape[1]) != "T"]  # not what goes round, nor tokens' inputs
    assert {str(type.shape[1]) for type in states} == {"T + min(C, 2)", "C + T"}
    assert len(sent) == 6 and all(type.dtype.scheme.startswith(kv) for type in states)


def test_layers_that_share_keys_hold_none() -> None:
    """Four of nine: the last window and the last of all keys are read again."""
    own = {**CASES[SHARED], "num_kv_shared_layers": 0}
    with_all, shared = llmir.load(own), program(SHARED)
    layer = {"window": 2 * 2 * 8 * 4, "full": 2 * 2 * 16 * 4}  # K and V of two heads in fp32
    assert with_all.kv_cache_bytes_per_token == 6 * layer["window"] + 3 * layer["full"]
    assert shared.kv_cache_bytes_per_token == 4 * layer["window"] + 1 * layer["full"]


BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    (GEMMA_3N, {"num_kv_shared_layers": 6}, "leaves no full_attention with keys"),
    (GEMMA_3N, {"num_kv_shared_layers": 9}, "$.num_kv_shared_layers: expected"),
    (GEMMA_3N, {"altup_active_idx": 4}, "$.altup_active_idx: 4 is none of 4 streams"),
    (GEMMA_3N, {"activation_sparsity_pattern": [0.5]}, "$.activation_sparsity_pattern: "),
    (GEMMA_3N, {"activation_sparsity_pattern": [1.0] * 8}, "expected shares below 1, got 1.0"),
    (GEMMA_3N, {"intermediate_size": [20]}, "$.intermediate_size: expected"),
    (GEMMA_3N, {"intermediate_size": [20] * 7 + [0]}, "$.intermediate_size: expected"),
    (GEMMA_3N, {"laurel_rank": 0}, "$.laurel_rank: expected an integer from 1 to 2**48, got 0"),
    (GEMMA_3N, {"layer_types": ["chunked_attention"] * 8}, '"chunked_attention" is not'),
    (GEMMA_3N, {"num_experts": 4}, "$.num_experts: 4 is not modelled"),
    (GEMMA_4, {"use_bidirectional_attention": "all"}, "attention to later tokens"),
    (GEMMA_4, {"num_kv_shared_layers": 2}, "leaves no full_attention with keys"),
    (GEMMA_4, {"per_layer_config": {"0": {"head_dim": 4}}}, "$.per_layer_config: sizes other"),
    (GEMMA_4, {"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "3 does not divide"),
    (GEMMA_4, {"global_head_dim": 7}, "7 of 7 elements are no pairs"),
    (EXPERTS, {"top_k_experts": 9}, "$.top_k_experts: 9 is more than the 5 experts"),
    (EXPERTS, {"num_experts": None}, "$.num_experts: expected an integer from 1 to 2**48"),
)


@pytest.mark.parametrize(("case", "fields", "message"), BAD, ids=lambda x: str(x)[:40])
def test_a_bad_config_is_an_error_of_its_field(case: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        llmir.load({**CASES[case], **fields})
    assert message in str(error.value)


def test_sizes_by_layer_are_read_in_either_spelling() -> None:
    """As released, and as transformers 5.23 writes what it has read."""
    released = {**CASES["gemma4, a window of 3, values that are keys"], "num_hidden_layers": 6}
    written = {k: v for k, v in released.items() if "global" not in k}
    written["per_layer_config"] = {"05": {"head_dim": 16, "num_key_value_heads": 1}}
    assert llmir.load(written).graphs == llmir.load(released).graphs


# What transformers' classes save of the real models: in how many layers each shape.
STORED: dict[str, dict[str, dict[tuple[int, ...], int]]] = {
    "Gemma-3n-E4B": {
        "self_attn.k_proj.weight": {(512, 2048): 20},
        "altup.prediction_coefs.weight": {(16, 4): 35},
        "altup.correct_output_scale": {(2048,): 35},
        "laurel.linear_left.weight": {(64, 2048): 35},
        "per_layer_projection.weight": {(2048, 256): 35},
    },
    "Gemma-4-E2B": {
        "self_attn.v_proj.weight": {(256, 1536): 12, (512, 1536): 3},
        "mlp.down_proj.weight": {(1536, 6144): 15, (1536, 12288): 20},
        "layer_scalar": {(1,): 35},
    },
    "Gemma-4-26B-A4B": {
        "self_attn.k_proj.weight": {(2048, 2816): 25, (1024, 2816): 5},
        "self_attn.v_proj.weight": {(2048, 2816): 25},
        "experts.gate_up_proj": {(128, 1408, 2816): 30},
        "experts.down_proj": {(128, 2816, 704): 30},
        "router.per_expert_scale": {(128,): 30},
    },
}


@pytest.mark.parametrize("name", STORED)
def test_checkpoints_hold_what_transformers_saves(name: str) -> None:
    found = expected(llmir.load(name))
    for part, due in STORED[name].items():
        assert Counter(t.shape for stored, t in found.items() if stored.endswith(f".{part}")) == due


def test_a_body_that_hands_out_another_type_than_is_stated_is_refused() -> None:
    text = llmir.print_program(program(SHARED))
    stated = "fp32[B, T, 24], fp32[B, T + min(C, 2), 2, 8]"
    wrong = text.replace(stated, "fp32[B, T, 24], fp32[B, T, 2, 8]", 1)
    with pytest.raises(VerifyError, match="the body must return"):
        llmir.run(llmir.parse_program(wrong), [])
