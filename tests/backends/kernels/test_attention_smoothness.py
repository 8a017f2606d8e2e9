"""Attention by the fastest of an engine's kernels: more tokens, new or cached, take no less."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import llmir
from llmir.backends.cost.models import model
from llmir.backends.silicon.tables.attention import attention
from llmir.backends.work.rows import Row, rows
from llmir.hw import library
from llmir.ir.sizes.binding import Binding
from tests.flat import records

NEW = np.arange(1, 140)[:, None]
CACHED = np.array([0, 1, 2, 7, 8, 63, 64, 255, 256, 1000, 5000])
HEADS = ((1, 1, 128), (8, 4, 128), (4, 16, 64))
MASKS = ("causal", "window(64)", "full")


def op(kv: str, mask: str, keys: str = "c") -> Row:
    (row,) = rows(attention("bfloat16", kv, mask, keys))
    return row


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("device", ["h100-sxm", "b200", "l40s", "a100-80-sxm", "h20", "mi300x"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "hf-transformers"])
def test_more_tokens_new_or_cached_take_no_less(device: str, engine: str) -> None:
    prices = model(library.load(device), "calibrated", engine)
    for mask, kv, heads, batch in product(MASKS, ("", "fp8"), HEADS, (1, 27, 256)):
        sizes = dict(zip("grd", heads, strict=True))
        keys = CACHED + (1 if mask == "full" else NEW)  # of others, as of an encoder, or cached ones and new
        times = np.asarray(prices.price(op(kv, mask)).time(Binding(b=batch, t=NEW, c=keys, **sizes)))
        for axis in (0, 1):
            assert np.all(np.diff(times, axis=axis) >= -1e-12 * np.delete(times, -1, axis)), (mask, kv, heads)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_prompt_takes_what_prompts_were_measured_to_and_what_comes_after_others_no_less(
    engine: str,
) -> None:
    """A step's kernel is not asked for whole prompts, and tokens before them gain nothing by it."""
    prices, many = model(library.load("h100-sxm"), "calibrated", engine), NEW[8:]
    of = {"b": 27, "g": 8, "r": 4, "d": 128, "t": many}
    prompt = np.asarray(prices.price(op("", "causal", "t")).time(Binding(**of)))
    first, after = (
        np.asarray(prices.price(op("", "causal")).time(Binding(**of, c=many + cached))) for cached in (0, 1)
    )
    assert np.allclose(first, prompt, rtol=1e-12)
    assert np.all(after >= prompt * (1 - 1e-12))


PHASES = ("decode", "prefill")
FEW = {"new": 1, "batch": np.array([[1], [8], [64]]), "context": np.array([0, 128, 4096, 32768])}
MANY = {"new": 512, "batch": np.array([[1], [8]]), "context": np.array([0, 4096])}


@pytest.mark.mostly_slow(8)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "hf-transformers"])
@pytest.mark.parametrize("name", ["gemma-3-27b", "qwen3-next-80b-a3b"])
def test_fused_attention_never_costs(name: str, engine: str) -> None:
    """Where the parts have measured kernels, which those of latent attention do not."""
    eager = llmir.load(name)
    fused = llmir.run(eager, "fuse-attention")
    for device, (phase, at) in product(
        ("h100-sxm", "a100-80-sxm", "h20"), zip(PHASES, (FEW, MANY), strict=True)
    ):
        apart, together = (
            llmir.analyze(p, device, **records(llmir.analyze, engine=engine, phase=phase, **at)).time_s
            for p in (eager, fused)
        )
        assert np.all(together <= apart * (1 + 1e-12)), (device, phase)
