"""Work that is announced or refused before it is done."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base import budget
from llmir.base.errors import InputError
from tests.commands import TINY, Run

REFUSED = [
    "sweep tiny.json --tp 1:1000 --pp 1:100 --max-work 1s -o grid.csv",
    "sweep tiny.json --batch 1:1000 --context 1:1000 -o grid.html",
    "sweep tiny.json --batch 1:1000 --context 1:1000 -o grid.json",
    "serve-sim tiny.json --rate 5 --requests 10000000",
    "serve-sim tiny.json --rate 5 --requests 1000000 --prompt 8 --generate 8 --turns 2 --max-work 1s",
    "serve-sim tiny.json --rate 5 --requests 100000 --replications 1000",
    "plan tiny.json --rate 5 --requests 1000000",
    "trace tiny.json --pp 2 --micro-batches 1000000 --batch 1000000 -o step.json",
]


@pytest.mark.parametrize("arguments", REFUSED)
def test_work_beyond_the_limit_is_refused_in_a_line(run: Run, tmp_path: Path, arguments: str) -> None:
    before = sorted(tmp_path.iterdir())
    done = run(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("error: ")
    assert "more than" in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_the_work_of_a_trace_is_that_of_its_rows(tmp_path: Path) -> None:
    """It is refused, or announced, after the first ones."""
    rows = ({"timestamp": 100 * i, "input_length": 20, "output_length": 40} for i in range(10_000))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    model = llmir.run(llmir.load(TINY), llmir.pipeline_of("vllm"))
    with budget.max_work(budget.Limit(1e-3, 2e9)), pytest.raises(InputError) as refused:
        llmir.simulate(model, "h100-sxm", llmir.Traffic(trace=str(path)))
    assert "a run of 10,000 requests takes about" in str(refused.value)


@pytest.mark.parametrize("said", ["1", "h", "-1s", "1e3s", "1 h", ""])
def test_what_is_no_time_is_refused(run: Run, said: str) -> None:
    done = run("analyze", "tiny.json", "--max-work", said)
    assert done.code == 2
    assert done.err.startswith("error: --max-work: expected a time such as 90s, 30min or 2h, got ")


def test_python_functions_have_no_limit_unless_it_is_stated() -> None:
    budget.check_work("this", "ask for less", seconds=1e9, memory=1e15)
    with budget.max_work(budget.COMMAND):
        budget.check_work("this", "ask for less", seconds=600, memory=2e9)
        with pytest.raises(InputError, match=r"this takes about 17 min, more than 10 min; ask for less, or"):
            budget.check_work("this", "ask for less", seconds=1000)
        with pytest.raises(InputError, match=r"this needs about 3 GB of memory, more than 2 GB; ask for"):
            budget.check_work("this", "ask for less", memory=3e9)


def test_the_first_pieces_show_the_pace(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A hundred pieces of 2 s after one of 100 s: about 200 s, said once."""
    now = [0.0]
    monkeypatch.setattr(budget.time, "process_time", lambda: now[0])
    caplog.set_level(logging.INFO, "llmir")
    pace = budget.Pace("a series", "ask for less", 100)
    for took in (100, *[2] * 99):
        now[0] += took
        pace.step()
    assert caplog.messages == ["a series takes about 3 min"]


def test_many_layers_that_differ_are_announced(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A pattern of 2,000 layers that does not repeat has as many graphs' worth of ops."""
    layers = 2000
    local = (n * n * 7919 % 13 < 6 and n**3 % 17 < 9 for n in range(layers))
    kinds = ["sliding_attention" if each else "full_attention" for each in local]
    config = TINY | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 16}
    config |= {"num_hidden_layers": layers, "layer_types": kinds, "sliding_window": 64}
    caplog.set_level(logging.INFO, "llmir")
    program = llmir.load(config)
    assert not caplog.messages
    monkeypatch.setattr(budget, "ANNOUNCED_S", 0.5)
    llmir.run(program, "")
    assert [message.startswith("an estimate of ") for message in caplog.messages] == [True]
