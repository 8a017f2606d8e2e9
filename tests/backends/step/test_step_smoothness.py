"""Whole steps have no cliffs: one more sequence, or one more token, never costs much more, and never less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmir
from benchmarks.smooth import CONTEXTS, ENGINES, MODELS, PRECISIONS, SHARDS, Jump, jumps, table
from llmir.backends.cost.transfer import basis
from llmir.backends.kernels.attention import AttentionShape, DecodeAttention, PrefillAttention
from llmir.hw import library
from llmir.hw.device import Device
from tests.flat import records

# A tenth of what `python benchmarks/smooth.py` does: each model once, on devices that are unlike.
SOME = (
    *(("h20", "trtllm", "llama3.1-8b"), ("b200", "sglang", "llama3.1-70b"), ("l4", "vllm", "gemma-3-27b")),
    *(("mi300x", "vllm", "qwen3-30b-a3b"), ("h100-sxm", "sglang", "glm-4.5-air")),
    *(("a100-80-sxm", "trtllm", "gpt-oss-120b"), ("h200", "sglang", "deepseek-v3")),
    ("rtx4090", "hf-transformers", "qwen3-next-80b-a3b"),
)
H100 = library.load("h100-sxm")


@pytest.mark.slow
@pytest.mark.parametrize(("device", "engine", "model"), SOME)
def test_steps_have_no_cliffs(device: str, engine: str, model: str) -> None:
    found = jumps(device, engine, model)
    assert found.curves >= 4
    assert found.curves + len(found.skipped) == len(PRECISIONS) * len(SHARDS) * len(CONTEXTS)
    assert found.faults == []


def test_each_model_and_engine_of_the_grid_is_among_some() -> None:
    assert {model for _, _, model in SOME} == set(MODELS)
    assert {engine for _, engine, _ in SOME} == set(ENGINES)


@pytest.mark.parametrize(("device", "engine", "model", "tp"), [
    ("v100-32", "sglang", "gemma-3-27b", 1), ("v100-32", "sglang", "qwen3-30b-a3b", 8),
    ("h100-sxm", "sglang", "qwen3-30b-a3b", 1), ("t4", "vllm", "qwen3-0.6b", 8),
])  # fmt: skip
def test_no_more_tokens_take_less_whichever_graph_holds_them(
    device: str, engine: str, model: str, tp: int
) -> None:
    """Few new tokens are in a graph of prompts where none of decodes holds them; logits fill no graph."""
    at: dict[str, Any] = {"batch": np.array([1, 5, 8, 9, 25, 64])[:, None], "new": np.arange(1, 13)}
    program = llmir.run(llmir.load(model), [llmir.pipeline_of(engine), f"shard{{tp={tp}}}"])
    times = llmir.analyze(
        program, device, **records(llmir.analyze, **at, context=512, engine=engine, phase="decode")
    ).time_s
    for axis in (0, 1):
        assert np.all(np.diff(times, axis=axis) >= -1e-9 * np.min(times))


@pytest.mark.slow
def test_a_cliff_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of few tokens that takes one alone: the second costs what a prompt's kernel takes."""
    alone = staticmethod(lambda shape: (shape.new == 1) & (shape.cached > 0))
    monkeypatch.setattr(DecodeAttention, "supports", alone)
    found = jumps("h20", "sglang", "llama3.1-8b")
    assert "two tokens" in {jump.law for jump, _ in found.faults if jump.op == "attention flash_attention"}
    assert all(isinstance(jump, Jump) and jump.share > 0 for jump, _ in found.faults)


def test_what_is_skipped_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = jumps("tpu-v5p", "vllm", "llama3.1-8b")
    assert (found.curves, found.faults) == (0, [])
    assert table([found]) == 0
    assert "skipped      8  engine 'vllm': TPU-v5p was not measured" in capsys.readouterr().out


def faster(device: Device) -> Iterator[tuple[str, Device]]:
    """The device with one rate raised by half, each in turn, or half as many multiprocessors more."""
    yield "memory", replace(device, memory_Bps=1.5 * device.memory_Bps)
    if device.l2_bytes:
        yield "L2", replace(device, l2_bytes=int(1.5 * device.l2_bytes))
    for name, link in device.links.items():
        yield name, replace(device, links={**device.links, name: replace(link, Bps=1.5 * link.Bps)})
    for name in ("matrix_flops", "vector_flops"):
        rates = getattr(device, name)
        for dtype in rates:
            yield dtype, replace(device, **{name: {**rates, dtype: 1.5 * rates[dtype]}})
    raised = {
        n: {k: 1.5 * v for k, v in getattr(device, n).items()} for n in ("matrix_flops", "vector_flops")
    }
    many = 3 * (device.multiprocessors or 0) // 2  # of the same ones, with their rates
    yield (
        "multiprocessors",
        replace(device, multiprocessors=many, memory_Bps=1.5 * device.memory_Bps, **raised),
    )


# Of each class: measured, borrowed of one die, of slower units, of another generation, vendor or memory.
RAISED = (
    *("h100-sxm", "b200", "l40s", "h200", "h20", "rtx4090", "l4", "a40", "v100-32", "rtx-pro-6000"),
    *("mi300x", "mi250"),
)


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("precision", ["quantize{kv=fp8}", "quantize{weights=fp8, activations=fp8}"])
def test_a_device_with_one_rate_raised_is_never_slower(name: str, precision: str) -> None:
    passes = [llmir.pipeline_of(), precision, "shard{tp=4}"]
    program, device = llmir.run(llmir.load("glm-4.5-air"), passes), library.load(name)
    at: dict[str, Any] = {"batch": np.array([[1], [9], [64]]), "new": np.array([1, 2, 17, 900])}
    at["context"] = 3000
    before = llmir.analyze(program, device, **records(llmir.analyze, **at)).time_s
    for rate, other in faster(device):
        assert np.all(
            llmir.analyze(program, other, **records(llmir.analyze, **at)).time_s <= before * (1 + 1e-9)
        ), rate


@pytest.mark.parametrize("group", [1, 4, 8, 48])
def test_two_new_tokens_read_their_keys_once(group: int) -> None:
    shape = AttentionShape(8, np.array([1.0, 2.0]), 16384, 8, group, 128)
    one, two = DecodeAttention().seconds(H100, shape)
    assert one <= two <= 1.3 * one


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_one_new_token_takes_what_steps_were_measured_to_and_more_no_less(engine: str) -> None:
    """Even where the kernel for prompts says less of it; a graph hides a part of the launch."""
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    fit = basis(H100, "attention_decode", engine)
    assert fit
    step = llmir.analyze(
        program, H100, batch=512, new=np.arange(1, 9), context=3, estimation=llmir.Estimation(engine=engine)
    )
    (attention,) = (op for op in step.ops if op.kind == "attention")
    hidden = step.plan.hidden(step.at) * fit.kernel.launch_us * 1e-6  # type: ignore[attr-defined]
    alone = np.asarray(attention.time_s + hidden)
    assert alone[0] == pytest.approx(float(fit.kernel.seconds(H100, AttentionShape(512, 1, 3, 8, 4, 128))))
    assert np.all(np.diff(alone) >= 0)


def test_many_new_tokens_take_what_their_pairs_do_by_either_kernel() -> None:
    """By the peak: four FLOPs a pair of query and key and element of a head."""
    shape = AttentionShape(4, 8192, 65536, 8, 8, 128)
    pairs = 4 * 64 * 8192 * (65536 + 8192 / 2)
    peak = 4 * 128 * pairs / H100.matrix_peak("bf16")[0]
    assert peak < PrefillAttention().seconds(H100, shape) < DecodeAttention().seconds(H100, shape) < 5 * peak
