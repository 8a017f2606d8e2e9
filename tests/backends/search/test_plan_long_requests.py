"""Requests of a plan that some candidate has no room for: it loses, and says so, and others go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

import llmir
from llmir.backends.search.launch import launch_command
from llmir.backends.search.search import PoolSearch, Search
from llmir.backends.search.structures import ElementTypes
from llmir.backends.search.trial import Replica
from llmir.base.errors import InputError
from llmir.cli.main import cli
from tests.flat import records

# The longest of such prompts are some 70,000 tokens; caches of one L4 hold half as many, of two three times.
LAW = "lognormal:2000,1"
ASKED: dict[str, Any] = {"rate": 0.1, "prompt": LAW, "generate": 50, "requests": 200}
LINE = ["plan", "llama3.1-8b", "--hw", "l4", "--rate", "0.1", "--generate", "50", "--requests", "200"]


@pytest.mark.slow
def test_a_split_that_cannot_hold_a_request_loses_with_that_reason() -> None:
    plans = llmir.plan("llama3.1-8b", "l4", **records(llmir.plan, gpus=2, **ASKED))
    assert plans.best is not None and plans.best.structure.split.devices == 2
    why = plans.refused["L4 tp 1"].why
    assert why.startswith("does not fit: the cache holds ") and f"up to {plans.traffic.longest - 1:,}" in why
    assert {"L4 tp 1"} == set(plans.refused)
    assert plans.hour is not None and plans.hour.simulation.load.longest <= plans.traffic.longest


@pytest.mark.slow
def test_the_reason_is_what_the_simulator_says() -> None:
    """A request of as many tokens as is said is served there, and one of more is not."""
    plans = llmir.plan("llama3.1-8b", "l4", **records(llmir.plan, gpus=2, **ASKED))
    most = int(plans.refused["L4 tp 1"].why.split(" holds ")[1].split()[0].replace(",", ""))
    alone = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    step: dict[str, Any] = {"max_batched_tokens": 2048, "requests": 1, "rate": 1, "generate": 50}
    assert llmir.simulate(alone, "l4", **records(llmir.simulate, prompt=most - 49, **step)).made.tolist() == [
        50
    ]
    with pytest.raises(InputError, match=f"the cache holds at most {most:,} tokens"):
        llmir.simulate(alone, "l4", **records(llmir.simulate, prompt=most - 48, **step))


def test_where_no_split_holds_all_requests_there_is_no_plan() -> None:
    done = CliRunner().invoke(cli, [*LINE, "--prompt", LAW, "--gpus", "1"])
    assert done.exit_code == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("limit not met: the closest plan is L4 tp 1: does not fit: the cache holds "), (
        done.stderr
    )
    assert "of requests have more, up to " in last and "no plan" in done.stdout


def test_a_prompt_that_no_step_reads_whole_is_a_reason() -> None:
    """vLLM 0.4 reads prompts whole: in a step of as many tokens as are said."""
    asked = {**ASKED, "prompt": "uniform:1000,5000", "engine": "vllm@0.4", "chunk": 4096, "gpus": 1}
    plans = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **asked))
    assert plans.best is None
    why = plans.refused["H100-SXM tp 1"].why
    assert why.startswith("does not fit: a step reads 4,096 tokens at most, ")
    share = float(why.split("most, ")[1].split("%")[0]) / 100
    assert share == pytest.approx(904 / 4001, rel=0.2)  # by the law
    assert (
        llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **{**asked, "chunk": 5050})).best
        is not None
    )


def test_a_default_that_rejects_or_starves_the_traffic_is_changed_and_emitted() -> None:
    """TensorRT-LLM reads whole prompts of up to 8,192 tokens; a prompt of 8,192 leaves no token for decodes.

    NVIDIA's performance overview of TensorRT-LLM has 537 tokens/s a GPU with chunked prefill: 2 · 1024 / 537
    are 4 GPUs at least.
    """
    limits = {"max_ttft": "5s", "max_tpot": "60ms", "weights": "fp8", "engine": "trtllm"}
    asked = {"rate": 2, "prompt": 8192, "generate": 1024, "requests": 200, "gpus": 16}
    best = llmir.plan("llama3.3-70b", "h200", **records(llmir.plan, **limits, **asked)).best
    assert best is not None and 4 <= best.devices <= 10
    assert best.changed_settings["chunked_prefill"] == (False, True)
    bf16 = best.structure._replace(types=ElementTypes())
    command = launch_command(replace(best, structure=bf16), "trtllm", "meta-llama/Llama-3.3-70B-Instruct")
    assert "enable_chunked_prefill: true" in command.lines
    assert command.words[-1] == "--extra_llm_api_options options.yaml"


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "--gpu-memory-utilization 0.95"),
        ("sglang", "--mem-fraction-static 0.95"),
        ("trtllm", "--kv_cache_free_gpu_memory_fraction 0.95"),
    ],
)
def test_a_request_that_fits_in_more_of_the_memory_has_a_plan(engine: str, flag: str) -> None:
    """A request of as many tokens as the default leaves room for has none above, and a plan with 0.95."""
    asked: dict[str, Any] = {"rate": 0.01, "generate": 50, "requests": 100, "gpus": 1, "engine": engine}
    alone = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of(engine))
    how = {"prompt": 20000, "generate": 50, "max_batched_tokens": 2048, "engine": engine}
    pool = llmir.workload(alone, "l4", **records(llmir.workload, **how)).pool
    assert pool is not None and pool.kv_tokens is not None
    best = llmir.plan("llama3.1-8b", "l4", **records(llmir.plan, prompt=pool.kv_tokens + 500, **asked)).best
    assert best is not None and best.structure.utilization == 0.95
    default, plan = best.changed_settings["memory_utilization"]
    assert default < plan == 0.95
    command = launch_command(best, engine, "meta-llama/Llama-3.1-8B")
    assert flag in " ".join([*command.words, *command.lines])


def test_requests_beyond_the_positions_are_counted_and_need_no_room() -> None:
    plans = llmir.plan("llama3-8b", "l4", **records(llmir.plan, gpus=1, **ASKED))
    assert plans.best is not None and plans.traffic.longest <= 8192
    share = float(plans.notes[-1].split("%")[0]) / 100
    run = llmir.simulate(
        llmir.run(llmir.load("llama3-8b"), llmir.pipeline_of("vllm")),
        "l4",
        **records(llmir.simulate, **{**ASKED, "requests": 2000}),
    )
    assert share == pytest.approx(run.refused / 2000, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("link", [None, "nvlink"])
def test_a_candidate_that_fails_in_a_run_is_one_that_loses(
    link: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run draws more requests than were looked at before it."""

    def fail(*_: object) -> None:
        raise InputError("does not fit: the cache holds at most 9 tokens; request 1 of 10 tokens")

    plans = llmir.plan(
        "llama3.1-8b",
        "h100-sxm",
        gpus=2,
        traffic=llmir.Traffic(rate=1, prompt=100, generate=10, requests=100),
    )
    search = Search(plans.structures, plans.traffic, 2, None, None)
    monkeypatch.setattr(Replica, "run", fail)
    assert search.candidates() == ([], [])
    assert all(each.why.startswith("does not fit") for each in search.refused.values())
    assert "H100-SXM tp 1" in search.refused
    if link:
        monkeypatch.setattr(PoolSearch, "_run", fail)
        pooling = PoolSearch(search, link)
        assert pooling.candidates() == [] and pooling.refused
