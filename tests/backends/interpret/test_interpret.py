"""The IR is run in numpy, in float64: rewrites keep its meaning, and its meaning is transformers'."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from tests.logits import ids, logits, same
from tests.strategies import LOGITS, configs

PIPELINES = ("fuse-attention", "fuse", "fuse-attention,fuse", llmir.pipeline_of(), "unroll")


@pytest.mark.slow
@given(configs(), LOGITS, st.sampled_from(PIPELINES), st.integers(1, 3), st.integers(1, 6))
def test_passes_keep_the_meaning(
    config: dict[str, Any], which: str, pipeline: str, batch: int, new: int
) -> None:
    program = llmir.load(config, logits=which)
    tokens = ids(batch, new, config["vocab_size"])
    assert same(logits(program, tokens, new), logits(llmir.run(program, pipeline), tokens, new))


@pytest.mark.slow
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
    assert same(stretched, logits(llmir.run(llmir.load(config), llmir.pipeline_of()), tokens, 12))
