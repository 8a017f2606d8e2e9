"""What pages compute is what `workload` says: pairs of model, device, precision, split and cost model."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import llmir
from llmir.backends.cost.models import model as model_of
from llmir.backends.export.page.setups import Setup
from llmir.hw import library
from tests.backends.export import emit_cases

from . import page_cases

SOME = 4  # programs a part; `python -m tests.backends.export.page.page_cases` takes as many as it is told


@pytest.mark.slow
@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_workload(seed: int) -> None:
    some = list(itertools.islice(page_cases.known(page_cases.POINTS, seed), SOME))
    assert len(some) == SOME
    for case, found in some:
        assert max(found.plain, found.typed) < 1e-12, case


@pytest.mark.slow
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
    device = library.load("h100-sxm")
    memory = int(share * device.capacity_bytes)
    other = dataclasses.replace(device, memory_bytes=memory, physical_bytes=None)
    program = llmir.run(llmir.load(model), f"{llmir.pipeline_of()},stages{{pp={stages}}}")
    pool = llmir.workload(
        program, other, batch=1, prompt=1, generate=1, estimation=llmir.Estimation(engine="trtllm")
    ).pool
    assert pool
    return pool.tightest


STAGED = [
    ("Llama-3.1-8B", "stages{pp=2, micro_batches=3}", "vllm"),
    ("Qwen3-30B-A3B", "stages{pp=3},shard{tp=2}", "sglang"),
    ("Gemma-3-4B", "stages{pp=4, micro_batches=8}", "trtllm"),
    ("Llama-3.2-1B", "stages{pp=2, micro_batches=2}", "hf-transformers"),
    ("Jamba-v0.1", "stages{pp=2, micro_batches=2},shard{ep=2, tp=2}", None),
]


@pytest.mark.mostly_slow(5)
@pytest.mark.skipif(not emit_cases.available(), reason="needs node")
@pytest.mark.parametrize(("model", "split", "engine"), STAGED)
def test_stages_of_a_page_are_the_timeline(model: str, split: str, engine: str | None) -> None:
    """Each micro-batch from its start to its end on each stage, what of that is overhead, and each wait."""
    program = llmir.run(llmir.load(model), f"{llmir.pipeline_of()},{split}")
    device = library.load("h100-sxm")
    told, functions = page_cases.told_of(Setup({}, program, model_of(device, None, engine)))
    parts = program.micro_batches
    points = [(parts, 5, 4), (16 * parts, 900, 30)]
    (found,) = page_cases.run(told, functions, points, [{}])
    for (batch, prompt, generate), said in zip(points, found["points"], strict=True):
        job = llmir.workload(
            program,
            device,
            batch=batch,
            prompt=prompt,
            generate=generate,
            estimation=llmir.Estimation(engine=engine),
        )
        for name, step in (("prefill", job.prefill), ("decode", job.decode)):
            assert step is not None
            shown = [
                ((stage, own["part"], own["kind"]), own["from"], own["to"])
                for stage, lane in enumerate(said[name]["lanes"])
                for own in lane
            ]
            assert lengths(shown) == pytest.approx(lengths(sliced(step)), rel=1e-9, abs=1e-15)
            assert ends(shown) == pytest.approx(ends(sliced(step)), rel=1e-9, abs=1e-15)


Lane = tuple[tuple[int, int, str], float, float]


def sliced(step: llmir.Report) -> list[Lane]:
    """The slices of a step: stage, micro-batch and what it is, from when to when."""
    kinds = {"bubble": "bubble", "overhead": "overhead"}
    return [
        (
            (s.stage, s.micro_batch, kinds.get(s.bound, "work") if s.kind == "overhead" else "work"),
            s.start_s,
            s.end_s,
        )
        for s in step.timeline()
    ]


def lengths(lanes: list[Lane]) -> dict[tuple[int, int, str], float]:
    """Seconds of each kind."""
    found: dict[tuple[int, int, str], float] = {}
    for key, start, end in lanes:
        found[key] = found.get(key, 0.0) + end - start
    return found


def ends(lanes: list[Lane]) -> dict[tuple[int, int, str, str], float]:
    """When each micro-batch begins and ends on each stage, and when its waits do."""
    found: dict[tuple[int, int, str, str], float] = {}
    for (stage, part, kind), start, end in lanes:
        what = "wait" if kind == "bubble" else "all"
        first, last = (stage, part, what, "from"), (stage, part, what, "to")
        found[first] = min(found.get(first, start), start)
        found[last] = max(found.get(last, end), end)
    return found
