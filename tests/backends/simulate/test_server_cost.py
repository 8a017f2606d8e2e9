"""What simulated servers cost and draw: price and power times time, of all of them and in steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import llmir
from llmir.hw import library
from tests.commands import Run
from tests.flat import records

MODEL = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
TP2 = llmir.run(MODEL, "shard{tp=2}")
(H200,) = library.with_prices(["h200"], {"h200": 3.6})  # a tenth of a cent a second; 700 W by its datasheet
USD_S = 3.6 / 3600


@pytest.mark.parametrize("program", [MODEL, TP2])
def test_one_request_alone_costs_its_time(program: llmir.Program) -> None:
    job = llmir.workload(program, H200, prompt=700, generate=30)
    found = llmir.simulate(
        program, H200, llmir.Traffic(closed=1, requests=1, prompt=700, generate=30, lengths="fixed")
    ).spending
    usd = program.devices * USD_S * job.e2e_s / 30 * 1e6
    assert found.cost_usd_per_mtok == pytest.approx(usd)
    assert found.busy_cost_usd_per_mtok == pytest.approx(usd)
    assert found.energy_j_per_token == pytest.approx(program.devices * 700 * job.e2e_s / 30)
    assert found.goodput_per_usd is None


def test_idle_servers_cost_by_the_clock() -> None:
    """At a request in a hundred seconds each is alone, so that steps take as long as one alone does."""
    asked = {"rate": 0.01, "requests": 20, "prompt": 300, "generate": 10}
    job = llmir.workload(MODEL, H200, prompt=300, generate=10)
    for replicas in (1, 3):
        run = llmir.simulate(
            MODEL, H200, **records(llmir.simulate, **asked, replicas=replicas, max_ttft_s=1e-9, max_tpot_s=9)
        )
        found = run.spending
        assert found.busy_cost_usd_per_mtok == pytest.approx(USD_S * job.e2e_s / 10 * 1e6)
        assert found.energy_j_per_token == pytest.approx(700 * job.e2e_s / 10)
        rent = USD_S * run.duration_s * replicas
        assert found.cost_usd_per_mtok == pytest.approx(rent / 200 * 1e6)
        assert found.goodput_per_usd == 0
        good = llmir.simulate(
            MODEL, H200, **records(llmir.simulate, **asked, replicas=replicas, max_ttft_s=9)
        )
        assert good.spending.goodput_per_usd == pytest.approx(20 / rent)


def test_a_dollar_buys_goodput_without_the_warm_up() -> None:
    """The first of an overload are within the limit: they would be most of what a dollar buys."""
    asked = {"rate": 40, "requests": 300, "prompt": 2000, "generate": 50, "max_ttft_s": 0.5}
    found = [
        llmir.simulate(MODEL, H200, **records(llmir.simulate, **asked, warm_up=count))
        for count in (0, 50, 150)
    ]
    for run in found:
        assert run.goodput is not None
        assert run.spending.goodput_per_usd == pytest.approx(run.goodput / USD_S)
    assert found[0].spending.goodput_per_usd > 2 * found[-1].spending.goodput_per_usd


def test_pools_are_the_sum_of_their_servers() -> None:
    one, two = llmir.server(MODEL, H200), llmir.server(TP2, H200)
    load = llmir.traffic(llmir.Traffic(rate=20, prompt=1000, generate=50, requests=100))
    run = llmir.pools(one, one, "50GBps,5us").run(load, prefill_replicas=2, decode_replicas=1)
    found = run.spending
    assert found.cost_usd_per_mtok == pytest.approx(3 * USD_S * run.duration_s / 5000 * 1e6)
    seconds = float(run.prefill.events["time_s"].sum() + run.decode.events["time_s"].sum())
    assert found.busy_cost_usd_per_mtok == pytest.approx(USD_S * seconds / 5000 * 1e6)
    run = llmir.pools(one, two, "50GBps,5us").run(load)
    seconds = float(run.prefill.events["time_s"].sum() + 2 * run.decode.events["time_s"].sum())
    assert run.spending.energy_j_per_token == pytest.approx(700 * seconds / 5000)


def test_nothing_is_made_up() -> None:
    bare = replace(H200, price_per_hour_usd=None, board_power_W=None)
    load = llmir.traffic(llmir.Traffic(closed=2, prompt=100, generate=9, requests=4))
    assert set(llmir.server(MODEL, bare).run(load, max_ttft_s=1.0).spending) == {None}
    mixed = llmir.pools(llmir.server(MODEL, H200), llmir.server(MODEL, bare), "50GBps").run(load)
    assert set(mixed.spending) == {None}  # half of the servers is no answer


@pytest.mark.slow
def test_the_command(run: Run) -> None:
    asked = (
        "serve-sim",
        "llama3.1-8b",
        "--hw",
        "h20",
        "--closed",
        "4",
        "--requests",
        "20",
        "--prompt",
        "64",
        "--lengths",
        "fixed",
    )
    bare, money = run(*asked), run(*asked, "--price", "h20=3.6", "--max-ttft", "1000")
    assert "$" not in bare.out and "at most" in bare.out
    assert "per million output tokens" in money.out and "a dollar buys" in money.out
    assert max(map(len, money.out.splitlines())) <= 80
    report = json.loads(run(*asked, "--price", "h20=3.6", "--format", "json").out)
    usd = USD_S * report["duration_s"] / (20 * 128) * 1e6
    assert report["cost_usd_per_mtok"] == pytest.approx(usd)
    many = run(*asked, "--price", "h20=3.6", "--replications", "2")
    assert "$/million output" in many.out
    wrong = run(*asked, "--price", "h100=2")
    assert wrong.code == 2 and wrong.err.count("\n") == 1
