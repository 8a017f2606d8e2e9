"""Beam search: what is held against closed forms, what it adds to a step, and who runs it."""

from __future__ import annotations

import numpy as np
import pytest

import llmir
from llmir.backends.request.beams import BeamWorkload
from llmir.backends.request.workload import Workload
from llmir.base.errors import InputError, PassError
from tests.commands import Run

PROMPT, GENERATE, BATCH = 1000, 100, 8


def priced(engine: str | None, name: str = "llama3.1-8b", batch: int = BATCH) -> Workload:
    program = llmir.run(llmir.load(name), llmir.pipeline_of(engine))
    cost = None if engine else "ideal"
    return llmir.workload(
        program,
        "h100-sxm",
        batch=batch,
        prompt=PROMPT,
        generate=GENERATE,
        estimation=llmir.Estimation(cost=cost, engine=engine),
    )


def beams(job: Workload, width: int) -> BeamWorkload:
    found = llmir.beam_search(job, width)
    assert isinstance(found, BeamWorkload)
    return found


@pytest.mark.parametrize("width", [2, 5])
def test_a_prompt_is_held_once_and_what_follows_for_each_beam(width: int) -> None:
    job = priced(None)
    found, token = beams(job, width), job.program.cache_bytes(1)
    assert found.cache_bytes == BATCH * (PROMPT + width * (GENERATE - 1)) * token
    assert found.apart_bytes == BATCH * width * (PROMPT + GENERATE - 1) * token
    assert found.decode is not None and found.decode.kv_cache_bytes == found.cache_bytes
    assert found.ttft_s == pytest.approx(job.ttft_s, rel=1e-3)
    assert found.ttft_s >= job.ttft_s


def test_stages_hold_what_is_shared_once() -> None:
    """Of two stages with half the layers each, a half of what one has in all."""
    whole, program = beams(priced(None), 4), llmir.run(priced(None).program, "stages{pp=2}")
    job = llmir.workload(
        program,
        "h100-sxm",
        batch=BATCH,
        prompt=PROMPT,
        generate=GENERATE,
        estimation=llmir.Estimation(cost="ideal", engine=None),
    )
    two = beams(job, 4).decode
    assert two is not None and whole.decode is not None and len(two.stages) == 2
    assert [2 * stage.kv_cache_bytes for stage in two.stages] == [whole.cache_bytes] * 2
    for step in (two, whole.decode):
        assert max(stage.peak_memory_bytes for stage in step.stages) == step.peak_memory_bytes
        assert max(stage.kv_cache_bytes for stage in step.stages) == step.kv_cache_bytes


@pytest.mark.parametrize(("engine", "block"), [("vllm", 16), ("trtllm", 32)])
def test_blocks_of_a_prompt_that_are_full_are_shared(engine: str, block: int) -> None:
    """As a list of blocks: each beam has those of the prompt, and others from the one that is partly full."""
    found, token = beams(priced(engine), 4), priced(engine).program.cache_bytes(1)
    held = set()
    for request in range(BATCH):
        for beam in range(4):
            for first in range(0, PROMPT + GENERATE - 1, block):
                shared = first + block <= PROMPT
                held.add((request, first, None if shared else beam))
    assert found.cache_bytes == len(held) * block * token
    assert found.peak_bytes(BATCH) > priced(engine).peak_bytes(BATCH)
    assert found.max_batch < priced(engine).max_batch


def test_the_largest_batch_is_the_last_that_fits() -> None:
    for engine in ("vllm", None):
        found = beams(priced(engine), 16)
        assert found.peak_bytes(found.max_batch) <= found.capacity_bytes
        assert found.peak_bytes(found.max_batch + 1) > found.capacity_bytes


def test_one_beam_is_none() -> None:
    job = priced("vllm")
    assert llmir.beam_search(job, 1) is job


def test_a_step_has_the_rows_of_all_beams_and_their_candidates() -> None:
    """Beside what it takes of as many requests: logits read, and of each row 2N numbers and their places."""
    job, width = priced(None), 4
    found, apart = beams(job, width), priced(None, batch=BATCH * width)
    assert found.decode is not None and apart.decode is not None
    rows = {op.name: op for op in found.decode.ops}
    candidates = rows.pop("candidates")
    assert {n: (op.read_bytes, op.flops) for n, op in rows.items()} == {
        op.name: (op.read_bytes, op.flops) for op in apart.decode.ops
    }
    assert candidates.read_bytes == BATCH * width * 128_256 * 2
    assert candidates.write_bytes == BATCH * width * 2 * width * (4 + 4)
    assert candidates.flops == 6 * BATCH * width * 128_256
    assert found.tpot_s is not None and apart.tpot_s is not None
    assert found.tpot_s - apart.tpot_s == pytest.approx(candidates.time_s, rel=1e-6)


def test_transformers_reads_prompts_for_each_beam_and_copies_all_caches() -> None:
    width, job = 4, priced("hf-transformers")
    found = beams(job, width)
    assert found.copies == width and found.prefill.batch == BATCH * width
    assert found.cache_bytes == found.apart_bytes
    assert found.max_batch == job.max_batch // width
    assert found.decode is not None
    moved = [op for op in found.decode.ops if ".reorder_" in op.name]
    kept = BATCH * width * (PROMPT + GENERATE - 2) * job.program.cache_bytes(1)
    assert sum(op.repeat * op.read_bytes for op in moved) == kept
    assert sum(op.repeat * op.write_bytes for op in moved) == kept
    assert not [op for op in found.prefill.ops if ".reorder_" in op.name]


def test_windows_and_states_are_held_for_each_beam() -> None:
    job = priced(None, "gpt-oss-20b")
    found = beams(job, 3)
    assert found.cache_bytes == found.apart_bytes


def test_ranks_share_what_beams_hold() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm") + ",shard{tp=2}")
    job = llmir.workload(program, "h100-sxm", batch=BATCH, prompt=PROMPT, generate=GENERATE)
    assert 2 * beams(job, 4).cache_bytes == beams(priced("vllm"), 4).cache_bytes


def test_candidates_are_the_best_by_log_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 11))
    text = """program "best" {architecture=Small}
graph @main {
  %logits = input() : fp32[B, 11]
  %candidates = log_softmax_top_k(%logits) {k=4} : fp32[B, 4], int32[B, 4]
  return %candidates, %candidates#1
}
"""
    (values, places), _ = llmir.interpret(llmir.parse_program(text), {"logits": logits})
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, value, place in zip(chances, values, places, strict=True):
        assert [*place] == sorted(range(11), key=lambda i: -row[i])[:4]
        np.testing.assert_allclose(np.exp(value), np.sort(row)[::-1][:4], rtol=1e-6)


def test_what_has_no_beams_says_so() -> None:
    job = priced("vllm")
    with pytest.raises(InputError, match="beams: expected an integer from 1 to 1,024"):
        llmir.beam_search(job, 0)
    with pytest.raises(InputError, match="sglang has no beam search"):
        llmir.beam_search(priced("sglang"), 4)
    with pytest.raises(InputError, match="only a batch of requests can have beams"):
        llmir.beam_search(llmir.workload(job.program, "h100-sxm", concurrency=8), 4)
    with pytest.raises(InputError, match="beams start with the second token"):
        llmir.beam_search(llmir.workload(job.program, "h100-sxm", generate=1), 4)
    with pytest.raises(PassError, match="has candidates already"):
        llmir.run(beams(job, 2).program, "beam-search{width=2}")


def test_the_command_says_what_is_held(run: Run) -> None:
    asked = ("analyze", "llama3.1-8b", "--batch", "8", "--prompt", "1000", "--generate", "100")
    done = run(*asked, "--beams", "4")
    text = " ".join((done.out + done.err).split())
    assert done.code == 0 and "each request decodes 4 sequences; 8 candidates a row" in text
    assert "of that times are lower bounds" in text
    for more, says in (
        (("--beams", "0"), "--beams: expected an integer"),
        (("--beams", "2", "--concurrency", "4", "--batch", "1"), "not drafts or a closed loop"),
        (("--beams", "2", "--draft-tokens", "2", "--acceptance", "0.5"), "leave --draft-tokens out"),
        (("--beams", "2", "--engine", "sglang"), "sglang has no beam search"),
    ):
        failed = run(*asked, *more)
        assert failed.code == 2 and says in failed.err, failed.err
    assert run(*asked, "--beams", "1").out == run(*asked).out
