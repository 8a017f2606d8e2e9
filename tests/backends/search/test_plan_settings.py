"""Settings that a plan keeps: what is stated is simulated, emitted and never changed by the search."""

from __future__ import annotations

from typing import Any

import pytest

import llmir
from llmir.backends.search.launch import launch_command
from llmir.base.errors import InputError
from tests.commands import Run
from tests.flat import records

TRAFFIC = {"rate": 1, "prompt": 1000, "generate": 100, "requests": 200, "gpus": 2}
STATED = {"memory_utilization": 0.7, "max_num_seqs": 24, "max_batched_tokens": 4096}
FLAGS = {
    ("vllm", True): "--gpu-memory-utilization 0.7, --max-num-seqs 24, --max-num-batched-tokens 4096, "
    "--enable-chunked-prefill",
    ("vllm", False): "--no-enable-chunked-prefill, --max-num-batched-tokens 4096, --max-model-len 4096",
    ("sglang", True): "--mem-fraction-static 0.7, --max-running-requests 24, --chunked-prefill-size 4096",
    ("sglang", False): "--chunked-prefill-size -1, --max-prefill-tokens 4096",
    ("trtllm", True): "--kv_cache_free_gpu_memory_fraction 0.7, --max_batch_size 24, --max_num_tokens 4096, "
    "enable_chunked_prefill: true",
    ("trtllm", False): "--max_num_tokens 4096, enable_chunked_prefill: false",
}


@pytest.mark.parametrize(("engine", "chunked"), FLAGS)
def test_stated_settings_are_those_of_the_server_and_of_the_command(engine: str, chunked: bool) -> None:
    """The server of a plan is that of `llmir.server` with equal settings."""
    memory = llmir.Memory(**STATED, chunked_prefill=chunked)
    plans = llmir.plan(
        "llama3.1-8b", "h100-sxm", memory=memory, **records(llmir.plan, engine=engine, **TRAFFIC)
    )
    estimation = llmir.Estimation(engine=engine)
    server = llmir.server("llama3.1-8b", "h100-sxm", memory=memory, estimation=estimation)
    best = plans.best
    assert best is not None and plans.server is not None and best.structure.split.devices == 1
    own = best.structure.capacity(best.traffic, best.chunk, best.batch)
    assert server.policy == own.policy and server.policy.chunked == chunked
    room = server.capacity(best.traffic.longest)
    assert (own.sequences, own.tokens, own.holds // 16) == (24, 4096, room.blocks * room.block // 16)
    for each in plans.shown:
        s = each.structure
        assert (s.utilization, s.sequences, s.chunked, each.chunk) == (0.7, 24, chunked, 4096)
    command = launch_command(best, engine, "meta-llama/Llama-3.1-8B")
    said = " ".join([*command.words, *command.lines])
    assert all(flag in said for flag in FLAGS[engine, chunked].split(", "))


def test_a_stated_limit_of_requests_is_kept_where_caches_hold_fewer() -> None:
    """Of 900 requests of 2,000 tokens a GPU of 80 GB holds some 220; the command still states 900."""
    asked = {**TRAFFIC, "prompt": 1900, "max_num_seqs": 900}
    best = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked)).best
    assert best is not None and best.batch < 900
    assert "--max-num-seqs 900" in launch_command(best, "vllm", "meta-llama/Llama-3.1-8B").words


def test_the_search_leaves_a_stated_setting_as_it_is() -> None:
    """TensorRT-LLM refuses prompts above 8,192 tokens, unless chunked prefill is on."""
    asked: dict[str, Any] = {**TRAFFIC, "rate": 0.2, "prompt": 9000, "engine": "trtllm"}
    free = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked)).best
    assert free is not None and free.changed_settings == {"chunked_prefill": (False, True)}
    whole = {"chunked_prefill": False, "max_batched_tokens": 8192}
    assert llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked, **whole)).best is None


def test_a_setting_that_equals_the_default_is_no_change() -> None:
    asked = {**TRAFFIC, "chunked_prefill": True, "max_num_seqs": 1024, "max_batched_tokens": 8192}
    best = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked)).best
    assert best is not None and best.changed_settings == {}


def test_reserved_memory_is_left_free_and_has_no_flag() -> None:
    """Caches hold 10 GB less: 131,072 bytes a token of 8 key-value heads of 128 in 32 layers."""
    most = []
    for size in (0, 10_000_000_000):
        best = llmir.plan(
            "llama3.1-8b", "h100-sxm", **records(llmir.plan, **TRAFFIC, reserve_bytes=size)
        ).best
        assert best is not None
        most.append(best.structure.capacity(best.traffic, best.chunk).holds)
    assert most[0] - most[1] == pytest.approx(10_000_000_000 / 131_072, rel=0.001)
    with pytest.raises(InputError, match="llmir knows no flag that keeps memory free"):
        llmir.plan("llama3.1-8b", **records(llmir.plan, **TRAFFIC, reserve_bytes=1, emit="vllm"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--max-num-seqs 0", "--max-num-seqs: expected an integer from 1"),
        ("--memory-utilization 1.5", "--memory-utilization: expected a number above 0 up to 1, got 1.5"),
        (
            "--max-num-seqs 8 --batch 4",
            "--max-num-seqs: batch lists values to compare; leave one of them out",
        ),
        ("--max-batched-tokens 8 --chunk 4", "--max-batched-tokens: chunk lists values to compare"),
        ("--max-num-seqs 9999", "--max-num-seqs: 8,192 tokens of a step are fewer than 9,999 sequences"),
        ("--reserve much", "--reserve: expected a size such as 2GiB"),
        ("--reserve 1GB --emit vllm", "--reserve: llmir knows no flag that keeps memory free"),
        (
            "--no-chunked-prefill --max-batched-tokens 4047 --generate 2000 --emit vllm",
            "--max-batched-tokens: 4,047; requests have up to 4,048 tokens, and steps of whole prompts 4,047",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(run: Run, words: str, said: str) -> None:
    done = run("plan", "llama3.1-8b", "--rate", "1", "--gpus", "1", *words.split())
    assert done.code == 2 and done.err.startswith(f"error: {said}") and done.err.count("\n") == 1
