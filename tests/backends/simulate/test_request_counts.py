"""How many requests run without preemption: the count that all commands print, and runs of so many."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.memory.caches import CacheGroup, pages, pages_needed
from llmir.backends.search.structures import structure_capacity
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.engine import engine_capacity
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.policies.trtllm import Trtllm
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.backends.simulate.server import Capacity, Policy, Server
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.array_namespace import ARRAYS
from tests.flat import records

from .serving_cases import Toy, groups_of_layers, load, policy

# Models with caches of each kind, and a device that holds some requests on one rank.
MODELS = {
    "llama3.1-8b": "h100-sxm",
    "gemma3-12b": "h100-sxm",
    "gemma-3-1b": "l40s",
    "gpt-oss-20b": "h100-sxm",
    "llama-4-scout": "b300",
    "deepseek-v2-lite": "h100-sxm",
    "qwen3-next-80b-a3b": "b300",
    "bamba-9b": "h100-sxm",
    "mamba-2.8b": "l40s",
}
ENGINES = ("vllm", "sglang", "trtllm", "vllm@0.12", "vllm@0.8.4")
RANKS = ("", "tp=2", "dp=2", "tp=2,dp=2", "dp=2,ep=2")
EXPERTS = ("gpt-oss-20b", "llama-4-scout", "deepseek-v2-lite", "qwen3-next-80b-a3b")


@lru_cache(maxsize=64)
def program(model: str, engine: str, ranks: str = "") -> Any:
    after = f",shard{{{ranks}}}" if ranks else ""
    return llmir.run(llmir.load(model), llmir.pipeline_of(engine) + after)


def running(start_s: Any, end_s: Any) -> int:
    """How many have been admitted and have not ended, at most."""
    at = np.concatenate([start_s, end_s])
    change = np.repeat([1, -1], len(start_s))
    return int(np.cumsum(change[np.lexsort((change, at))]).max())


# One count in all commands


def counts_agree(model: str, engine: str, ranks: str, prompt: int, generate: int) -> None:
    assume(model in EXPERTS or "ep" not in ranks)
    of, hw = program(model, engine, ranks), MODELS[model]
    asked = {"prompt": prompt, "generate": generate, "engine": engine}
    job = llmir.workload(of, hw, **records(llmir.workload, batch=1, **asked))
    assert job.pool is not None
    assume(job.max_batch > 0)
    most = min(job.max_batch, job.pool.sequences * of.parallelism.dp)
    fits = [replace(job, batch=n).fits for n in (job.max_batch, job.max_batch + 1)]
    assert fits == [True, False]
    assert abs(structure_capacity(job).requests - most) <= 1
    capacity = engine_capacity(job)
    assert abs(capacity.requests(prompt, prompt + generate - 1) - most) <= 1
    assert job.memory.max_requests >= job.max_batch


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(ENGINES),
    st.sampled_from(RANKS),
    st.integers(2, 60_000),
    st.integers(1, 9000),
)
def test_commands_count_the_same_requests(
    model: str, engine: str, ranks: str, prompt: int, generate: int
) -> None:
    counts_agree(model, engine, ranks, prompt, generate)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(ENGINES),
    st.sampled_from(RANKS),
    st.integers(2, 60_000),
    st.integers(1, 9000),
)
def test_commands_count_the_same_requests_for_many(
    model: str, engine: str, ranks: str, prompt: int, generate: int
) -> None:
    counts_agree(model, engine, ranks, prompt, generate)


@pytest.mark.parametrize("model", ["llama3.1-8b", "gemma3-12b", "bamba-9b"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_max_and_a_simulation_print_that_count(model: str, engine: str) -> None:
    of, hw = program(model, engine), MODELS[model]
    asked = {"prompt": 6000, "generate": 100, "engine": engine}
    largest = llmir.largest(of, hw, **records(llmir.largest, **asked))
    run = llmir.simulate(of, hw, **records(llmir.simulate, requests=4, closed=4, **asked))
    assert largest.answers["batch"].most == largest.answers["requests"].most
    assert abs(run.to_dict()["max_requests"] - largest.answers["batch"].most) <= 1


@pytest.mark.parametrize("ranks", ["dp=2", "tp=2,dp=2"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_simulation_counts_all_ranks_and_the_longest_answer_of_its_law(engine: str, ranks: str) -> None:
    """Ranks that share nothing are servers of their own, and none of ten answers has all 4,000 tokens."""
    of = program("llama3.1-8b", engine, ranks)
    asked = {"prompt": 200, "generate": 4000, "engine": engine}
    job = llmir.workload(of, "h100-sxm", **records(llmir.workload, **asked))
    run = llmir.simulate(of, "h100-sxm", **records(llmir.simulate, closed=1, **asked))
    assert run.load.generate.max() < 4000
    assert abs(run.max_requests - min(job.max_batch, 2 * job.pool.sequences)) <= 1


@pytest.mark.parametrize("prompt", [8000, 20_000])
def test_a_plan_counts_the_requests_that_wait_for_a_step_with_tokens_for_a_prompt(prompt: int) -> None:
    """TensorRT-LLM reads a whole prompt in a step of 8,192 tokens, beside 192 decodes at most."""
    of = program("qwen3-next-80b-a3b", "trtllm")
    asked = {"prompt": prompt, "generate": 10, "engine": "trtllm"}
    job = llmir.workload(of, "b300", **records(llmir.workload, **asked))
    room = structure_capacity(job)
    assert abs(room.requests - job.max_batch) <= 1
    assert room.in_flight == max(8192 - prompt, 0) + 1 < room.requests


# Runs


@pytest.mark.parametrize("model", ["gemma3-12b", "bamba-9b"])
def test_an_engine_that_reserves_blocks_runs_exactly_so_many(model: str) -> None:
    """TensorRT-LLM admits whom its pools hold to the end: the most that run at once are the count."""
    of, asked = program(model, "trtllm"), {"prompt": 3000, "generate": 600, "engine": "trtllm"}
    most = llmir.workload(of, MODELS[model], **records(llmir.workload, batch=1, **asked)).max_batch
    at_once = records(llmir.simulate, closed=2 * most, requests=2 * most, lengths="fixed", **asked)
    found = llmir.simulate(of, MODELS[model], **at_once)
    assert running(found.start_s, found.end_s) == most
    assert not found.preemptions.any()


@pytest.mark.parametrize("steps", [1, 2])
def test_windows_of_gemma_leave_room_for_31_to_35_requests(steps: int) -> None:
    """64 users, 16,000 + 256 tokens, one H100: 0.95 to 1.3 requests/s."""
    release = {1: "vllm@0.17", 2: "vllm"}[steps]
    of = program("gemma3-12b", release)
    asked = {"prompt": 16_000, "generate": 256, "engine": release}
    run = llmir.simulate(
        of, "h100-sxm", **records(llmir.simulate, closed=64, requests=200, lengths="fixed", **asked)
    )
    assert run.capacity.overlap == steps
    assert 31 <= running(run.start_s, run.end_s) <= 35
    assert 31 <= run.max_requests <= 35
    assert 0.95 <= 200 / run.end_s.max() <= 1.3  # of the whole run, its start and its end included


@pytest.mark.parametrize(("prompt", "generate"), [(200, 8000), (2000, 2000), (9000, 100)])
@pytest.mark.parametrize("model", ["llama3.1-8b", "gpt-oss-20b"])
def test_so_many_users_of_a_real_model_are_never_preempted(model: str, prompt: int, generate: int) -> None:
    of = program(model, "vllm")
    asked = {"prompt": prompt, "generate": generate, "engine": "vllm"}
    job = llmir.workload(of, MODELS[model], **records(llmir.workload, batch=1, **asked))
    users = min(job.max_batch, job.pool.sequences)
    of_run = records(llmir.simulate, closed=users, requests=2 * users, **asked)
    run = llmir.simulate(of, MODELS[model], **of_run)
    assert running(run.start_s, run.end_s) <= users
    assert not run.preemptions.any()


@st.composite
def rooms(draw: Any) -> tuple[Policy, Capacity, int, int]:
    """An engine with room for some requests of a prompt and a length."""
    engine = draw(st.sampled_from(["vllm", "cautious", "trtllm"]))
    fills: Policy = policy("trtllm", False) if engine == "trtllm" else Vllm(cautious=engine == "cautious")
    groups = draw(groups_of_layers())
    prompt, generate = draw(st.integers(1, 60)), draw(st.integers(2, 60))
    overlap = draw(st.integers(1, 2)) if isinstance(fills, Vllm) else 0
    state, most = draw(st.integers(0, 3)), draw(st.integers(1, 12))
    length = prompt + generate - 1
    one = max(pages(groups, length), pages(groups, prompt, prompt)) + state
    blocks = int(most * one + draw(st.integers(0, int(one))))
    tokens = draw(st.integers(16, 100)) if fills.chunked else 100 * prompt
    size = min(group.tokens for group in groups)
    room = Capacity(blocks, size, tokens, 1000, state=state, groups=groups, overlap=overlap)
    return fills, room, prompt, generate


def run(fills: Policy, room: Capacity, requests: Load) -> Server:
    return serve(StepTimes(Toy()), fills, room, requests)


@settings(max_examples=150, deadline=None)
@given(rooms(), st.floats(0, 0.05))
def test_so_many_users_are_never_preempted(case: tuple[Policy, Capacity, int, int], apart_s: float) -> None:
    fills, room, prompt, generate = case
    users = room.requests(prompt, prompt + generate - 1)
    assume(0 < users < room.tokens)
    count = 3 * users
    asked = replace(load([prompt] * count, [generate] * count, users=users), apart_s=apart_s)
    server = run(fills, room, asked)
    assert not any(server.course.preemptions)


@settings(max_examples=150, deadline=None)
@given(rooms())
def test_one_more_that_begins_with_them_waits_or_is_preempted(
    case: tuple[Policy, Capacity, int, int],
) -> None:
    """All prompts lie in one step, so that all requests have their full length at once."""
    fills, room, prompt, generate = case
    room = room._replace(tokens=1000 * prompt)
    most = room.requests(prompt, prompt + generate - 1)
    assume(0 < most < 1000)
    for count, room_for_all in ((most, True), (most + 1, False)):
        server = run(fills, room, load([prompt] * count, [generate] * count))
        together = len(set(server.course.start_s)) == 1 and not any(server.course.preemptions)
        assert together is room_for_all


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 4, 16]), st.integers(0, 100), st.integers(1, 50), st.integers(1, 300))
def test_a_window_has_blocks_for_what_it_sees_and_one_more_at_most(
    size: int, kept: int, new: int, tokens: int
) -> None:
    """Block by block, wherever the window begins."""
    group = CacheGroup(size, kept=kept)
    seen = {n // size for n in range(max(0, tokens - new - kept), tokens)}
    assert len(seen) <= group.blocks(tokens, new) <= len(seen) + 1
    assert group.blocks(tokens, new) <= CacheGroup(size).blocks(tokens)


@given(groups_of_layers(), st.integers(1, 300), st.integers(1, 50), st.integers(1, 999), st.integers(0, 3))
def test_more_requests_and_longer_ones_need_no_fewer_pages(
    groups: tuple[CacheGroup, ...], prompt: int, generate: int, in_flight: int, state: int
) -> None:
    needed = [
        [pages_needed(groups, state, n, prompt, prompt + more, in_flight) for n in range(8)]
        for more in (generate, generate + 20)
    ]
    assert needed[0] == sorted(needed[0])
    assert all(short <= long for short, long in zip(*needed, strict=True))


# Logs


def test_both_lines_of_a_log_of_vllm_follow_from_its_pages() -> None:
    """Gemma-4-26B in fp8 with 262,144 tokens and steps of 16,384 (vllm-project/vllm#39866).

    "GPU KV cache size: 78,256 tokens", "Maximum concurrency for 262,144 tokens per request: 2.15x".
    """
    of = llmir.run(program("gemma-4-26b-a4b", "vllm@0.19"), "quantize{kv=fp8}")
    limits = {"max_model_len": 262_144, "max_batched_tokens": 16_384}
    job = llmir.workload(of, "h200", **records(llmir.workload, engine="vllm@0.19", **limits))
    assert job.pool is not None
    groups = job.pool.pages.groups
    total = 78_256 // 16 * sum(group.pages for group in groups)
    each = pages(groups, 262_144, job.pool.in_flight)
    assert total / each == pytest.approx(2.15, abs=0.005)
    log = job.memory.max_concurrency
    assert log and job.memory.kv_tokens
    assert log / job.memory.kv_tokens == pytest.approx(2.15 / 78_256, rel=0.003)


def test_the_engine_that_reserves_all_tokens_never_preempts() -> None:
    room = Capacity(100, 4, 64, 16, groups=(CacheGroup(4, 1), CacheGroup(4, 2, 7)))
    server = run(Trtllm(), room, load([20] * 30, [30] * 30))
    assert not any(server.course.preemptions)
    assert running(server.course.start_s, server.course.end_s) == room.requests(20, 49)


@pytest.mark.parametrize(
    ("model", "engine", "tp", "most"), [("gemma3-12b", "trtllm", 1, 1.0), ("gemma-4-31b", "sglang", 2, 1.25)]
)
@pytest.mark.parametrize("seed", range(5))
def test_the_pool_that_counts_is_full_first_or_nearly(
    model: str, engine: str, tp: int, most: float, seed: int
) -> None:
    """Of each pool, pages over the mean need of random requests: how many requests it holds.

    TensorRT-LLM divides the memory in proportion to min(window, longest), and min(n, window) / window is at
    least n / longest: the smallest window is short first. SGLang's window pool has 0.8 of the tokens.
    """
    parallel = llmir.Parallel(tp=tp)
    how = {"parallel": parallel, "estimation": llmir.Estimation(engine=engine)}
    server = llmir.server(model, "h100-sxm", **how)
    random = np.random.default_rng(seed)
    median, deviation = random.uniform(100, 4000), random.uniform(0, 1.5)
    lengths = np.clip(random.lognormal(np.log(median), deviation, 1000), 10, 60_000).astype(int)
    pool = server.of(int(lengths.max())).pool
    assert pool is not None
    (room,), (caches,) = pool.rooms(), pool.caches
    held = []
    for one, share in zip(caches.pools, caches.shares(pool.longest), strict=True):
        need = np.asarray(pages(one.groups, lengths, xp=ARRAYS)) + one.state
        held.append(int(room.caches * share / one.bytes) / float(need.mean()))
    need = np.asarray(pages(pool.pages.groups, lengths, xp=ARRAYS)) + pool.pages.state
    assert pool.pages.total / float(need.mean()) <= most * min(held) * 1.02
