"""What scans of states take: chunks one after another, states read and written, convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.kernels.scan import ChunkScan, RecurrentUpdate, ScanShape, UpdateShape
from llmir.hw import library
from llmir.hw.device import Device

from .kernel_strategies import GPUS, kernels

H100 = library.load("h100-sxm")
HEAD = 128 * 128 * 4  # bytes of a state of a delta net's head, in fp32


def shape(states: int, new: int, chunk: int = 64) -> ScanShape:
    """States of 128×128, with as many FLOPs and bytes as delta nets have."""
    tokens = states * new
    return ScanShape(
        states,
        new,
        chunk,
        flops=tokens * 180_000,
        moved=tokens * 1024 + 2 * states * HEAD,
        between=tokens * 2048,
    )


@given(st.data(), st.sampled_from(GPUS), st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 500))
def test_more_takes_no_less(data: Any, device: Device, states: int, new: int, more: int) -> None:
    kernel = data.draw(kernels(ChunkScan))
    least = kernel.seconds(device, shape(states, new)) * (1 - 1e-9)
    assert kernel.seconds(device, shape(states + more, new)) >= least
    assert kernel.seconds(device, shape(states, new + more)) >= least


def test_chunks_of_a_sequence_go_one_after_another_and_those_of_many_beside_each_other() -> None:
    kernel = ChunkScan(launch_us=1)
    long = kernel.seconds(H100, shape(1, 65536))
    assert long == pytest.approx(2 * kernel.seconds(H100, shape(1, 32768)), rel=0.01)
    assert long > 15 * kernel.seconds(H100, shape(128, 512))
    assert long == pytest.approx((65536 / 64) * kernel.step_us * 1e-6, rel=0.05)


def test_a_fused_scan_of_many_states_is_as_fast_as_memory() -> None:
    kernel = ChunkScan(scratch=0.001, exposed=0.001, step_us=0.1, block_us=0.1, matrix=1)
    many = replace(shape(200_000, 64), flops=0)
    assert kernel.seconds(H100, many) == pytest.approx(many.moved / (0.7 * H100.memory_Bps), rel=0.01)


def test_a_step_reads_and_writes_each_state() -> None:
    moved = 2 * 32768 * HEAD
    seconds = RecurrentUpdate(bandwidth=0.9).seconds(H100, UpdateShape(32768, moved))
    assert seconds == pytest.approx(moved / (0.9 * H100.memory_Bps), rel=0.01)


def test_a_prompt_token_by_token_is_bound_by_its_exponentials() -> None:
    """Of Mamba 2.8B: no faster than 16 exponentials a clock and multiprocessor, one for each element."""
    model = llmir.run(llmir.load("mamba-2.8b"), llmir.pipeline_of())
    step = llmir.analyze(model, "h100-sxm", batch=16, new=2048, context=0)
    (scan,) = (op for op in step.ops if op.name == "layer.scan")
    exponentials = 16 * 2048 * 5120 * 16
    assert scan.time_s > exponentials / (16 * 132 * 1.83e9)


MODEL = llmir.run(llmir.load("qwen3-next-80b-a3b"), llmir.pipeline_of())


@pytest.mark.parametrize("new", [1, 2048])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_models_scans_and_convolutions_rest_on_their_own_kernels(engine: str, new: int) -> None:
    step = llmir.analyze(
        MODEL, "h100-sxm", batch=4, new=new, context=0, estimation=llmir.Estimation(engine=engine)
    )
    scans = [op for op in step.ops if op.kind == "scan"]
    assert {op.name.split(".")[-1] for op in scans} >= {"scan", "conv_q", "conv_v"}
    assert {op.basis.kind for op in scans} == {"calibrated"}
    assert {op.basis.device for op in scans} == {""}


def test_what_verifies_drafts_leaves_a_state_behind_for_each_token(tmp_path: Any) -> None:
    """By the rate of rows: a kernel that wrote its state once would be faster than the memory."""
    path = tmp_path / "scan.csv"
    heads = "num_k_heads,head_k_dim,num_v_heads,head_v_dim"
    rows = [
        f"h100_sxm,vllm-0.1,kda,{phase},{batch},{new},96,128,96,128,100"
        for phase, batch, new in (("verify", 256, 4), ("generation", 256 * 5 // 2, 1))
    ]
    path.write_text(f"gpu,framework,family,phase,batch,seq_len,{heads},latency_us\n" + "\n".join(rows))
    verify, step = (row.predicted_s for row in llmir.validate(path).rows)
    assert verify == pytest.approx(step, rel=0.03)  # 1 + 4 states moved, and 2.5 read and written
