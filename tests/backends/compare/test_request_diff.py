"""Differences of requests in chunks, of engines, and of servers: each side is what `workload` says alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmir
from llmir.backends.compare.diff import ClosedLoopDiff
from llmir.base.errors import InputError
from tests.commands import Run
from tests.flat import records

ASKED: dict[str, Any] = {"prompt": 700, "generate": 40}
ENGINES = "vllm@0.12", "sglang"
FIRST = llmir.Estimation(engine=ENGINES[0])


@pytest.fixture(scope="module")
def sides() -> list[llmir.Program]:
    model = llmir.load("qwen3-0.6b")
    return [llmir.run(model, llmir.pipeline_of(engine)) for engine in ENGINES]


@pytest.mark.parametrize("more", [{}, {"chunk": 256}, {"cached": 300}, {"chunk": 128, "cached": 1}])
def test_each_side_is_its_workload(sides: list[llmir.Program], more: dict[str, int]) -> None:
    asked = {**ASKED, "batch": 4, **more}
    found = llmir.diff(*sides, "h100", engine_after=ENGINES[1], **asked, estimation=FIRST)
    alone = [
        llmir.workload(p, "h100", **records(llmir.workload, engine=engine, **asked))
        for p, engine in zip(sides, ENGINES, strict=True)
    ]
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "max_batch"):
        assert tuple(found.total(name)) == tuple(getattr(job, name) for job in alone)


@pytest.mark.parametrize("more", [{}, {"chunk": 512, "cached": 100}])
def test_each_server_is_its_loop_and_the_terms_add_up(
    sides: list[llmir.Program], more: dict[str, int]
) -> None:
    asked = {**ASKED, "concurrency": 24, **more}
    found = llmir.diff(*sides, "h100", engine_after=ENGINES[1], **asked, estimation=FIRST)
    assert isinstance(found, ClosedLoopDiff)
    serving = found.to_dict()["serving"]
    for side, program, engine in zip(("before", "after"), sides, ENGINES, strict=True):
        loop = llmir.workload(program, "h100", **records(llmir.workload, engine=engine, **asked)).to_dict()[
            "serving"
        ]
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "in_flight"):
            assert serving[name][side] == loop[name]
        assert sum(pair[side] for pair in serving["terms"].values()) == pytest.approx(loop["tpot_s"])
    assert sum(pair["delta"] for pair in serving["terms"].values()) == pytest.approx(
        serving["tpot_s"]["delta"]
    )


def test_answers_of_one_token_have_no_terms(sides: list[llmir.Program]) -> None:
    found = llmir.diff(*sides, "h100", prompt=300, generate=1, concurrency=4)
    assert found.to_dict()["serving"]["terms"] == {}
    assert found.to_dict()["serving"]["tpot_s"] == {"before": None, "after": None, "delta": None}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"chunk": 3}, "chunk: 3 applies only to requests"),
        ({"cached": 3}, "cached: 3 applies only to requests"),
        ({"concurrency": 3}, "concurrency: 3 applies only to requests"),
        ({"concurrency": 3, "batch": 2, **ASKED}, "leave batch out"),
        ({"concurrency": 0, **ASKED}, "concurrency"),
        ({"cached": 700, **ASKED}, "expected fewer than the 700 tokens"),
    ],
)
def test_what_cannot_be_compared(sides: list[llmir.Program], more: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        llmir.diff(*sides, "h100", **more)


def test_the_table_has_a_line_for_each_term_in_80_columns(run: Run) -> None:
    engines = ("--engine", ENGINES[0], "--engine-after", ENGINES[1])
    ran = run("diff", "tiny.json", "--prompt", "32", "--generate", "8", "--concurrency", "4", *engines)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    shown = [line.split("  ")[0] or line.strip().split("  ")[0] for line in lines]
    assert max(map(len, lines)) <= 80
    for label in ("loop: TTFT", "loop: TPOT", "loop: tokens/s", "decode step", "host"):
        assert label in shown
    out = run("diff", "tiny.json", "--concurrency", "4", "--chunk", "16", "--format", "json", *engines).out
    assert json.loads(out)["before"]["workload"] == {
        **{"batch": 4, "prompt": 2048, "generate": 128},
        **{"chunk": 16, "chunk_by": None, "cached": 0},
    }


@pytest.mark.parametrize("lengths", ["spread", "fixed"])
def test_both_loops_have_the_lengths_that_are_asked_for(sides: list[llmir.Program], lengths: str) -> None:
    asked = {**ASKED, "concurrency": 8, "lengths": lengths}
    found = llmir.diff(*sides, "h100", engine_after=ENGINES[1], **asked, estimation=FIRST)
    assert isinstance(found, ClosedLoopDiff)
    for loop, program, engine in zip(found.loops, sides, ENGINES, strict=True):
        traffic = llmir.Traffic(closed=8, **ASKED, lengths=lengths)
        served = llmir.simulate(program, "h100", traffic, estimation=llmir.Estimation(engine=engine))
        means = [served.latencies[name] for name in ("ttft", "tpot")]
        assert [loop.ttft_s, loop.tpot_s] == pytest.approx([each.mean for each in means if each])


def test_lengths_without_users_are_refused(sides: list[llmir.Program], run: Run) -> None:
    for asked in (ASKED, {"new": 1, "context": 100}):
        with pytest.raises(InputError, match="lengths: 'fixed'; it requires concurrency"):
            llmir.diff(*sides, "h100", **asked, lengths="fixed")
    done = run("diff", "llama3.1-8b", "--lengths", "fixed")
    assert done.code == 2 and done.err.startswith("error: --lengths: 'fixed'; it requires --concurrency")
