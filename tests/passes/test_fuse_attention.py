"""The walk over attention scores: whatever stands between them and their mix becomes one flash op."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder

HEADS = ("kv_heads", "heads", "head_dim")


def core(cap: float, mask: str, sinks: bool) -> Program:
    """Attention of 2 × 2 heads over caches, eager, with what is asked for between scores and mix."""
    b = Builder()
    x = b.input("fp32[B, T, 6]", name="x", axes=("batch", "seq", "embed"))
    wide = b.weight("fp32[6, 2, 2, 4]", name="wq", axes=("embed", *HEADS))
    q = b.rope(b.linear(x, wide, einsum="b t h, h g r d -> b t g r d"), size=2)
    axes, grown = ("batch", "cached", "kv_heads", "head_dim"), []
    for n in "kv":
        w = b.weight("fp32[6, 2, 4]", name=f"w{n}", axes=("embed", "kv_heads", "head_dim"))
        rows = b.linear(x, w, einsum="b t h, h g d -> b t g d")
        rows = b.rope(rows, size=2) if n == "k" else rows
        grown.append(b.append(b.cache("fp32[B, C, 2, 4]", name=f"{n}c", axes=axes), rows))
    scores = b.attention_scores(q, grown[0], scale=0.5)
    scores = b.soft_cap(scores, cap=cap) if cap else scores
    scores = b.attention_mask(scores, mask=mask) if mask else scores
    given = [b.weight("fp32[2, 2]", name="sinks", axes=("kv_heads", "heads"))] if sinks else []
    mixed = b.attention_mix(b.softmax(scores, *given), grown[1])
    out = b.weight("fp32[2, 2, 4, 6]", name="wo", axes=(*HEADS, "embed"))
    b.output(b.linear(mixed, out, einsum="b t g r d, g r d h -> b t h"))
    return Program("core", {"main": b.graph()})


@pytest.mark.mostly_slow(12)
@pytest.mark.parametrize(
    ("cap", "mask", "sinks"), [*product((0.0, 2.0), ("", "causal", "window(3)"), (0, 1))]
)
def test_what_stands_between_scores_and_mix_is_one_flash_op(cap: float, mask: str, sinks: int) -> None:
    eager = core(cap, mask, bool(sinks))
    for before in ("", "quantize{kv=fp8},"):
        fused = llmir.run(eager, f"{before}fuse-attention,fuse")
        ops: list[Any] = [n.op for n in fused["main"].nodes if n.op.runs]
        assert [op.opcode for op in ops if op.kind != "gemm"] == ["rope_append", "flash_attention"]
        [flash] = [n for n in fused["main"].nodes if n.op.opcode == "flash_attention"]
        op: Any = flash.op
        assert (op.cap, op.mask, op.scale, len(flash.operands)) == (cap, mask or "full", 0.5, 3 + sinks)
        plain = llmir.run(eager, before.rstrip(","))
        assert llmir.equivalent(plain, fused, tolerance=1e-9)
        for shard in ("shard{tp=2}", "shard{tp=4}"):
            assert llmir.equivalent(plain, llmir.run(fused, shard), tolerance=1e-9)


def test_a_sink_takes_its_part_of_the_sum() -> None:
    """As a key of that score whose value is 0."""
    from llmir.ir.ops.norm import softmax

    rng = np.random.default_rng(3)
    scores, sinks = rng.normal(size=(2, 2, 3, 4, 5)), rng.normal(size=(2, 3))
    powers, taken = np.exp(scores), np.exp(sinks)[None, :, :, None, None]
    assert np.allclose(softmax(scores, sinks), powers / (powers.sum(-1, keepdims=True) + taken))
    assert np.allclose(softmax(scores, np.full((2, 3), -np.inf)), softmax(scores))


@pytest.mark.parametrize("weights", ["", "weights=fp8, activations=fp8, "])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2"])
def test_absorbed_attention_reads_latents_and_rotary_keys_as_they_are_cached(name: str, weights: str) -> None:
    """FlashMLA and TensorRT-LLM keep both in one row of 8 bits; no kernel widens the rotary part alone."""
    program = llmir.run(llmir.load(name), [f"quantize{{{weights}kv=fp8}}", llmir.pipeline_of("sglang")])
    step = llmir.analyze(program, "b200", batch=4, new=1, context=1000)
    assert not [op.name for op in step.ops if "dequantize" in op.name and "index" not in op.name]
