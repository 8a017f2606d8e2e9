"""Sums over ranks that a residual add and a norm follow, in one kernel: what it sends, moves and takes."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.backends.step.report import Report
from llmir.base.errors import PassError
from llmir.hw import library
from tests.flat import records

FUSED = "rotate,fuse-attention,fuse,shard{tp=2}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("llama3.2-1b", "shard{tp=2}"),
        ("llama3.2-1b", "shard{tp=2, dp=2}"),
        ("gemma-3-1b", "shard{tp=2}"),
        ("qwen3-30b-a3b", "shard{tp=4, ep=4}"),
        ("deepseek-v2-lite-16b", "shard{tp=2}"),  # dense layers, then sparse ones
        ("qwen3-next-80b-a3b", "shard{tp=2}"),  # of two kinds in a period
        ("llama3.2-1b", "stages{pp=2},shard{tp=2}"),
    ],
)
@pytest.mark.parametrize("first", ["", "rotate,"])
def test_what_ranks_compute_stays(model: str, how: str, first: str) -> None:
    program = llmir.load(model)
    found = llmir.equivalent(
        program, llmir.run(program, f"{first}fuse-attention,fuse,{how},fuse-all-reduce"), new=3
    )
    assert (found.equal, found.first) == (True, "")


def step(program: llmir.Program, device: str, batch: int, new: int, **how: Any) -> Report:
    return llmir.analyze(
        program, device, **records(llmir.analyze, batch=batch, new=new, context=0 if new > 1 else 1000, **how)
    )


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
@pytest.mark.parametrize("device", ["h100-sxm", "dgx-a100", "l40s", "mi300x-8", "dgx-b200"])
def test_it_sends_as_much_moves_less_and_is_never_slower(device: str, tp: int) -> None:
    most = library.load(device).node
    if tp > 8 and not most:
        pytest.skip("of one box")
    model = llmir.load("llama3.1-70b")
    apart = llmir.run(model, f"rotate,fuse-attention,fuse,shard{{tp={tp}}}")
    together = llmir.run(apart, "fuse-all-reduce")
    for batch, new in ((1, 1), (64, 1), (4, 512)):
        before, after = (step(p, device, batch, new, cost="ideal") for p in (apart, together))
        assert after.comm_bytes == before.comm_bytes
        assert after.flops == before.flops
        assert after.read_bytes < before.read_bytes
        assert after.write_bytes <= before.write_bytes
        assert after.time_s <= before.time_s
        assert step(together, device, batch, new).time_s <= step(apart, device, batch, new).time_s


def test_each_layer_has_one() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), f"{FUSED},fuse-all-reduce")
    ops = [n.name for n in program["layer"].nodes if n.op.joins]
    assert ops == ["all_reduce_add_input_norm", "all_reduce_add_post_norm"]
    assert [n.name for n in program["main"].nodes if n.op.joins][:-1] == ["all_reduce_add_final_norm"]
    unturned = llmir.run(llmir.load("llama3.1-8b"), f"{FUSED.removeprefix('rotate,')},fuse-all-reduce")
    ops = [n.name for n in unturned["layer"].nodes if n.op.joins]
    assert ops == ["all_reduce_add_post_norm", "all_reduce_down_proj"]
    found = step(program, "h100-sxm", 8, 1)
    (op,) = (op for op in found.ops if op.name == "layer.all_reduce_add_post_norm")
    assert str(op.basis) == "calibrated for trtllm"  # FlashInfer's kernel is TensorRT-LLM's
    assert op.error is not None and op.error > 0.1


def test_what_cannot_be() -> None:
    model = llmir.load("llama3.1-8b")
    with pytest.raises(PassError, match="runs on one rank; shard it first"):
        llmir.run(model, "fuse,fuse-all-reduce")
    with pytest.raises(PassError, match="already contains a sum over ranks"):
        llmir.run(model, f"{FUSED},fuse-all-reduce,shard{{tp=4}}")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "rotate,"])
def test_it_narrows_what_a_product_reads(first: str) -> None:
    """As many bytes are sent, narrow rows are written once, and no quantize is left after such a norm."""
    how = f"quantize{{weights=fp8, activations=fp8}},{first}fuse-attention,fuse,shard{{tp=4}}"
    apart = llmir.run(llmir.load("llama3.1-70b"), how)
    together = llmir.run(apart, "fuse-all-reduce")
    was, now = ([n.op.opcode for n in p["layer"].nodes] for p in (apart, together))
    sums = 2 if first else 1
    assert (
        now.count("all_reduce_add_rms_norm_quantize") == sums == was.count("quantize") - now.count("quantize")
    )
    before, after = (step(p, "b200", 32, 1) for p in (apart, together))
    assert (after.comm_bytes, after.flops) == (before.comm_bytes, before.flops)
    assert after.read_bytes < before.read_bytes
    assert after.write_bytes < before.write_bytes
    assert after.time_s < before.time_s
    assert llmir.equivalent(apart, together, new=2).equal
