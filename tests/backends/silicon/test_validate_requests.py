"""Closed loops of requests and chat logs: what memory holds, what ranks share, and what bounds a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import llmir
from llmir.backends.cost.models import model
from llmir.backends.request.closed_loop import ClosedLoop
from llmir.backends.request.workload import Workload
from llmir.hw import library
from llmir.ir.core.program import Program

H100 = library.load("h100-sxm")
IDEAL = model(H100, "ideal")
HEADER = "model,gpu,num_gpus,tp,pp,dp,batch_or_concurrency,isl,osl,tpot_ms,kind,framework\n"


def built(*more: str) -> Program:
    return llmir.run(llmir.load("llama3.1-8b"), [*more[:1], llmir.pipeline_of(), *more[1:]])


def test_a_loop_reads_its_prompts_one_by_one() -> None:
    """Long prompts of many requests need no more memory beside the caches than that of one."""
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    together = Workload(program, H100, 1, 30000, 100, model=IDEAL)
    loop = replace(together, chunk=30000)
    assert loop.peak_bytes(1) == together.peak_bytes(1)
    assert loop.max_batch > together.max_batch
    cache = 2 * 32 * 8 * 128 * 2  # bytes a token: keys and values, layers, heads, head size, bf16
    assert loop.peak_bytes(3) - loop.peak_bytes(2) == cache * 30099
    assert loop.peak_bytes(loop.max_batch) <= loop.capacity_bytes < loop.peak_bytes(loop.max_batch + 1)


def test_a_loop_counts_what_all_micro_batches_hold() -> None:
    program = built("stages{pp=2, micro_batches=4}")
    together = Workload(program, H100, 4, 1000, 300, model=IDEAL)
    loop = replace(together, chunk=1000)
    assert loop.peak_bytes(4) <= together.peak_bytes(4)
    assert loop.max_batch >= together.max_batch


@pytest.mark.parametrize(("prompt", "generate"), [(4000, 500), (30000, 100)])
def test_data_parallel_ranks_serve_their_shares_as_each_alone(
    tmp_path: Path, prompt: int, generate: int
) -> None:
    row = "llama-3.1-8b,h100,{0},1,1,{0},{1},{2},{3},10,serving_closed_loop,vllm\n"
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + row.format(1, 4, prompt, generate) + row.format(8, 32, prompt, generate))
    alone, eight = llmir.validate(path, cost="ideal").rows
    assert eight.predicted_s == pytest.approx(alone.predicted_s)
    assert eight.ideal_s == pytest.approx(alone.ideal_s)


def test_no_pipeline_beats_the_bound_of_a_loop() -> None:
    """Micro-batches keep stages busy, which a step of one micro-batch leaves idle in turn."""

    def bound(micro_batches: int) -> float:
        program = built(f"stages{{pp=4, micro_batches={micro_batches}}}")
        job = llmir.workload(
            program, "h100", batch=4, prompt=1000, generate=500, estimation=llmir.Estimation(cost="ideal")
        )
        return ClosedLoop(job, 64).bound_s(64)

    program = built("stages{pp=4, micro_batches=4}")
    piped = llmir.analyze(
        program, "h100", batch=64, new=1, context=1249, estimation=llmir.Estimation(cost="ideal")
    )
    assert bound(1) <= piped.period_s


def test_a_request_that_memory_does_not_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.csv"
    path.write_text("input_tokens,output_tokens\n100,10\n200000,10\n", "utf-8")
    found = llmir.validate(path, program=built(), hw="l4")
    assert [r.row for r in found.rows] == [1, 1, 1]
    assert [(r.row, r.reason) for r in found.refused] == [(2, "does not fit on 1 × L4")]
