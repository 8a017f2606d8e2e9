"""Plans whose steps verify drafts: closed forms are those of `analyze`, and simulations those of a server."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import llmir
from llmir.backends.request.speculation import accepted_tokens
from llmir.base.errors import InputError
from tests.commands import Run
from tests.flat import records

MODEL, EVERY, SMALL = (
    llmir.load(name, logits=logits)
    for name, logits in (("llama3.1-8b", "last"), ("llama3.1-8b", "all"), ("llama3.2-1b", "last"))
)
ASKED: dict[str, Any] = {"rate": 10, "prompt": 500, "generate": 200, "max_tpot": "12ms", "gpus": 2}
DRAFTS: dict[str, Any] = {"verify": EVERY, "draft_tokens": 4, "acceptance": 0.7}


@pytest.mark.slow
@pytest.mark.parametrize("draft", [None, SMALL])
def test_closed_forms_are_steps_that_analyze_prices(draft: Any) -> None:
    """Of requests that answer one after another, alone: reading, then steps over what each yields."""
    plans = llmir.plan(MODEL, "h100-sxm", **records(llmir.plan, **ASKED, **DRAFTS, draft=draft))
    points = plans.points
    for number, structure in enumerate(plans.structures):
        (at,) = np.flatnonzero((points.structure == number) & (points.batch == 1) & (points.chunk == 2048))
        assert structure.drafts
        asked: dict[str, Any] = {"batch": 1, "context": 600}
        step = float(
            llmir.analyze(
                structure.drafts.verify, "h100-sxm", **records(llmir.analyze, new=5, **asked)
            ).period_s
        )
        if draft:
            step += 4 * float(
                llmir.analyze(
                    structure.drafts.drafter, "h100-sxm", **records(llmir.analyze, new=1, **asked)
                ).period_s
            )
        assert points.tpot_s[at] == pytest.approx(step / accepted_tokens(4, 0.7), rel=1e-9, abs=0)
        job = llmir.workload(structure.program, "h100-sxm", prompt=500, generate=200, chunk=2048)
        said = llmir.speculate(
            job,
            llmir.Drafts(
                draft_tokens=4,
                acceptance=0.7,
                draft_model=structure.drafts.drafter,
                verify=structure.drafts.verify,
            ),
        )
        assert points.ttft_s[at] == pytest.approx(said.ttft_s, rel=1e-9, abs=0)


@pytest.mark.slow
def test_the_plan_is_what_a_server_does() -> None:
    best = llmir.plan(MODEL, "h100-sxm", **records(llmir.plan, **ASKED, **DRAFTS)).best
    assert best and best.meets and best.structure.drafts
    engine = llmir.server(
        best.structure.program,
        "h100-sxm",
        **records(
            llmir.server,
            **DRAFTS | {"verify": best.structure.drafts.verify},
            max_num_seqs=best.batch,
            max_batched_tokens=best.chunk,
        ),
    )
    load = llmir.traffic(
        llmir.Traffic(rate=10 / best.replicas, prompt=500, generate=200, requests=1000, seed=0)
    )
    steady = engine.run(load).tpot_s[100:-100]
    first = best.trial.runs[0]
    assert first.seconds[1] == pytest.approx(steady, rel=1e-12, abs=0)
    expected = [steady.mean(), *np.percentile(steady, [50, 90, 99])]
    assert [*first.tpot_s] == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.slow
def test_drafts_that_are_right_serve_more() -> None:
    rates = []
    for share in (0.0, 0.6, 1.0):
        found = llmir.plan(
            MODEL, "h100-sxm", **records(llmir.plan, **ASKED, **DRAFTS | {"acceptance": share})
        )
        rates.append(found.points.rate.max())
    assert rates == sorted(rates) and rates[0] < rates[2]


@pytest.mark.slow
@pytest.mark.parametrize("draft", [None, SMALL])
def test_json_has_what_a_step_yields_and_what_drafts_take_of_it(draft: Any) -> None:
    found = llmir.plan(MODEL, "h100-sxm", **records(llmir.plan, **ASKED, **DRAFTS, draft=draft))
    report, best = found.to_dict(), found.best
    assert best
    name = draft and "Llama-3.2-1B"
    asked = {"draft_tokens": 4, "acceptance": 0.7, "drafter": name}
    assert report["speculation"] == {**asked, "tokens_per_step": accepted_tokens(4, 0.7)}
    assert (report["best"]["draft_share"] > 0) is bool(draft)
    if draft:
        at: dict[str, Any] = {"batch": best.decoding, "context": 600}
        verify, drafts = (
            n * float(llmir.analyze(of, "h100-sxm", **records(llmir.analyze, new=new, **at)).period_s)
            for of, new, n in zip((EVERY, SMALL), (5, 1), (1, 4), strict=True)
        )
        assert report["best"]["draft_share"] == pytest.approx(drafts / (verify + drafts), rel=1e-9, abs=0)
    plain = llmir.plan(MODEL, "h100-sxm", **records(llmir.plan, **ASKED)).to_dict()
    assert plain["speculation"] is plain["best"]["draft_share"] is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"emit": "vllm", "engine": "vllm@0.10"}, "drafting by lookup is known from 0.11 on, from docs.vllm"),
        ({"verify": None}, "requires verify"),
        ({"acceptance": None}, "requires acceptance"),
        ({"draft_tokens": None}, "requires draft_tokens"),
        ({"draft_tokens": 0}, "^draft_tokens: "),
    ],
)
def test_what_cannot_be_is_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        llmir.plan(MODEL, "h100-sxm", **records(llmir.plan, **ASKED, **DRAFTS | more))
    assert "\n" not in str(error.value)


QUICK = ("plan", "llama3.1-8b", "--rate", "1", "--gpus", "1", "--requests", "100", "--draft-tokens", "3")
MADE = ("--draft-model", "llama3.2-1b")


def emitted(run: Run, engine: str, *more: str) -> list[str]:
    done = run(*QUICK, "--acceptance", "0.6", "--engine", engine, "--emit", engine, *more)
    assert done.code == 0, done.err
    return shlex.split(done.out, comments=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}),
        (MADE, {"method": "draft_model", "num_speculative_tokens": 3, "model": "meta-llama/Llama-3.2-1B"}),
    ],
)
def test_vllm_is_told_of_drafts_in_json(run: Run, more: tuple[str, ...], said: dict[str, Any]) -> None:
    """docs.vllm.ai/en/v0.25.0/features/speculative_decoding: n_gram and draft_model."""
    words = emitted(run, "vllm", *more)
    assert json.loads(words[words.index("--speculative-config") + 1]) == said
    narrow = emitted(run, "vllm", *more, "--weights", "fp8")
    kind = {"quantization": "fp8"} if more else {}
    assert json.loads(narrow[narrow.index("--speculative-config") + 1]) == said | kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            (),
            {"algorithm": "NGRAM", "num-draft-tokens": "4", "ngram-max-bfs-breadth": "1"},
        ),
        (
            MADE,
            {
                "algorithm": "STANDALONE",
                "draft-model-path": "meta-llama/Llama-3.2-1B",
                "num-steps": "3",
                "eagle-topk": "1",
                "num-draft-tokens": "4",
            },
        ),
    ],
)
def test_sglang_counts_the_last_token_among_a_steps(
    run: Run, more: tuple[str, ...], said: dict[str, str]
) -> None:
    """Of one chain num_draft_tokens is num_steps + 1 (server_args.py, speculative_eagle_topk == 1)."""
    words = emitted(run, "sglang", *more)
    start = "--speculative-"
    found = {w.removeprefix(start): words[i + 1] for i, w in enumerate(words) if w.startswith(start)}
    assert found == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 4}),
        (
            MADE,
            {
                "decoding_type": "DraftTarget",
                "max_draft_len": 3,
                "speculative_model_dir": "meta-llama/Llama-3.2-1B",
            },
        ),
    ],
)
def test_tensorrt_llm_reads_a_file_that_the_command_writes(
    run: Run, more: tuple[str, ...], said: dict[str, Any], tmp_path: Path
) -> None:
    done = run(*QUICK, "--acceptance", "0.6", "--engine", "trtllm", "--emit", "trtllm", *more)
    (tmp_path / "trtllm-serve").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "trtllm-serve").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shell = subprocess.run(
        ["sh"], input=done.out, cwd=tmp_path, env=path, check=True, capture_output=True, text=True
    )
    assert shell.stdout.endswith("--extra_llm_api_options options.yaml\n")
    read = yaml.safe_load((tmp_path / "options.yaml").read_text())
    captured = read.pop("cuda_graph_config")
    assert read == {"speculative_config": said, "disable_overlap_scheduler": True}
    batch = int(re.search(r"--max_batch_size (\d+)", shell.stdout)[1])
    assert captured == {"enable_padding": True, "max_batch_size": batch}


@pytest.mark.slow
def test_the_models_own_layer_drafts_in_a_plan(run: Run) -> None:
    asked = ("plan", "glm-4.5-air", "--rate", "1", "--gpus", "4", "--requests", "100", "--draft")
    drafts = ("--draft-tokens", "2", "--acceptance", "0.7", "--weights", "fp8")
    done = run(*asked, *drafts, "--emit", "vllm")
    words = shlex.split(done.out, comments=True)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    report = json.loads(run(*asked, *drafts, "--format", "json").out)
    assert 0 < report["best"]["draft_share"] < 0.5
    wrong = run(*asked)
    assert wrong.code == 2 and "--draft: needs --draft-tokens" in wrong.err


@pytest.mark.slow
def test_the_command_plans_with_drafts(run: Run) -> None:
    asked = ("plan", "llama3.1-8b", "--rate", "2", "--gpus", "2", "--max-tpot", "20ms", "--requests", "100")
    done = run(*asked, "--draft-tokens", "4", "--acceptance", "0.7", "--draft-model", "llama3.2-1b")
    text = " ".join((done.out + done.err).split())
    assert done.code == 0 and "and yields 2.77 tokens; Llama-3.2-1B drafts them" in text
    assert "H100-SXM pp 2: vllm verifies no drafts in pipeline stages" in text and "draft_tokens" not in text
    wrong = run(*asked, "--draft-tokens", "4")
    assert wrong.code == 2 and "--draft-tokens: requires --acceptance" in wrong.err
