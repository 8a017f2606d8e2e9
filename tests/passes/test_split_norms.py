"""Norms that eager transformers runs step by step mean what they meant, and move the bytes of each step."""

from __future__ import annotations

import pytest

import llmir
from tests.flat import records

SIZES = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 11, "head_dim": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("architecture", ["Llama", "Qwen3", "Gemma2"])
def test_steps_mean_what_the_norm_meant(architecture: str) -> None:
    program = llmir.load({"architectures": [f"{architecture}ForCausalLM"], **SIZES})
    split = llmir.run(program, "split-norms")
    assert not any(n.op.opcode == "rms_norm" for g in split.graphs.values() for n in g.nodes)
    assert llmir.equivalent(program, split)


@pytest.mark.parametrize(("batch", "prompt"), [(1, 7), (3, 100)])
def test_a_norm_moves_what_its_steps_move(batch: int, prompt: int) -> None:
    program = llmir.load("llama-2-7b")
    at = {"batch": batch, "new": prompt, "cost": "ideal"}
    whole, split = (
        llmir.analyze(llmir.run(program, p), "a100", **records(llmir.analyze, **at))
        for p in ("", "split-norms")
    )
    tokens, hidden, norms = batch * prompt, 4096, 2 * 32 + 1
    # bf16 to fp32, squares, their mean, the product, back to bf16, times the weight; and that of each row.
    wide = (2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2)
    rows = 4 + (4 + 4) + (4 + 4) + 4
    more = norms * tokens * (hidden * (wide - (2 + 2)) + rows)
    before, after = (r.read_bytes + r.write_bytes for r in (whole, split))
    assert after == before + more


def test_layer_norms_are_one_kernel_of_torch_and_stay() -> None:
    program = llmir.load("gpt2")
    assert llmir.run(program, "split-norms") == program


def test_transformers_splits_its_norms() -> None:
    assert "split-norms" in llmir.pipeline_of("hf-transformers").split(",")
