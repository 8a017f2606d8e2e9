"""What engines reserve for caches: pages that hold what a window sees, and what their logs say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.memory.caches import PAGE, POLICIES, CacheGroup, CacheState, policy, stage_caches
from llmir.base.errors import InputError
from llmir.frontends.layers.decoder import Decoder
from llmir.hw.engine_sections import CacheRule
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.sizes.binding import Binding
from tests.commands import TINY, Run
from tests.decoders import decoders
from tests.flat import records

MEASURED = Path(__file__).parents[4] / "shared" / "measured" / "engine_memory.csv"


def state(type: str, layer: str = "", times: int = 1) -> CacheState:
    return CacheState(parse_tensor(type), True, layer, times)


def reserved(name: str, *states: CacheState, tokens: int, sequences: int = 1) -> int:
    return int(Binding(B=sequences, T=1, C=tokens - 1)(policy(name).reserved(states)))


@given(st.integers(1, 100), st.integers(1, 300))
def test_pages_of_a_window_hold_what_it_sees_wherever_it_begins(width: int, tokens: int) -> None:
    """As vLLM counts them, at most one more than the last `width` tokens lie in."""
    length = f"min(C, {width - 1})" if width > 1 else "C"
    if width == 1:
        return
    pages = reserved("paged", state(f"fp16[B, {length}, 8]"), tokens=tokens) // (16 * PAGE)
    needed = max(len({n // PAGE for n in range(max(0, end - width), end)}) for end in range(1, tokens + 1))
    assert needed <= pages <= needed + 1


@pytest.mark.parametrize(
    ("tokens", "state_bytes", "row"),
    [
        # vllm-project/vllm#24280: blocks of 672 tokens, for Nemotron-Nano-9B-v2 (128 heads of 80 × 128,
        # 12,288 channels of a convolution of 4 taps, 16 bits; 8 heads of 128 for keys and values)
        (672, 2 * (128 * 80 * 128 + 12288 * 3), 2 * 2 * 8 * 128),
        # vllm-project/vllm#37467: of 528, and states padded by 0.76% (32 states of 128 × 128 in 32 bits,
        # 8,192 channels; 4 heads of 256)
        (528, 4 * 32 * 128 * 128 + 2 * 8192 * 3, 2 * 2 * 4 * 256),
    ],
)
def test_a_page_of_attention_is_the_least_that_holds_a_state(tokens: int, state_bytes: int, row: int) -> None:
    both = state(f"int8[B, {state_bytes}]", "m"), state(f"int8[B, C, {row}]", "a")
    for there in (1, tokens, tokens + 1):
        pages = 1 + -(-there // tokens)
        assert reserved("unified", *both, tokens=there, sequences=3) == 3 * pages * tokens * row
    assert 0 <= tokens * row - state_bytes < PAGE * row


def test_layers_of_a_kind_are_padded_to_the_rarest() -> None:
    """vLLM's examples: 52 layers beside 10 take the pages of 60; 12 beside 13 (not 25% more) those of 13."""
    for full, other, padded in ((10, 52, 70), (12, 13, 26), (10, 20, 30), (12, 36, 48)):
        both = state("int8[B, C, 64]", "a", full), state("int8[B, 1024]", "m", other)
        assert reserved("unified", *both, tokens=PAGE) == padded * PAGE * 64


def test_pools_by_window_have_the_shares_of_tensorrt_llm() -> None:
    """The example of kvCacheManager.h: one layer with a window of 1,024, three of 4,096 and two of 8,192."""
    layers = [
        state("bf16[B, min(C, 1023), 8]", "a", 1),
        state("bf16[B, min(C, 4095), 8]", "b", 3),
        state("bf16[B, C, 8]", "c", 2),
    ]
    found = stage_caches(layers, 32, CacheRule(split="windows", keeps=()))
    assert found.shares(8192) == pytest.approx([0.0345, 0.4138, 0.5517], abs=5e-5)
    assert [pool.groups for pool in found.pools] == [
        (CacheGroup(32, 1, 1023),),
        (CacheGroup(32, 1, 4095),),
        (CacheGroup(32, 1, None),),
    ]


@given(st.integers(1, 40), st.integers(1, 40), st.floats(1e6, 1e9))
def test_the_pool_of_windows_of_sglang_has_that_share_of_the_tokens(
    full: int, windows: int, room: float
) -> None:
    """`swa_full_tokens_ratio` of sglang/srt/server_args.py: 0.8 tokens for each of the other pool."""
    both = [state("bf16[B, C, 64]", "a", full), state("bf16[B, min(C, 127), 64]", "b", windows)]
    found = stage_caches(both, 1, CacheRule(split="ratio", window_ratio=0.8, keeps=()))
    tokens = [room * share / pool.bytes for share, pool in zip(found.shares(1000), found.pools, strict=True)]
    assert tokens[1] / tokens[0] == pytest.approx(0.8)
    assert sum(n * pool.bytes for n, pool in zip(tokens, found.pools, strict=True)) == pytest.approx(room)


@pytest.mark.parametrize("split", ["shared", "windows"])
def test_states_beside_windows_alone_have_no_pool_of_their_own(split: str) -> None:
    both = [state("bf16[B, min(C, 2047), 64]", "a", 8), state("int8[B, 4096]", "m", 18)]
    found = stage_caches(both, 16, CacheRule(split=split, keeps=()))
    ((pool,),) = (found.pools,)
    assert (found.shares(1000), len(pool.groups)) == ([1.0], 1)
    assert pool.state * pool.bytes >= 18 * 4096


@given(st.integers(1, 10**6), st.sampled_from([1, 16, 32]))
def test_a_state_takes_one_wide_page_or_the_narrow_pages_that_hold_it(size: int, block: int) -> None:
    """vLLM widens the blocks of attention; in other engines they stay as long as the engine sets them."""
    both = [state("int8[B, C, 64]", "a", 2), state(f"int8[B, {size}]", "m", 2)]
    for wide in (False, True):
        ((pool,),) = (stage_caches(both, block, CacheRule(wide_pages=wide)).pools,)
        assert wide or pool.groups == (CacheGroup(block),)
        assert not wide or pool.state == 1
        assert 0 <= pool.state * pool.bytes - 2 * size < pool.bytes


def test_a_cache_that_is_kept_is_one_of_full_attention() -> None:
    alike = [state("bf16[B, C, 8]", "a", 2), state("bf16[B, min(C, 127), 8]", "b", 6)]
    kept = stage_caches(alike, 16, CacheRule(keeps=("window",)))
    assert [pool.groups for pool in kept.pools] == [(CacheGroup(16),)]
    freed = stage_caches(alike, 16, CacheRule(keeps=()))
    assert [pool.groups for pool in freed.pools] == [(CacheGroup(16), CacheGroup(16, 3, 127))]


@pytest.mark.slow
@given(decoders(5), st.integers(1, 3), st.integers(1, 50), st.integers(0, 200))
@settings(max_examples=25, deadline=None)
def test_each_policy_reserves_more_than_the_one_before(
    decoder: Decoder, batch: int, new: int, context: int
) -> None:
    program = decoder.program("last")
    flat = llmir.run(program, "unroll")
    at: dict[str, Any] = {"batch": batch, "new": new, "context": context}
    found = []
    for name in POLICIES:
        one, other = (
            llmir.analyze(p, "h100", **records(llmir.analyze, cache_policy=name, **at))
            for p in (program, flat)
        )
        assert one.kv_cache_bytes == other.kv_cache_bytes
        assert one.peak_memory_bytes == other.peak_memory_bytes
        grid = llmir.analyze(
            program,
            "h100",
            **records(llmir.analyze, cache_policy=name, **{**at, "context": np.array([context, 7])}),
        )
        assert grid.kv_cache_bytes[0] == one.kv_cache_bytes
        assert one.read_bytes == llmir.analyze(program, "h100", **records(llmir.analyze, **at)).read_bytes
        found.append(one.kv_cache_bytes)
    assert found == sorted(found)


@pytest.mark.parametrize("model", ["llama3.1-8b", "deepseek-v3", "gemma-3-12b", "qwen3-next-80b-a3b"])
def test_at_whole_pages_of_full_attention_policies_agree(model: str) -> None:
    program = llmir.load(model)
    exact, paged, unified = (
        llmir.analyze(program, "h200", new=1, context=32767, cache_policy=name).kv_cache_bytes
        for name in POLICIES
    )
    if model in ("llama3.1-8b", "deepseek-v3"):
        assert exact == paged == unified
    else:
        assert exact <= paged < 1.01 * exact
        # of 48 layers of 8 heads of 256, if all were global
        assert unified == 48 * 2 * 2 * 8 * 256 * 32768 if model == "gemma-3-12b" else unified > paged


def test_a_policy_is_named_where_it_acts(run: Run) -> None:
    program = llmir.run(llmir.load("gemma-3-12b"), "fuse-attention")
    at: dict[str, Any] = {"prompt": 30000, "generate": 2}
    jobs = {
        name: llmir.workload(program, "h200", **records(llmir.workload, cache_policy=name, **at))
        for name in POLICIES
    }
    # By the engine's own rule, which `exact` leaves in force, prefill also takes blocks for tokens in flight.
    assert jobs["paged"].max_batch >= jobs["exact"].max_batch > 2 * jobs["unified"].max_batch
    for name, job in jobs.items():
        assert job.to_dict()["cache_policy"] == name
        assert (f"caches {name}" in str(job)) == (name != "exact")
    command = ["analyze", "tiny.json", "--cache-policy"]
    assert "caches paged" in run(*command, "paged").out
    wrong = run(*command, "pages")
    assert wrong.code == 2
    assert "'exact', 'paged', 'unified'" in wrong.err
    for made in (llmir.workload, llmir.analyze):
        with pytest.raises(InputError, match="cache_policy: expected exact, paged or unified, got 'all'"):
            made(llmir.load(TINY), "h100", **records(made, cache_policy="all"))


@pytest.mark.parametrize("name", POLICIES)
def test_the_peak_is_that_of_the_fullest_step_though_chunks_are_let_go(name: str) -> None:
    program = llmir.run(llmir.load("llama-4-scout"), "fuse-attention")
    job = llmir.workload(
        program,
        "h200",
        prompt=8000,
        generate=400,
        memory=llmir.Memory(cache_policy=name),
        estimation=llmir.Estimation(cost="ideal"),
    )
    steps = llmir.analyze(program, "h200", context=np.arange(8000, 8399), cache_policy=name)
    highest = max(job.prefill.peak_memory_bytes, float(np.max(steps.peak_memory_bytes)))
    assert job.peak_bytes(1) == highest
    assert job.decode
    if name == "exact":  # 36 layers of 8 heads of 128 keep 8,191 tokens, and 207 at the end
        assert highest - job.decode.peak_memory_bytes > 7900 * 36 * 2 * 2 * 8 * 128


# The models of the table, as presets, with what it says of their ranks and types.
PRESETS = {
    "Llama-3.3-70B": "llama3.3-70b",
    "Gemma-2-9B": "gemma-2-9b",
    "Granite-3.1-2B": "granite-3.1-2b-instruct",
    "Llama-3.1-8B": "llama3.1-8b",
    "Phi-4": "phi-4-14b",
    "Mixtral-8x7B": "mixtral-8x7b",
}


@pytest.mark.skipif(not MEASURED.exists(), reason="engines' logs lie beside the checkout")
def test_vllm_has_room_for_as_many_tokens_as_it_says() -> None:
    """Of one sequence: its cache fits the memory that is there, and a page more would not (GiB to 0.01).

    Gemma 2's 21 layers with windows of 4,096 count as those without, so `unified` is what its log says; their
    `exact` bytes leave room.
    """
    with MEASURED.open() as file:
        said = [row for row in csv.DictReader(file) if row["kv_gib"] and row["tokens"]]
    # Left out: stages, whose fullest decides, and a pair of cards of which one has less room than it says.
    rows = [row for row in said if row["pp"] == "1" and row["engine"] != "0.7.1"]
    assert len(rows) >= 15
    for row in rows:
        program = llmir.load(PRESETS[row["model"]])
        steps = {"fp8": "quantize{kv=fp8},", "auto": ""}[row["kv"]] + "fuse-attention"
        if row["dtype"] == "fp32":
            steps = f"quantize{{activations=fp32, kv=fp32}},{steps}"
        program = llmir.run(program, f"{steps},shard{{tp={row['tp']}}}")
        room = float(row["kv_gib"]) * 2**30
        tokens = int(row["tokens"])
        windows = 1 if row["model"] != "Gemma-2-9B" else (21 + 21 * 4095 / tokens) / 42
        for name, share in (("unified", 1), ("exact", windows)):
            step = llmir.analyze(program, "h100", new=1, context=tokens - 1, cache_policy=name)
            assert step.kv_cache_bytes == pytest.approx(share * room, rel=0.003), row


def test_rows_that_a_compressor_is_yet_to_read_are_a_state_of_fixed_size() -> None:
    """DeepSeek-V4: all tokens' keys of 43 layers of 512 bf16, entries of 4 and 128, and pages not filled."""
    program = llmir.load("deepseek-v4-flash")
    exact, unified = (
        llmir.analyze(program, "b200", new=32768, cache_policy=name).kv_cache_bytes
        for name in ("exact", "unified")
    )
    keys = 43 * 32768 * 512 * 2
    assert keys + 0.8 * exact < unified < 2 * (keys + exact)


def test_what_encodes_images_keeps_no_token() -> None:
    """No token of a prompt is there before its images are."""
    program = llmir.run(llmir.load("llava-onevision-qwen2-0.5b"), "place-images{tokens=1485}")
    work = llmir.workload(program, "a100", prompt=64, generate=2)
    assert work.encode is not None and work.encode.kv_cache_bytes == 0
    layers, heads, size, bytes = 24, 2, 64, 2
    assert work.prefill.kv_cache_bytes == 2 * layers * heads * size * bytes * 1549


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_longer_requests_never_hold_less_where_chunks_are_dropped(engine: str) -> None:
    # Chunked attention (Llama 4) drops 8,192 tokens at a time: a longer request was full before.
    program = llmir.run(llmir.load("Llama-4-Scout-17B-16E"), f"{llmir.pipeline_of(engine)},shard{{tp=8}}")
    lengths = 8000, 8191, 8192, 8193, 12_000, 16_384, 16_385, 20_001
    held = [
        llmir.workload(
            program, "h200", batch=8, prompt=n, generate=2, estimation=llmir.Estimation(engine=engine)
        ).peak_bytes(8)
        for n in lengths
    ]
    assert held == sorted(held)
