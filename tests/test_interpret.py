"""The IR is run in numpy, in float64: rewrites keep its meaning, and its meaning is transformers'."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret.program import interpret
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor

from .strategies import LOGITS, configs

PIPELINES = ("fuse-attention", "fuse", "fuse-attention,fuse", llmir.DEFAULT_PIPELINE, "unroll")


def weight(name: str, type: Tensor) -> np.ndarray[Any, Any]:
    """Random numbers that depend on the name alone, so that every form of a program gets the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.normal(size=type.shape) / np.sqrt(max(type.shape[0], 1))


def ids(batch: int, new: int, vocab: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch * 97 + new).integers(0, vocab, (batch, new))


def logits(program: Program, tokens: np.ndarray[Any, Any], *pieces: int) -> np.ndarray[Any, Any]:
    """The logits of the last of several steps, which take so many tokens each."""
    caches: dict[str, Any] = {}
    out: list[Any] = []
    start = 0
    for size in pieces:
        step = {"tokens": tokens[:, start : start + size]}
        out, caches = interpret(program, step, weight, caches, context=start)
        start += size
    assert start == tokens.shape[1]
    return out[0]  # type: ignore[no-any-return]


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-9))


@given(configs(), LOGITS, st.sampled_from(PIPELINES), st.integers(1, 3), st.integers(1, 6))
def test_passes_keep_the_meaning(
    config: dict[str, Any], which: str, pipeline: str, batch: int, new: int
) -> None:
    program = llmir.load(config, logits=which)
    tokens = ids(batch, new, config["vocab_size"])
    assert same(logits(program, tokens, new), logits(llmir.run(program, pipeline), tokens, new))


@given(configs(), st.sampled_from(PIPELINES), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_one_piece_is_chunks_is_token_by_token(
    config: dict[str, Any], pipeline: str, pieces: list[int]
) -> None:
    program = llmir.run(llmir.load(config), pipeline)
    total = sum(pieces)
    tokens = ids(2, total, config["vocab_size"])
    whole = logits(program, tokens, total)
    assert same(whole, logits(program, tokens, *pieces))
    assert same(whole, logits(program, tokens, *[1] * total))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear"},
        {"rope_type": "dynamic"},
        {
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        },
        {"rope_type": "yarn", "original_max_position_embeddings": 8},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_stretched_positions_differ_from_plain_ones(scaling: dict[str, Any]) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 11,
        "max_position_embeddings": 8,
        "rope_scaling": {"factor": 4.0, **scaling},
    }
    tokens = ids(1, 12, 11)
    plain = logits(llmir.load({**config, "rope_scaling": None}), tokens, 12)
    stretched = logits(llmir.load(config), tokens, 12)
    assert not same(plain, stretched)
    assert same(stretched, logits(llmir.run(llmir.load(config), llmir.DEFAULT_PIPELINE), tokens, 12))
