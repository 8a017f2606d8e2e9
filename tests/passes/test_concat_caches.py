"""Caches that grow by copies mean what they meant, and cost two passes over all that they hold."""

from __future__ import annotations

import pytest

import llmir
from tests.flat import records


@pytest.mark.parametrize("model", ["qwen3-0.6b", "gemma-2-2b"])
def test_a_step_reads_and_writes_all_that_is_cached(model: str) -> None:
    program = llmir.load(model)
    copied = llmir.run(program, "concat-caches")
    for batch, context in ((1, 7), (3, 100)):
        at = {"batch": batch, "context": context, "cost": "ideal"}
        before, after = (llmir.analyze(p, "a100", **records(llmir.analyze, **at)) for p in (program, copied))
        held = before.kv_cache_bytes
        assert after.kv_cache_bytes == held
        new = sum(op.repeat * op.kv_cache_write_bytes for op in before.ops)
        assert sum(op.repeat * op.kv_cache_write_bytes for op in after.ops) == held
        old = sum(op.repeat * op.kv_cache_read_bytes for op in before.ops)
        assert sum(op.repeat * op.kv_cache_read_bytes for op in after.ops) == old + held - new


def test_transformers_copies_its_caches(tiny: llmir.Program) -> None:
    assert llmir.equivalent(tiny, llmir.run(tiny, "concat-caches"))
    assert llmir.pipeline_of("hf-transformers").startswith("concat-caches")


@pytest.fixture
def tiny() -> llmir.Program:
    """Two layers of a small Llama."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 11}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"}
    return llmir.load({"architectures": ["LlamaForCausalLM"], **sizes, **heads})
