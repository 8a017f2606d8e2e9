"""A simulation's timeline: servers with their steps, and requests in all their phases."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import llmir
from llmir.backends.simulate.result import Simulation
from llmir.base.errors import InputError, OutputError
from llmir.cli.main import cli
from tests.backends.simulate.test_simulation import MODEL
from tests.flat import records

ASKED: dict[str, Any] = {"rate": 30, "requests": 60, "prompt": "uniform:10,900", "generate": "uniform:1,40"}
WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "replicas": {"replicas": 3, "router": "least-loaded"},
    "pools": {"prefill_replicas": 2, "link": "nvlink"},
}


def events(found: Simulation, folder: Path) -> list[dict[str, Any]]:
    path = llmir.trace(found, folder / "served.json")
    written: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return written


@pytest.mark.parametrize("way", WAYS)
def test_a_timeline_has_all_steps_and_all_requests(way: str, tmp_path: Path) -> None:
    found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **ASKED, **WAYS[way]))
    all_ = events(found, tmp_path)
    steps = [e for e in all_ if e["ph"] == "X"]
    assert sum(e["args"]["steps"] for e in steps) == found.steps
    assert sum(e["args"]["new tokens"] for e in steps) == found.events["new"].sum()
    assert sum(e["dur"] for e in steps) == pytest.approx(found.events["time_s"].sum() * 1e6, rel=1e-6)
    servers = {"one": 1, "replicas": 3, "pools": 3}[way]
    named = {e["pid"]: e["args"]["name"] for e in all_ if e["name"] == "process_name"}
    assert sorted(named) == list(range(servers))
    assert {e["pid"] for e in steps} == {*named}
    for number in named:  # of one server one after another
        own = sorted((e["ts"], e["dur"]) for e in steps if e["pid"] == number)
        assert all(start + time <= later + 1e-3 for (start, time), (later, _) in pairwise(own))
    begins, ends = ([e for e in all_ if e["ph"] == kind] for kind in "be")
    count = Counter((e["id"], e["name"], e["pid"]) for e in begins)
    assert count == Counter((e["id"], e["name"], e["pid"]) for e in ends)
    assert max(count.values()) == 1
    last = {number: max(e["ts"] for e in ends if e["id"] == number) for number in range(60)}
    assert [last[i] for i in range(60)] == pytest.approx((found.end_s * 1e6).tolist(), abs=1e-3)
    first = {number: min(e["ts"] for e in begins if e["id"] == number) for number in range(60)}
    assert [first[i] for i in range(60)] == pytest.approx((found.arrival_s * 1e6).tolist(), abs=1e-3)
    if way == "pools":
        assert {e["name"] for e in begins} == {
            "waiting",
            "prefill",
            "cache on its way",
            "waiting to decode",
            "decode",
        }
        assert {e["pid"] for e in begins if e["name"] == "decode"} == {2}


def test_what_is_no_timeline_of_a_simulation(tmp_path: Path) -> None:
    found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **ASKED | {"requests": 3}))
    with pytest.raises(InputError, match="leave phase and rank out"):
        llmir.trace(found, tmp_path / "x.json", phase="decode")
    with pytest.raises(OutputError, match="a trace is a"):
        llmir.trace(found, tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "served.json.gz"
    asked = ["serve-sim", "llama3.1-8b", "--rate", "5", "--requests", "20"]
    ran = CliRunner().invoke(cli, [*asked, "--trace-out", str(path)])
    assert ran.exit_code == 0
    assert path.exists()
    wrong = CliRunner().invoke(cli, [*asked, "--trace-out", str(tmp_path / "x.txt")])
    assert wrong.exit_code != 0
    again = CliRunner().invoke(cli, [*asked, "--trace-out", str(path), "--replications", "3"])
    assert again.exit_code == 2


def test_who_is_given_up_leaves_the_timeline_then(tmp_path: Path) -> None:
    asked = {**ASKED, "rate": 400, "prompt": 6000, "generate": 400}
    found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **asked, replicas=2, timeout_s=2.0))
    assert found.given_up.sum() > 0
    all_ = events(found, tmp_path)
    last = max(e["ts"] for e in all_ if e["ph"] == "e")
    assert last == pytest.approx(found.end_s.max() * 1e6, abs=1e-3)
    assert sum(e["ph"] == "b" for e in all_) == sum(e["ph"] == "e" for e in all_)
