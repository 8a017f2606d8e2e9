"""Plans of prefill and decode servers: against the simulator of pools, brute force, what engines refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.api.deployment import Deployment
from llmir.backends.search.plan import Plans, PoolCandidate
from llmir.backends.search.search import PoolSearch, Search
from llmir.backends.search.traffic import Traffic
from llmir.backends.search.trial import UNDECIDED, pool_latencies, rate_verdict
from llmir.base.errors import InputError
from tests.flat import records

LINK = "50GBps,5us"
ASKED: dict[str, Any] = {
    "prompt": 2000,
    "generate": 60,
    "max_ttft": "0.4s",
    "max_tpot": "9ms",
    "requests": 300,
}


def pooled(plans: Plans) -> list[PoolCandidate]:
    return [each for each in plans.shown if isinstance(each, PoolCandidate)]


def together(pools: Any, servers: tuple[int, int], router: str, *, rounds: bool = False) -> None:
    """Of stages a round that another server interrupts goes on in parts of equal length: on average."""
    load = llmir.traffic(
        llmir.Traffic(
            rate=12 * servers[0], prompt="uniform:100,3000", generate="uniform:1,200", requests=400, seed=1
        )
    )
    named = router if max(servers) > 1 else None
    whole = pools.run(load, prefill_replicas=servers[0], decode_replicas=servers[1], router=named)
    ttft_s, tpot_s = pool_latencies(pools, load, servers, router)
    np.testing.assert_allclose(ttft_s, whole.ttft_s, rtol=1e-9)
    if rounds:
        assert np.nanmean(tpot_s) == pytest.approx(np.nanmean(whole.tpot_s), rel=0.02)
    else:
        np.testing.assert_allclose(tpot_s, whole.tpot_s, rtol=1e-9)


@pytest.mark.mostly_slow(18)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("servers", [(1, 1), (2, 3), (3, 1)])
@pytest.mark.parametrize("router", ["round-robin", "random"])
def test_servers_one_by_one_are_all_of_them_together(
    engine: str, servers: tuple[int, int], router: str
) -> None:
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of(engine))
    one = llmir.server(model, "h100-sxm", estimation=llmir.Estimation(engine=engine))
    together(llmir.pools(one, one, "5GBps,5us"), servers, router)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sides", [({"dp": 2, "ep": 2}, {"tp": 1}), ({"tp": 1}, {"dp": 2, "ep": 2}), ({"pp": 2}, {"pp": 2})]
)
def test_so_are_servers_of_ranks_and_of_stages(sides: tuple[dict[str, int], ...]) -> None:
    one, two = (
        llmir.server(
            llmir.run(llmir.load("qwen3-30b-a3b"), Deployment.of(each).around(llmir.pipeline_of("vllm"))),
            "h100-sxm",
        )
        for each in sides
    )
    together(llmir.pools(one, two, "5GBps,5us"), (2, 2), "random", rounds="pp" in sides[0])


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [0.0, 1.0])  # nothing is drawn
def test_so_are_servers_that_verify_drafts(acceptance: float) -> None:
    model, every, small = (
        llmir.run(llmir.load(name, logits), llmir.pipeline_of("vllm"))
        for name, logits in (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
    )
    one = llmir.server(
        *(model, "h100-sxm"),
        drafts=llmir.Drafts(verify=every, draft_tokens=4, acceptance=acceptance, draft_model=small),
    )
    together(llmir.pools(one, one, "5GBps,5us"), (2, 3), "random")


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_pools_with_drafts_are_the_simulators(acceptance: float) -> None:
    model, every = (llmir.load("llama3.1-8b", logits) for logits in ("last", "all"))
    asked = {**ASKED, "max_tpot": "11ms", "requests": 100}
    drafts: dict[str, Any] = {"verify": every, "draft_tokens": 3, "acceptance": acceptance}
    plans = llmir.plan(
        model, "h100-sxm", **records(llmir.plan, rate=20, gpus=6, link=LINK, **asked, **drafts)
    )
    found = pooled(plans)[0]
    sides = []
    for side, batch in ((found.reads, None), (found.structure, found.batch)):
        assert side.drafts
        own = {**drafts, "verify": side.drafts.verify}
        limits = {"max_num_seqs": batch, "max_batched_tokens": found.chunk}
        sides.append(llmir.server(side.program, "h100-sxm", **records(llmir.server, **own, **limits)))
    load = found.traffic.alone(found.replicas, 0)
    many = {"prefill_replicas": found.servers[0], "decode_replicas": found.servers[1]}
    router = found.traffic.router if max(found.servers) > 1 else None
    whole = llmir.pools(*sides, LINK).run(load, **many, router=router)
    run = found.trial.runs[0]
    first = len(whole.ttft_s) // 10 if len(load) == 100 else 0
    assert whole.ttft_s[first:].mean() == pytest.approx(run.ttft_s.mean, rel=0.1)
    assert whole.tpot_s[first:].mean() == pytest.approx(run.tpot_s.mean, rel=0.1)


@pytest.mark.slow
def test_ranks_and_stages_are_among_the_sides() -> None:
    asked = {**ASKED, "max_tpot": "12ms", "requests": 100}
    plans = llmir.plan(
        "qwen3-30b-a3b", "h100-sxm", **records(llmir.plan, rate=10, gpus=4, link=LINK, **asked)
    )
    search = Search(plans.structures, plans.traffic, 4, None, None)
    for sides in PoolSearch(search, LINK).sides():
        splits = [search.structures[side.number].split for side in sides]
        assert any(split.dp > 1 for split in splits) and any(split.pp > 1 for split in splits)
        for side in sides[:6]:
            structure = search.structures[side.number]
            assert side.rate > 0 and side.seconds > 0 and structure.split.devices <= 4


@pytest.mark.parametrize(
    ("engine", "stages", "says"),
    [
        ("vllm", (2, 2), None),
        ("vllm", (2, 1), "vllm joins servers of as many pipeline stages"),
        ("sglang", (2, 1), None),
        ("sglang", (1, 2), "sglang has decode servers of one pipeline stage, or as many; pp is 1 and 2"),
        ("trtllm", (1, 2), None),
    ],
)
def test_stages_that_an_engine_joins(engine: str, stages: tuple[int, int], says: str | None) -> None:
    one, two = (
        llmir.server(
            llmir.run(llmir.load("llama3.1-8b"), Deployment.of({"pp": pp}).around(llmir.pipeline_of(engine))),
            *("h100-sxm",),
            estimation=llmir.Estimation(engine=engine),
        )
        for pp in stages
    )
    if says is None:
        assert llmir.pools(one, two, LINK)
        return
    with pytest.raises(InputError, match=says):
        llmir.pools(one, two, LINK)


@pytest.mark.parametrize("replicas", [2, 6])
def test_in_turn_a_replica_gets_one_of_as_many_that_come(replicas: int) -> None:
    """Times between two are Erlang's: their variance is that of a Poisson process over the replicas."""
    traffic = Traffic(30.0, 100, 10, 20_000, router="round-robin")
    gaps = np.diff(traffic.alone(replicas, 0).arrival_s)
    assert gaps.mean() == pytest.approx(replicas / 30, rel=0.02)
    assert gaps.var() == pytest.approx(gaps.mean() ** 2 / replicas, rel=0.05)
    chance = np.diff(replace(traffic, router="random").alone(replicas, 0).arrival_s)
    assert chance.var() == pytest.approx((replicas / 30) ** 2, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "random"])
def test_replicas_of_a_plan_are_those_of_a_simulation(router: str) -> None:
    asked: dict[str, Any] = {"prompt": 1500, "generate": 100, "requests": 1000}
    plans = llmir.plan(
        "llama3.1-8b",
        "h100-sxm",
        **records(llmir.plan, rate=28, gpus=3, max_ttft="2s", router=router, chunk=8192, **asked),
    )
    best = next(each for each in plans.shown if each.structure.split.tp == 1 and each.replicas > 1)
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    engine = llmir.server(
        model, "h100-sxm", memory=llmir.Memory(max_num_seqs=best.batch, max_batched_tokens=8192)
    )
    load = llmir.traffic(**records(llmir.traffic, rate=28, **asked | {"requests": 6000}, seed=9))
    whole = engine.run(load, replicas=best.replicas, router=router, warm_up=600).latencies["ttft"]
    assert whole and best.trial.ttft_s.mean == pytest.approx(whole.mean, rel=0.15)
    assert plans.to_dict()["router"] == router and f"({router} router)" in " ".join(str(plans).split())


@pytest.mark.slow
def test_a_router_that_sees_queues_needs_no_more() -> None:
    asked: dict[str, Any] = {**ASKED, "rate": 40, "gpus": 12, "requests": 200}
    few = [
        llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, router=name, **asked)).best
        for name in ("random", "least-loaded")
    ]
    assert few[0] and few[1] and few[1].devices <= few[0].devices
    for name, says in (
        ("prefix-aware", "a plan's have none"),
        ("any", "router: expected round-robin, random or"),
    ):
        with pytest.raises(InputError, match=says):
            llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, router=name, **asked))


@pytest.mark.slow
def test_pools_are_the_fewest_of_all_pairs_by_brute_force() -> None:
    """Every pair of tp 1 and 2 in all numbers of servers on 6 devices, by the simulator of pools."""
    rate, gpus = 30, 6
    asked = {
        "rate": rate,
        "gpus": gpus,
        "link": LINK,
        "chunk": 8192,
        "headroom": 0.0,
        "max_ttft": "0.8s",
        "max_tpot": "9.5ms",
    }
    plans = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, **{**ASKED, **asked}))
    (found,) = pooled(plans)
    assert found.meets
    servers = {}
    for tp in (1, 2):
        shard = f",shard{{tp={tp}}}" if tp > 1 else ""
        model = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of('vllm')}{shard}")
        servers[tp] = llmir.server(model, "h100-sxm", memory=llmir.Memory(max_batched_tokens=8192))
    fewest = gpus + 1
    for one, two, x, y in product((1, 2), (1, 2), range(1, gpus), range(1, gpus)):
        devices = x * one + y * two
        if devices >= fewest or x * one + y * two > gpus:
            continue
        pools = llmir.pools(servers[one], servers[two], LINK)
        runs = []
        for seed in plans.seeds[:10]:
            load = llmir.traffic(llmir.Traffic(rate=rate, prompt=2000, generate=60, requests=300, seed=seed))
            router = "random" if max(x, y) > 1 else None
            run = pools.run(load, prefill_replicas=x, decode_replicas=y, router=router, warm_up=30)
            runs.append((run.latencies["ttft"].p99, run.latencies["tpot"].p99))
        spread = np.std(runs, axis=0, ddof=1) * 3.25 / 10**0.5  # Student's t of 10 runs at 99%
        if np.all(np.mean(runs, axis=0) + spread <= (0.8, 0.0095)):
            fewest = devices
    assert found.devices == fewest


@pytest.mark.slow
def test_pools_that_an_engine_refuses_are_no_plans() -> None:
    """SGLang sends windows only between servers of one tp: what would be cheaper is refused."""
    asked = {**ASKED, "rate": 60, "max_tpot": "14ms", "gpus": 32, "link": LINK}
    plans = llmir.plan("gemma2-9b", "h100-sxm", **records(llmir.plan, engine="sglang", **asked))
    assert pooled(plans)
    assert all(each.reads.split.tp == each.structure.split.tp for each in pooled(plans))
    why = [refusal.why for name, refusal in plans.refused.items() if name.startswith("pools ")]
    assert why and all("only where tp is the same" in each or "GPUs" in each for each in why)


@pytest.mark.slow
def test_closed_forms_of_pools_are_those_of_analyze() -> None:
    """As many decode servers at least as answer B requests in the time of their steps."""
    plans = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, rate=30, gpus=8, link=LINK, **ASKED))
    (found,) = pooled(plans)
    batch, s = found.batch, found.structure
    step = llmir.analyze(s.program, s.device, batch=batch, new=1, context=2000 + 30)
    assert float(step.time_s) <= 9e-3
    answered = batch / (59 * float(step.time_s))
    assert found.replicas * found.servers[1] >= ceil(30 / (answered * 1.1))
    assert found.largest_rate is not None and found.largest_rate >= 30


@pytest.mark.slow
def test_pools_get_more_servers_where_the_rate_is_undecided() -> None:
    """A rate that is 1% below the largest one is within its error; more servers answer it for certain."""
    asked = {"prompt": 2000, "generate": 100, "max_ttft": "5s", "requests": 100, "headroom": 0.0}
    few = pooled(llmir.plan("llama3.1-8b", **records(llmir.plan, rate=40, link="nvlink", **asked)))[0]
    assert few.meets and few.largest_rate is not None
    asked["rate"] = few.largest_rate / 1.01
    assert rate_verdict(few.largest_rate, replace(few.traffic, rate=asked["rate"])) == UNDECIDED
    many = pooled(llmir.plan("llama3.1-8b", **records(llmir.plan, link="nvlink", **asked)))[0]
    assert many.meets and many.devices > few.devices


@pytest.mark.slow
def test_a_plan_of_pools_has_its_line_and_its_servers() -> None:
    asked = {"prompt": 2000, "generate": 100, "max_ttft": "0.5s", "max_tpot": "9ms"}
    plans = llmir.plan(
        "llama3.1-8b", "h100-sxm", **records(llmir.plan, rate=40, gpus=16, link="nvlink", **asked)
    )
    best = plans.best
    assert isinstance(best, PoolCandidate)
    lines = str(plans).splitlines()
    assert f" prefill of {best.reads.split} and " in lines[0]
    assert max(map(len, lines)) <= 80
    report = plans.to_dict()["best"]["pools"]
    total = sum(n["servers"] * n["tp"] for n in (report["prefill"], report["decode"])) * best.replicas
    assert total == best.devices and report["link"] == "nvlink"
    assert "wait for the prefill of other requests" in " ".join(str(plans).split())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"link": "host"}, "host does not connect servers"),
        ({"link": "nvlink", "emit": "k8s"}, "no router of prefill and decode servers"),
    ],
)
def test_links_that_join_nothing(asked: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        llmir.plan("llama3.1-8b", **records(llmir.plan, rate=1, gpus=2, requests=100, **asked))


def test_a_link_that_no_device_has_is_said_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmir.backends.search.search.search", None)
    with pytest.raises(InputError, match="link: H100-SXM has "):
        llmir.plan("llama3.1-8b", gpus=2, **records(llmir.plan, link="infiniband", rate=1))


@pytest.mark.slow
def test_a_slow_link_is_as_slow_in_a_plan() -> None:
    """A cache of 2,000 tokens is 262 MB: at 1 GB/s one link carries 3.8 of them a second."""
    asked = {**ASKED, "max_tpot": "40ms"}
    plans = llmir.plan(
        "llama3.1-8b", "h100-sxm", **records(llmir.plan, rate=10, link="1GBps", gpus=16, **asked)
    )
    for each in pooled(plans):
        if each.meets:
            assert min(each.servers) * each.replicas >= 10 * 262e6 / 1e9
