"""Plans of prefill and decode servers: against the simulator of pools, brute force, what engines refuse."""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.search.plan import Plans, PooledCandidate
from llmir.backends.search.tandem import tandem
from llmir.errors import InputError

LINK = "50GBps,5us"
ASKED: dict[str, Any] = {
    "prompt": 2000,
    "generate": 60,
    "max_ttft": "0.4s",
    "max_tpot": "9ms",
    "requests": 300,
}


def pooled(plans: Plans) -> list[PooledCandidate]:
    return [each for each in plans.shown if isinstance(each, PooledCandidate)]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("servers", [(1, 1), (2, 3), (3, 1)])
def test_servers_one_by_one_are_all_of_them_together(engine: str, servers: tuple[int, int]) -> None:
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of(engine))
    one = llmir.server(model, "h100-sxm", engine=engine)
    pair = llmir.pools(one, one, "5GBps,5us")
    load = llmir.traffic(
        rate=12 * servers[0], prompt="uniform:100,3000", generate="uniform:1,200", requests=400, seed=1
    )
    whole = pair.run(load, prefill_replicas=servers[0], decode_replicas=servers[1])
    ttft_s, tpot_s = tandem(pair, load, servers)
    np.testing.assert_allclose(ttft_s, whole.ttft_s, rtol=1e-9)
    np.testing.assert_allclose(tpot_s, whole.tpot_s, rtol=1e-9)


def test_pools_are_the_fewest_of_all_pairs_by_brute_force() -> None:
    """Every pair of tp 1 and 2 in all numbers of servers on 6 devices, by the simulator of pools."""
    rate, gpus = 30, 6
    plans = llmir.plan("llama3.1-8b", "h100-sxm", rate=rate, gpus=gpus, link=LINK, chunk=8192, **ASKED)
    (found,) = pooled(plans)
    assert found.meets
    servers = {}
    for tp in (1, 2):
        shard = f",shard{{tp={tp}}}" if tp > 1 else ""
        model = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of('vllm')}{shard}")
        servers[tp] = llmir.server(model, "h100-sxm", max_batched_tokens=8192)
    fewest = gpus + 1
    for one, two, x, y in product((1, 2), (1, 2), range(1, gpus), range(1, gpus)):
        devices = x * one + y * two
        if devices >= fewest or x * one + y * two > gpus:
            continue
        pair = llmir.pools(servers[one], servers[two], LINK)
        runs = []
        for seed in plans.seeds:
            load = llmir.traffic(rate=rate, prompt=2000, generate=60, requests=300, seed=seed)
            run = pair.run(load, prefill_replicas=x, decode_replicas=y, warm_up=30)
            runs.append((run.latencies["ttft"].p99, run.latencies["tpot"].p99))
            if runs[-1][0] > 0.4 or runs[-1][1] > 0.009:
                break
        spread = np.std(runs, axis=0, ddof=1) * 2.776 * (1 + 1 / 5) ** 0.5 if len(runs) == 5 else np.inf
        if np.all(np.mean(runs, axis=0) + spread <= (0.4, 0.009)):
            fewest = devices
    assert found.devices == fewest


def test_pools_that_an_engine_refuses_are_no_plans() -> None:
    """SGLang sends windows only between servers of one tp: what would be cheaper is refused."""
    asked = {**ASKED, "rate": 60, "max_tpot": "14ms", "gpus": 32, "link": LINK}
    plans = llmir.plan("gemma2-9b", "h100-sxm", engine="sglang", **asked)
    assert pooled(plans)
    assert all(each.reads.split.tp == each.structure.split.tp for each in pooled(plans))
    why = [refusal.why for name, refusal in plans.refused.items() if name.startswith("pools ")]
    assert why and all("only where tp is the same" in each or "GPUs" in each for each in why)


def test_closed_forms_of_pools_are_those_of_analyze() -> None:
    """As many decode servers at least as answer B requests in the time of their steps."""
    plans = llmir.plan("llama3.1-8b", "h100-sxm", rate=30, gpus=8, link=LINK, **ASKED)
    (found,) = pooled(plans)
    batch, s = found.batch, found.structure
    step = llmir.analyze(s.program, s.device, batch=batch, new=1, context=2000 + 30)
    assert float(step.time_s) <= 9e-3
    answered = batch / (59 * float(step.time_s))
    assert found.replicas * found.servers[1] >= ceil(30 / (answered * 1.1))
    assert found.largest_rate is not None and found.largest_rate >= 30


def test_a_plan_of_pools_has_its_line_and_its_servers() -> None:
    plans = llmir.plan("llama3.1-8b", "h100-sxm", rate=40, gpus=16, link="nvlink", **ASKED)
    best = plans.best
    assert isinstance(best, PooledCandidate)
    lines = str(plans).splitlines()
    assert f" prefill of {best.reads.split} and " in lines[0]
    assert max(map(len, lines)) <= 80
    report = plans.to_dict()["best"]["pools"]
    total = sum(n["servers"] * n["tp"] for n in (report["prefill"], report["decode"])) * best.replicas
    assert total == best.devices and report["link"] == "nvlink"
    assert "wait for prompts that are read beside them" in " ".join(str(plans).split())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"link": "host"}, "host leads to no other server"),
        ({"link": "nvlink", "emit": "vllm"}, "leave out emit"),
    ],
)
def test_links_that_join_nothing(asked: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        llmir.plan("llama3.1-8b", rate=1, gpus=2, requests=100, **asked)


def test_a_link_that_no_device_has_is_said_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmir.backends.search.search.search", None)
    with pytest.raises(InputError, match="link: H100-SXM has "):
        llmir.plan("llama3.1-8b", rate=1, gpus=2, link="infiniband")


def test_a_slow_link_is_as_slow_in_a_plan() -> None:
    """A cache of 2,000 tokens is 262 MB: at 1 GB/s one link carries 3.8 of them a second."""
    asked = {**ASKED, "max_tpot": "40ms"}
    plans = llmir.plan("llama3.1-8b", "h100-sxm", rate=10, link="1GBps", gpus=16, **asked)
    for each in pooled(plans):
        if each.meets:
            assert min(each.servers) * each.replicas >= 10 * 262e6 / 1e9
