"""Plans whose steps verify drafts: closed forms are those of `analyze`, and simulations those of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.analysis.speculation import yielded
from llmir.errors import InputError
from tests.commands import Run, runner

MODEL, EVERY, SMALL = (
    llmir.load(name, logits=logits)
    for name, logits in (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
)
ASKED: dict[str, Any] = {"rate": 10, "prompt": 500, "generate": 200, "max_tpot": "12ms", "gpus": 2}
DRAFTS: dict[str, Any] = {"verify": EVERY, "draft_tokens": 4, "acceptance": 0.7}


@pytest.mark.parametrize("draft", [None, SMALL])
def test_closed_forms_are_steps_that_analyze_prices(draft: Any) -> None:
    """Of requests that answer one after another, alone: reading, then steps over what each yields."""
    plans = llmir.plan(MODEL, "h100-sxm", **ASKED, **DRAFTS, draft=draft)
    points = plans.points
    for number, structure in enumerate(plans.structures):
        (at,) = np.flatnonzero((points.structure == number) & (points.batch == 1) & (points.chunk == 2048))
        assert structure.drafts
        asked: dict[str, Any] = {"batch": 1, "context": 600}
        step = float(llmir.analyze(structure.drafts.verify, "h100-sxm", new=5, **asked).period_s)
        if draft:
            step += 4 * float(llmir.analyze(structure.drafts.drafter, "h100-sxm", new=1, **asked).period_s)
        assert points.tpot_s[at] == pytest.approx(step / yielded(4, 0.7), rel=1e-9)
        job = llmir.workload(structure.program, "h100-sxm", prompt=500, generate=200, chunk=2048)
        said = llmir.speculate(job, structure.drafts.verify, 4, 0.7, structure.drafts.drafter)
        assert points.ttft_s[at] == pytest.approx(said.ttft_s, rel=1e-9)


def test_the_plan_is_what_a_server_does() -> None:
    best = llmir.plan(MODEL, "h100-sxm", **ASKED, **DRAFTS).best
    assert best and best.meets and best.structure.drafts
    engine = llmir.server(
        *(best.structure.program, "h100-sxm"),
        **DRAFTS | {"verify": best.structure.drafts.verify},
        max_num_seqs=best.batch,
        max_batched_tokens=best.chunk,
    )
    load = llmir.traffic(rate=10 / best.replicas, prompt=500, generate=200, requests=1000, seed=0)
    tpot = engine.run(load, warm_up=100).latencies["tpot"]
    assert tpot and best.trial.runs[0].tpot_s == pytest.approx(tpot, rel=1e-12)


def test_drafts_that_are_right_serve_more() -> None:
    rates = []
    for share in (0.0, 0.6, 1.0):
        found = llmir.plan(MODEL, "h100-sxm", **ASKED, **DRAFTS | {"acceptance": share})
        rates.append(found.points.rate.max())
    assert rates == sorted(rates) and rates[0] < rates[2]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"link": "nvlink"}, "no plan with drafts has link nvlink"),
        ({"emit": "vllm"}, "no plan with drafts has emit vllm"),
        ({"verify": None}, "say verify too"),
        ({"acceptance": None}, "say acceptance too"),
        ({"draft_tokens": None}, "say draft_tokens too"),
        ({"draft_tokens": 0}, "^draft_tokens: "),
    ],
)
def test_what_cannot_be_is_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        llmir.plan(MODEL, "h100-sxm", **ASKED, **DRAFTS | more)
    assert "\n" not in str(error.value)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, tmp_path, monkeypatch)


def test_the_command_plans_with_drafts(run: Run) -> None:
    asked = ("plan", "llama3.1-8b", "--rate", "2", "--gpus", "2", "--max-tpot", "20ms", "--requests", "100")
    done = run(*asked, "--draft-tokens", "4", "--acceptance", "0.7", "--draft-model", "llama3.2-1b")
    text = " ".join((done.out + done.err).split())
    assert done.code == 0 and "and yields 2.77 tokens; Llama-3.2-1B drafts them" in text
    assert "drafts of 2 pipeline stages are not simulated" in text
    wrong = run(*asked, "--draft-tokens", "4")
    assert wrong.code == 2 and "--draft-tokens: say --acceptance too" in wrong.err
