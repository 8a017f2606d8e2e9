"""Models with states: each sequence that runs has them, however long it is, and they take memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.server import is_deterministic
from tests.flat import records

ASKED: dict[str, Any] = {"prompt": 1500, "generate": 64}


def program(name: str) -> Any:
    return llmir.run(llmir.load(name), llmir.pipeline_of("vllm"))


# Bytes by hand: layers of a scan have a state in fp32 and the last inputs of a convolution, in bf16.
BY_HAND = {
    "mamba-2.8b": 64 * 5120 * (16 * 4 + 3 * 2),  # d_inner · (d_state, d_conv − 1)
    "falcon-mamba-7b": 64 * 8192 * (16 * 4 + 3 * 2),
}


def pool(name: str) -> Any:
    found = llmir.workload(program(name), "h200", estimation=llmir.Estimation(engine="vllm")).pool
    assert found is not None
    ((one,),) = (stage.pools for stage in found.caches)
    return one


@pytest.mark.parametrize("name", BY_HAND)
def test_states_of_a_sequence_are_those_by_hand(name: str) -> None:
    found = pool(name)
    assert (found.state * found.bytes, found.groups) == (BY_HAND[name], ())


@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma2-9b", "deepseek-v2-lite", "gpt-oss-20b"])
def test_caches_that_grow_are_no_states(name: str) -> None:
    assert pool(name).state == 0 < len(pool(name).groups)
    assert (
        llmir.simulate(
            program(name), "h100-sxm", **records(llmir.simulate, closed=2, requests=2, **ASKED)
        ).capacity.state
        == 0
    )


def test_as_many_run_as_have_states() -> None:
    """Of a model that keeps nothing else, memory over states says how many."""
    server = llmir.server(
        program("mamba-2.8b"), "l4", memory=llmir.Memory(max_num_seqs=2048, max_batched_tokens=2048)
    )
    run = server.run(llmir.traffic(llmir.Traffic(closed=900, requests=900, prompt=2, generate=50)))
    pool = server.of(1564).pool
    assert pool is not None
    most = int(pool.rooms()[0].caches // BY_HAND["mamba-2.8b"])
    assert run.capacity.sequences == most < 900
    assert _running(run) == most


def _running(run: Any) -> int:
    """How many have been admitted and have not ended, at most."""
    at = np.concatenate([run.start_s, run.end_s])
    change = np.repeat([1, -1], len(run.load))
    order = np.lexsort((change, at))  # at equal times ends first
    return int(np.cumsum(change[order]).max())


@pytest.mark.parametrize(("name", "hw"), [("qwen3-next-80b-a3b", "b200"), ("bamba-9b", "a30")])
def test_hybrids_run_no_more_than_memory_holds(name: str, hw: str) -> None:
    """Bytes of all that run at once, by `analyze`, are within memory; states are most of them."""
    of = program(name)
    run = llmir.simulate(of, hw, **records(llmir.simulate, closed=400, requests=400, **ASKED))
    most = llmir.workload(of, hw, **records(llmir.workload, batch=1, **ASKED)).max_batch
    assert 0.7 * most < _running(run) <= most
    assert run.capacity.state > 1564 / run.capacity.block
    assert run.most_blocks <= run.capacity.blocks
    found = llmir.largest(of, hw, **records(llmir.largest, **ASKED)).answers["requests"].most
    assert _running(run) <= found
    alike: dict[str, Any] = {"prompt": 1500, "generate": 64, "rate": 50, "requests": 100, "gpus": 1}
    plan = llmir.plan(name, hw, **records(llmir.plan, **alike))
    same = plan.points.chunk == run.capacity.tokens  # smaller steps leave more memory for caches
    assert max(plan.points.batch[same]) <= most


def test_such_a_server_is_not_simulated_by_the_loop_that_counts_tokens_alone() -> None:
    server = llmir.server(program("bamba-9b"), "a30")
    load = llmir.traffic(**records(llmir.traffic, rate=1, requests=2, **ASKED))
    run = serve(server.prices(), server.policy, server.capacity(load.longest), load)
    assert not is_deterministic(run) and run.blocks.free == run.blocks.total


def test_the_table_says_what_states_take() -> None:
    run = llmir.simulate(program("bamba-9b"), "a30", **records(llmir.simulate, rate=1, requests=2, **ASKED))
    said = " ".join(str(run).split())
    assert f"{run.capacity.state:,} of them for the states of each sequence" in said
