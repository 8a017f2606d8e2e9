"""Norms and rotations that eager transformers runs step by step mean what they meant, and count the same."""

from __future__ import annotations

import pytest

import llmir
from tests.flat import records

SIZES = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 11, "head_dim": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("architecture", ["Llama", "Qwen3", "Gemma2"])
def test_steps_mean_what_norms_and_rotations_meant(architecture: str) -> None:
    program = llmir.load({"architectures": [f"{architecture}ForCausalLM"], **SIZES})
    split = llmir.run(program, "eager")
    assert not {"rms_norm", "rope"} & {n.op.opcode for g in split.graphs.values() for n in g.nodes}
    assert llmir.equivalent(program, split)


def test_a_rotation_is_five_kernels_of_as_many_flops() -> None:
    """q · cos + rotate_half(q) · sin, and rotate_half is neg and cat (transformers, modeling_llama.py)."""
    b = llmir.Builder()
    b.output(b.rope(b.input("bf16[B, T, 4, 8]", name="x"), name="turned"))
    whole = llmir.Program("rotation", {"main": b.graph()})
    split = llmir.run(whole, "eager")
    opcodes = [n.op.opcode for n in split.graphs["main"].nodes if n.op.opcode != "input"]
    assert sorted(opcodes) == ["add", "join_half", "negate_half", "scale_by_cosine", "scale_by_sine"]
    before, after = (llmir.analyze(p, "a100", batch=3, new=100, context=0) for p in (whole, split))
    assert after.flops == before.flops
    elements = 3 * 100 * 4 * 8
    # The half (1 + 1), the copy (2 + 2), two products (4 each) and the sum (6).
    assert after.read_bytes + after.write_bytes == elements * (2 + 4 + 4 + 4 + 6)
    assert llmir.equivalent(whole, split)


@pytest.mark.parametrize(("batch", "prompt"), [(1, 7), (3, 100)])
def test_a_norm_moves_what_its_steps_move(batch: int, prompt: int) -> None:
    b = llmir.Builder()
    b.output(b.rms_norm(b.input("bf16[B, T, 4096]", name="x"), b.weight("bf16[4096]", name="w"), name="norm"))
    program = llmir.Program("norm", {"main": b.graph()})
    whole, split = (
        llmir.analyze(p, "a100", **records(llmir.analyze, batch=batch, new=prompt, cost="ideal"))
        for p in (program, llmir.run(program, "eager"))
    )
    tokens, hidden = batch * prompt, 4096
    # bf16 to fp32, squares, their mean, the product, back to bf16, times the weight; and that of each row.
    wide = (2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2)
    rows = 4 + (4 + 4) + (4 + 4) + 4
    more = tokens * (hidden * (wide - (2 + 2)) + rows)
    before, after = (r.read_bytes + r.write_bytes for r in (whole, split))
    assert after == before + more


def test_layer_norms_are_one_kernel_of_torch_and_stay() -> None:
    program = llmir.load("gpt2")
    assert llmir.run(program, "eager") == program


def test_transformers_runs_eager_code() -> None:
    assert "eager" in llmir.pipeline_of("hf-transformers").split(",")
