"""`analyze --concurrency` and `serve-sim --closed`: one answer, and what benchmark clients measure."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

import llmir
from llmir.backends.request.closed_loop import ClosedLoopWorkload, least_answer
from llmir.backends.simulate.load import Load, closed_loop_requests, closed_loop_warm_up
from llmir.backends.simulate.result import ReplicaSimulation
from llmir.base.errors import InputError
from tests.commands import Run

# Models by their caches, with the ranks that split them.
MODELS: dict[str, tuple[int, ...]] = {
    "llama3.1-8b": (1, 2),  # full
    "gemma3-4b": (1, 2),  # full and windows
    "gpt-oss-20b": (1, 2),  # full and windows, with experts
    "llama4-scout": (4, 8),  # full and chunks
    "deepseek-v2-lite": (1, 2),  # latent
    "qwen3-next-80b-a3b": (4,),  # full and states
    "falcon-mamba-7b": (1,),  # states alone
}
EXPERTS = ("gpt-oss-20b", "llama4-scout", "deepseek-v2-lite", "qwen3-next-80b-a3b")


@cache
def deployment(seed: int) -> tuple[str, str, dict[str, Any], dict[str, int]]:
    """A random model, device, way to run it, and closed loop."""
    rng = random.Random(seed)
    name = rng.choice([*MODELS])
    tp, dp = rng.choice(MODELS[name]), rng.choice([1, 1, 2, 4])
    ep = rng.choice([1, tp * dp]) if name in EXPERTS and tp * dp <= 16 else 1
    parallel = llmir.Parallel(tp=tp, dp=dp, ep=ep)
    estimation = llmir.Estimation(engine=rng.choice(["vllm", "sglang", "trtllm"]))
    users = rng.choice([1, 2, 5, 8, 17, 32, 64, 100])
    loop = {"prompt": rng.choice([16, 100, 700, 2000, 6000]), "generate": rng.choice([1, 2, 10, 60, 300])}
    device = rng.choice(["h100-sxm", "h200", "b200"])
    return name, device, {"parallel": parallel, "estimation": estimation}, {"users": users, **loop}


@pytest.mark.mostly_slow(20)
@pytest.mark.parametrize("seed", range(120))
def test_a_loop_of_analyze_is_the_one_that_serve_sim_simulates(seed: int) -> None:
    """The issue asks for 5% of throughput and TPOT, and 10% of TTFT; it is one simulation."""
    name, device, how, loop = deployment(seed)
    users, lengths = loop["users"], {"prompt": loop["prompt"], "generate": loop["generate"]}
    job = llmir.workload(name, device, concurrency=users, **lengths, **how)
    served = llmir.simulate(name, device, llmir.Traffic(closed=users, **lengths), **how).to_dict()
    found, known = job.to_dict()["serving"], served["latency_s"]
    assert found["ttft_s"] == pytest.approx(known["ttft"]["mean"])
    assert found["tpot_s"] == (known["tpot"] and pytest.approx(known["tpot"]["mean"]))
    assert found["e2e_s"] == pytest.approx(known["e2e"]["mean"])
    assert found["output_tokens_per_s"] == pytest.approx(served["output_tokens_per_s"])
    assert (found["requests"], found["warm_up"]) == (served["requests"], served["warm_up"])
    assert sum(term["time_s"] for term in found["terms"]) == pytest.approx(found["tpot_s"] or 0.0)
    assert all(term["time_s"] >= 0 for term in found["terms"])


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_the_commands_print_one_answer(run: Run, engine: str) -> None:
    """The row of the issue, with 8 users: TTFT was 8.15 s in one command and 0.26 s in the other."""
    where = ["deepseek-v3", "--hw", "h200", "--tp", "8", "--engine", engine]
    asked = [*where, "--prompt", "4096", "--generate", "128", "--format", "json"]
    analyzed = json.loads(run("analyze", *asked, "--concurrency", "8").out)["serving"]
    simulated = json.loads(run("serve-sim", *asked, "--closed", "8").out)
    assert analyzed["ttft_s"] == pytest.approx(simulated["latency_s"]["ttft"]["mean"])
    assert analyzed["tpot_s"] == pytest.approx(simulated["latency_s"]["tpot"]["mean"])
    assert analyzed["output_tokens_per_s"] == pytest.approx(simulated["output_tokens_per_s"])


def test_a_server_that_ends_all_at_once_has_a_largest_rate() -> None:
    """Answers of one token to prompts that fit in one step end together."""
    traffic = llmir.Traffic(closed=2, prompt=2, generate=1, requests=8)
    served = llmir.simulate("falcon-mamba-7b", "h200", traffic, memory=llmir.Memory(max_num_seqs=4096))
    assert 0 < served.largest_rate < float("inf")


def interval(engine: str) -> llmir.Estimation:
    return llmir.Estimation(engine=engine, receive_interval=30)


def load(**how: Any) -> Load:
    return llmir.traffic(llmir.Traffic(closed=8, prompt=100, **how))


def test_answers_are_spread_as_inferencex_draws_them() -> None:
    """Uniform from 0.8 to 1.0 of the stated length; ten of each user, of which two warm up."""
    some = load(generate=1000)
    assert len(some) == 80 and closed_loop_warm_up(some) == 16
    assert some.generate.min() >= 800 and some.generate.max() <= 1000
    assert some.generate.mean() == pytest.approx(900, rel=0.02)
    assert set(load(generate=1000, lengths="fixed").generate.tolist()) == {1000}
    assert set(load(generate="uniform:3,3").generate.tolist()) == {3}  # a law is taken as stated
    open_loop = llmir.Traffic(rate=1, generate=1000, requests=20)
    assert set(llmir.traffic(open_loop).generate.tolist()) == {1000}
    assert [least_answer(tokens) for tokens in (1, 2, 3, 1024)] == [1, 2, 2, 819]


def test_many_users_have_fewer_requests_each() -> None:
    """Never fewer than four of each, until there are 100,000 in all."""
    assert [closed_loop_requests(n) for n in (1, 64, 1000, 2000, 5000)] == [10, 640, 10_000, 10_000, 20_000]
    assert closed_loop_requests(10_000_000) == 100_000


@pytest.mark.parametrize("users", [1, 6])
def test_rates_count_whole_rounds_of_all_users(users: int) -> None:
    """Equal answers of an engine that reads prompts first come in waves: N · G tokens in each, exactly."""
    server = llmir.server("llama3.1-8b", "h100-sxm", estimation=llmir.Estimation(engine="sglang"))
    asked = {"closed": users, "prompt": 2000, "generate": 50, "lengths": "fixed"}
    for rounds in (4, 10):
        run = server.run(llmir.traffic(llmir.Traffic(**asked, requests=rounds * users)))  # type: ignore[arg-type]
        wave_s = float(run.e2e_s[run.warm_up :].mean())
        assert run.output_tokens_per_s == pytest.approx(users * 50 / wave_s)
        assert run.requests_per_s == pytest.approx(users / wave_s)


def test_rates_of_replicas_add_up_to_the_rate_of_all() -> None:
    server = llmir.server("llama3.1-8b", "h100-sxm")
    load = llmir.traffic(llmir.Traffic(closed=24, prompt=500, generate=100))
    run = server.run(load, replicas=3, router="least-loaded")
    assert isinstance(run, ReplicaSimulation)
    each = [one.output_tokens_per_s for one in run.replicas]
    assert sum(each) == pytest.approx(run.output_tokens_per_s, rel=0.1)
    alone = server.run(llmir.traffic(llmir.Traffic(closed=8, prompt=500, generate=100)))
    assert run.output_tokens_per_s == pytest.approx(3 * alone.output_tokens_per_s, rel=0.05)


def test_users_beyond_what_runs_only_wait() -> None:
    """Of 20 and 60 users of a server that runs 4, the ones that wait do so for one answer more."""
    how: dict[str, Any] = {"memory": llmir.Memory(max_num_seqs=4)}
    found = llmir.workload("llama3.1-8b", "h100-sxm", concurrency=60, prompt=500, generate=80, **how)
    traffic = llmir.Traffic(closed=60, prompt=500, generate=80)
    served = llmir.simulate("llama3.1-8b", "h100-sxm", traffic, **how)
    assert isinstance(found, ClosedLoopWorkload)
    ttft = served.latencies["ttft"]
    assert found.loop.figures.requests < len(served.load)
    assert ttft and found.loop.ttft_s == pytest.approx(ttft.mean, rel=0.05)
    assert found.loop.output_tokens_per_s == pytest.approx(served.output_tokens_per_s, rel=0.03)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_users_of_ranks_that_share_nothing_are_those_of_replicas(engine: str) -> None:
    """A rank that waited for the other ranks made 36% fewer tokens."""
    users, lengths = 64, {"prompt": 2000, "generate": 100}
    how: dict[str, Any] = {"estimation": llmir.Estimation(engine=engine)}
    four = llmir.Parallel(dp=4)
    job = llmir.workload("llama3.1-8b", "h100-sxm", concurrency=users, parallel=four, **lengths, **how)
    replicas = llmir.Servers(replicas=4)
    traffic = llmir.Traffic(closed=users, **lengths)
    served = llmir.simulate("llama3.1-8b", "h100-sxm", traffic, servers=replicas, **how)
    assert isinstance(job, ClosedLoopWorkload)
    ttft, tpot = served.latencies["ttft"], served.latencies["tpot"]
    assert ttft and tpot
    # Tables of step times are kept from loop to loop, and how they grew decides the last digit.
    assert job.loop.ttft_s == pytest.approx(ttft.mean, rel=1e-12, abs=0)
    assert job.loop.tpot_s == pytest.approx(tpot.mean, rel=1e-12, abs=0)
    assert job.loop.output_tokens_per_s == pytest.approx(served.output_tokens_per_s, rel=1e-12, abs=0)
    assert job.loop.figures.decoding == pytest.approx(4 * served.decodes, rel=1e-12, abs=0)
    assert not [note for note in job.notes if "rank" in note]


def test_no_more_requests_decode_than_there_are_users() -> None:
    """Of four ranks that share nothing three are idle, while one serves the only user."""
    for dp in (1, 4):
        job = llmir.workload(
            "llama3.1-8b",
            "h100-sxm",
            concurrency=1,
            prompt=100,
            generate=20,
            parallel=llmir.Parallel(dp=dp),
        )
        assert isinstance(job, ClosedLoopWorkload)
        assert job.loop.decoding == 1 and job.loop.terms[0].what == "decode step, batch 1"


def test_prompts_that_an_engine_refuses_are_read_in_chunks_and_noted() -> None:
    how = {"estimation": llmir.Estimation(engine="trtllm")}
    job = llmir.workload("llama3.1-8b", "h100-sxm", concurrency=4, prompt=10_000, generate=40, **how)
    assert "trtllm refuses them unless chunked prefill is on" in job.notes[-1]
    traffic = llmir.Traffic(closed=4, prompt=10_000, generate=40)
    served = llmir.simulate(
        "llama3.1-8b", "h100-sxm", traffic, memory=llmir.Memory(chunked_prefill=True), **how
    )
    ttft = served.latencies["ttft"]
    assert isinstance(job, ClosedLoopWorkload)
    assert ttft and job.loop.ttft_s == pytest.approx(ttft.mean)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: load(lengths="equal"), "lengths: expected spread or fixed, got 'equal'"),
        (
            lambda: load(generate="uniform:3,9", lengths="fixed"),
            "lengths: fixed; generate 'uniform:3,9' says",
        ),
        (lambda: llmir.workload("llama3.1-8b", "h100", lengths="fixed"), "it requires concurrency"),
        (
            lambda: llmir.workload(
                "llama3.1-8b", "h100", estimation=interval("sglang"), prompt=9, generate=9
            ),
            "receive_interval: 30; one batch has no new requests, so concurrency is needed",
        ),
        (
            lambda: llmir.workload("llama3.1-8b", "h100", concurrency=4, estimation=interval("vllm")),
            "receive_interval: 30; vllm .* has no such setting, sglang has",
        ),
        (
            lambda: llmir.workload("llama3.1-8b", "h100", concurrency=2, lengths=3),
            "lengths: expected spread or fixed",
        ),
    ],
)
def test_what_is_refused(ask: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ask()
