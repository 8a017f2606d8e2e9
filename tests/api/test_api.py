"""The Python face: what it gives back, and what it says of input that is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.base.errors import LlmirError
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.sizes.polynomial import B

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def tiny() -> Program:
    return llmir.run(llmir.load(TINY), llmir.pipeline_of())


def block(build: Callable[[llmir.Builder, Value], Any]) -> Program:
    b = llmir.Builder()
    b.output(build(b, b.input("bf16[B, T, 8]", name="x")))
    return Program("block", {"main": b.graph()})


def test_figures_are_exact_integers_at_a_point_and_float64_on_a_grid() -> None:
    point = llmir.analyze(tiny(), "h100", batch=np.int64(2), new=3, context=4)
    names = (
        "flops",
        "matmul_flops",
        "weight_bytes",
        "kv_cache_bytes",
        "activation_peak_bytes",
        "peak_memory_bytes",
    )
    assert all(type(getattr(point, name)) is int for name in names)
    grid = llmir.analyze(tiny(), "h100", batch=[1, 2, 3], new=3, context=np.array([[4], [5]]))
    for name in (*names, "time_s"):
        assert getattr(grid, name).shape == (2, 3)
        assert getattr(grid, name).dtype == np.float64
    for op in grid.ops:
        assert op.time_s.shape == op.flops.shape == op.share.shape == op.bound.shape == (2, 3)
    assert grid.peak_at.shape == (2, 3)


@pytest.mark.slow
def test_a_table_for_pandas() -> None:
    pytest.importorskip("pandas")
    step = llmir.analyze(tiny(), "h100")
    frame = step.to_pandas()
    assert (frame.time_s * frame.repeat).sum() == pytest.approx(step.time_s, rel=1e-12, abs=0)
    assert list(frame.kind)[-1] == "overhead"


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint64, np.array])
def test_numpy_integers_are_integers(kind: Callable[[int], Any]) -> None:
    job = llmir.workload(llmir.load("llama3.1-8b"), "h100", batch=kind(2), prompt=kind(100), generate=kind(3))
    sizes = {"batch": 2, "prompt": 100, "generate": 3}
    assert json.loads(json.dumps(job.to_dict()))["workload"].items() >= sizes.items()
    assert job.peak_bytes(1) == llmir.workload(
        llmir.load("llama3.1-8b"), "h100", prompt=100, generate=3
    ).peak_bytes(1)


def test_decode_steps_are_what_they_are_defined_to_be() -> None:
    program = tiny()
    job = llmir.workload(program, "h100", batch=3, prompt=10, generate=6)
    steps = [llmir.analyze(program, "h100", batch=3, new=1, context=10 + i - 1).time_s for i in range(1, 6)]
    assert job.tpot_s == pytest.approx(sum(steps) / 5)
    assert job.e2e_s == pytest.approx(job.ttft_s + sum(steps))
    assert job.decode is not None
    assert job.decode.time_s == steps[-1]
    alone = llmir.workload(program, "h100", batch=3, prompt=10, generate=1)
    assert (alone.decode, alone.tpot_s, alone.e2e_s) == (None, None, alone.ttft_s)


def test_the_largest_batch_is_the_last_that_fits() -> None:
    job = llmir.workload(
        llmir.load("llama3.1-8b"), "h100", prompt=1000, generate=50, memory=llmir.Memory(reserve_bytes=10**9)
    )
    assert job.peak_bytes(job.max_batch) <= job.capacity_bytes < job.peak_bytes(job.max_batch + 1)
    assert llmir.workload(llmir.load("llama3.1-405b"), "h100").max_batch == 0
    still = llmir.Builder()
    still.output(still.silu(still.input("bf16[8]", name="x")))
    fixed = Program("fixed", {"main": still.graph()})
    assert llmir.workload(fixed, "h100").max_batch == 2**40  # memory does not depend on the batch


def test_cache_writes_are_kept_though_nothing_reads_them() -> None:
    b = llmir.Builder()
    x = b.input("bf16[B, T, 2, 4]", name="x")
    b.append(b.cache("bf16[B, C, 2, 4]", name="k"), x)
    b.output(b.silu(x))
    program = llmir.run(Program("writes", {"main": b.graph()}), "dce")
    assert llmir.analyze(program, "h100", batch=2, new=3, context=5).kv_cache_bytes == 2 * 2 * 8 * 8


@pytest.mark.parametrize(
    "call",
    [
        lambda p: llmir.load(None),
        lambda p: llmir.load(123),
        lambda p: llmir.load("llama3.1-8b", logits="some"),
        lambda p: llmir.run(p, None),
        lambda p: llmir.run(p, [None]),
        lambda p: llmir.run(p, b"fuse"),
        lambda p: llmir.run(p, ["fuse", 3]),
        lambda p: llmir.run(p, llmir.Pass),
        lambda p: llmir.run(5, "fuse"),
        lambda p: llmir.analyze(None, "h100"),
        lambda p: llmir.analyze(p, None),
        lambda p: llmir.analyze(p, "h100", batch=-4),
        lambda p: llmir.analyze(p, "h100", batch=0),
        lambda p: llmir.analyze(p, "h100", batch=1.5),
        lambda p: llmir.analyze(p, "h100", batch=True),
        lambda p: llmir.analyze(p, "h100", batch="4"),
        lambda p: llmir.analyze(p, "h100", batch=10**400),
        lambda p: llmir.analyze(p, "h100", batch=[[1], [1, 2]]),
        lambda p: llmir.analyze(p, "h100", batch=[]),
        lambda p: llmir.analyze(p, "h100", batch=[1, 2, 3], context=[1, 2]),
        lambda p: llmir.analyze(p, "h100", batch=[1.5, math.nan]),
        lambda p: llmir.analyze(p, "h100", context=-1),
        lambda p: llmir.analyze(p, "h100", batch=np.arange(-5000, 0)),
        lambda p: llmir.analyze(p, "h100", batch=[1, 2]).peak,
        lambda p: llmir.workload(p, "h100", batch=[1, 2]),
        lambda p: llmir.workload(p, "h100", prompt=0),
        lambda p: llmir.workload(p, "h100", prompt=2**70),
        lambda p: llmir.workload(p, "h100", generate=2**70),
        lambda p: llmir.workload(p, "h100", generate=0),
        lambda p: llmir.workload(p, "h100", memory=llmir.Memory(reserve_bytes=-1)),
        lambda p: llmir.workload(p, "h100", memory=llmir.Memory(memory_utilization=1.1)),
        lambda p: llmir.workload(p, "h100", memory=llmir.Memory(memory_utilization=True)),
        lambda p: llmir.workload(p, "h100", memory=llmir.Memory(memory_utilization=math.nan)),
        lambda p: llmir.parse_program(None),
        lambda p: parse_tensor("bf16[-5, T]"),
        lambda p: parse_tensor("bf16[0]"),
        lambda p: Tensor((2.5,), parse_tensor("bf16[1]").dtype),
        lambda p: Tensor((True,), parse_tensor("bf16[1]").dtype),
        lambda p: block(lambda b, x: b.linear(x, einsum="b t h -> b t h")),
        lambda p: block(lambda b, x: b.top_k(x, k="a")),
        lambda p: block(lambda b, x: b.top_k(x, k=2)),
        lambda p: block(lambda b, x: b.silu(x, name="a b")),
        lambda p: block(lambda b, x: b.repeat(x, body="main", times=2.5)),
        lambda p: block(lambda b, x: b.input(None, name="y")),
        lambda p: llmir.Builder().type(Value("q")),
    ],
)
def test_wrong_input_is_one_line(call: Callable[[Program], Any]) -> None:
    with pytest.raises(LlmirError) as error:
        call(tiny())
    assert str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_numbers_of_numpy_do_not_enter_the_ir() -> None:
    size = Tensor((np.int64(64),), parse_tensor("bf16[1]").dtype).shape[0]
    assert type(size) is int
    with pytest.raises(TypeError):
        B * 2.0  # type: ignore[operator]  # the mistake that is tested


def test_merging_declines_what_is_not_alike() -> None:
    def unlike(b: llmir.Builder, x: Value) -> Value:
        up = b.weight("bf16[8, 6]", name="up")
        gate = b.linear(x, b.weight("bf16[8, 6]", name="gate"), einsum="b t h, h f -> b t f")
        joined: Value = b.mul(gate, b.linear(x, up, einsum="b t k, k f -> b t f"))
        return joined

    program = block(unlike)
    assert llmir.run(program, "fuse") is program


def test_a_narrowing_cast_is_not_seen_through() -> None:
    def quantized(b: llmir.Builder, x: Value) -> Value:
        gate = b.cast(b.cast(b.silu(x), to="fp8_e4m3"), to="bf16")
        joined: Value = b.mul(gate, x)
        return joined

    program = block(quantized)
    assert llmir.run(program, "fuse") is program
