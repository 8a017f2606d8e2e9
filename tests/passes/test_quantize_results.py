"""Quantized programs, run: passes keep their meaning too, and fewer bits cost more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.passes.quantize import Quantize
from tests.logits import ids, logits, same
from tests.strategies import FUSIONS, LOGITS, configs, quantizations

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 61,
    "torch_dtype": "bfloat16",
}
EXPERTS = CONFIG | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 4,  # all, so that rounding does not change the choice
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


@pytest.mark.slow
@given(configs(), LOGITS, quantizations(), st.integers(1, 3), st.integers(1, 6))
def test_fused_is_unfused_and_unrolled_is_rolled(
    config: dict[str, Any], which: str, step: Quantize, batch: int, new: int
) -> None:
    quantized = llmir.run(llmir.load(config, logits=which), step)
    tokens = ids(batch, new, config["vocab_size"])
    expected = logits(quantized, tokens, new)
    assert np.isfinite(expected).all()
    for pipeline in ("unroll", "fuse-attention", "fuse-attention,fuse"):
        assert same(logits(llmir.run(quantized, pipeline), tokens, new), expected)


@pytest.mark.slow
@given(configs(), FUSIONS, st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_narrow_cache_is_the_same_in_pieces(
    config: dict[str, Any], pipeline: str, pieces: list[int]
) -> None:
    """What was rounded once on its way into the cache is read by all later steps."""
    program = llmir.run(llmir.load(config), [pipeline, "quantize{weights=int8, kv=fp8}"])
    tokens = ids(2, sum(pieces), config["vocab_size"])
    assert same(logits(program, tokens, *pieces), logits(program, tokens, sum(pieces)))


@pytest.mark.slow
@given(configs(), LOGITS, FUSIONS, st.sampled_from(("fp32", "tf32", "bf16", "fp16")))
@settings(max_examples=30)
def test_wide_types_change_no_value(config: dict[str, Any], which: str, pipeline: str, wide: str) -> None:
    program = llmir.run(llmir.load(config, logits=which), pipeline)
    kv = "" if wide == "tf32" else wide
    tokens = ids(2, 3, config["vocab_size"])
    retyped = llmir.run(program, Quantize(weights=wide, activations=wide, kv=kv))
    assert same(logits(program, tokens, 3), logits(retyped, tokens, 3))


def distance(config: dict[str, Any], step: str) -> float:
    """How far the logits move, against their size."""
    program = llmir.load(config, logits="all")
    tokens = ids(4, 16, config["vocab_size"])
    exact = logits(program, tokens, 16)
    moved = logits(llmir.run(program, f"quantize{{{step}}}"), tokens, 16)
    return float(np.linalg.norm(moved - exact) / np.linalg.norm(exact))


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "steps",
    [
        ("weights=bf16", "weights=int8", "weights=int4_g16"),
        ("weights=fp8", "weights=fp8_e5m2", "weights=mxfp4"),
        ("weights=int8", "weights=fp8", "weights=nvfp4"),
        ("weights=int4_g2", "weights=int4_g8", "weights=int4"),
        (
            "weights=int8, activations=int8",
            "weights=fp8, activations=fp8",
            "weights=mxfp4, activations=mxfp4",
        ),
        ("kv=int8", "kv=fp8", "kv=fp8_e5m2"),
    ],
)
def test_fewer_bits_move_the_logits_further(config: dict[str, Any], steps: tuple[str, ...]) -> None:
    moved = [distance(config, step) for step in steps]
    assert moved == sorted(moved)
    assert len(set(moved)) == len(moved)
    assert moved[-1] < 0.5


def test_quantized_activations_move_them_further_than_weights_alone() -> None:
    assert distance(CONFIG, "weights=fp8") < distance(CONFIG, "weights=fp8, activations=fp8") < 0.2
