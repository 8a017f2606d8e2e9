"""What pages compute is what `workload` says: pairs of model, device, precision, split and cost model."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import llmir
from llmir import hw

from . import emit_cases, page_cases

SOME = 4  # programs a part; `python -m tests.page_cases` takes as many as it is told


@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_workload(seed: int) -> None:
    some = list(itertools.islice(page_cases.known(page_cases.POINTS, seed), SOME))
    assert len(some) == SOME
    for case, found in some:
        assert max(found.plain, found.typed) < 1e-12, case


@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize(
    ("model", "stages"), [("Gemma-3-4B", 3), ("Qwen3-Next-80B-A3B", 2), ("Llama-3.2-1B", 3)]
)
def test_other_memory_may_have_another_stage_full_first(model: str, stages: int) -> None:
    """TensorRT-LLM takes a share of what a stage leaves free, so that what may be used is that stage's."""
    case = {"model": model, "device": "h100-sxm", "engine": "trtllm", "precision": "", "cost": "default"}
    shares = (0.02, 0.1, 0.2, 0.5, 3, 50)
    typed = [{"some": page_cases.CAPACITY, "factors": [share]} for share in shares]
    found = page_cases.compared(
        {**case, "sharding": f"stages{{pp={stages}}}"}, page_cases.POINTS, typed=typed
    )
    assert found
    assert (found.sets, found.refused) == (6, 0)
    assert found.typed < 1e-12
    tightest = {_tightest(model, stages, share) for share in (1, *shares)}
    assert len(tightest) > 1


def _tightest(model: str, stages: int, share: float) -> int:
    device = hw.load("h100-sxm")
    memory = int(share * device.capacity_bytes)
    other = dataclasses.replace(device, memory_bytes=memory, physical_bytes=None)
    program = llmir.run(llmir.load(model), f"{llmir.DEFAULT_PIPELINE},stages{{pp={stages}}}")
    pool = llmir.workload(program, other, batch=1, prompt=1, generate=1, engine="trtllm").pool
    assert pool
    return pool.tightest
