"""What the table of plans says of limits, misses and requests that are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner, Result

import llmir
from llmir.cli.main import cli
from llmir.cli.options import parse_limit
from tests.flat import records


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def test_a_limit_stands_in_the_table_by_what_it_is_of() -> None:
    """Of the mean and of the p90 of requests, in the table of plans and beside the limits of the first."""
    limits = {"max_ttft": "mean:0.5s", "max_tpot": "p90:15ms"}
    found = llmir.plan(
        "llama3.1-8b", **records(llmir.plan, rate=10, prompt=500, generate=50, gpus=1, requests=300, **limits)
    )
    best = found.best
    assert best is not None
    lines = str(found).splitlines()
    head = next(line for line in lines if line.startswith("  plan"))
    assert re.findall(r"TTFT \w+|TPOT \w+|within|why not", head) == [
        *("TTFT mean", "TPOT p90", "within", "why not")
    ]
    tpot = np.percentile(np.concatenate([run.seconds[1] for run in best.trial.runs]), 90)
    first = next(line for line in lines if line.startswith("✓"))
    expected = [1e3 * best.trial.ttft_s.mean, 1e3 * tpot]
    shown = [float(number) for number in re.findall(r"([\d.]+) ms", first)]
    assert shown == pytest.approx(expected, rel=6e-3)
    beside = re.findall(
        r"^T[TPOF]+T .*(mean|p90) ([\d.]+) ms ± .* (500 ms|15.0 ms)", str(found), re.MULTILINE
    )
    assert [(of, limit) for of, _, limit in beside] == [("mean", "500 ms"), ("p90", "15.0 ms")]
    assert [float(used) for _, used, _ in beside] == pytest.approx(expected, rel=6e-3)
    assert best.to_dict()["simulated"]["limited"]["tpot_s"] == pytest.approx(tpot)


def test_the_closest_miss_is_the_one_that_lacks_least() -> None:
    """An L4 has room for Llama 3.1 8B, and a T4 has not; a larger model fits on neither, on the L4 rather."""
    asked = ("--rate", "5", "--gpus", "1", "--hw", "t4,l4")
    assert "limit not met: the closest plan is L4 tp 1: needs " in run("llama3.1-8b", *asked).output
    large = run("llama3.1-70b", *asked).output
    assert "limit not met: the closest plan is L4 tp 1: does not fit: needs 143 of 22" in large
    assert "precision: ," not in large


def test_a_cached_prefix_is_read_by_no_plan() -> None:
    """Of prompts that are cached to nine tenths a tenth is read: closed form and simulation know it."""
    asked = {"rate": 30, "prompt": 4000, "generate": 50, "gpus": 1, "requests": 300, "chunk": 8192}
    whole, hit = (
        llmir.plan("llama3.1-8b", **records(llmir.plan, prefix_hits=share, **asked)) for share in (0, 0.9)
    )
    assert whole.best is None and hit.best is not None  # 8e9 · 2 · 4000 · 30 FLOP/s are twice an H100's
    s = hit.best.structure
    read = llmir.analyze(s.program, s.device, batch=1, new=400, context=3600)
    alone = hit.points.ttft_s[hit.points.structure == 0]
    assert alone == pytest.approx(float(read.time_s))
    run = llmir.simulate(
        s.program,
        s.device,
        llmir.Traffic(rate=30, prompt=4000, generate=50, requests=300, prefix_hits=0.9),
    )
    assert hit.best.trial.runs[0].ttft_s.mean == pytest.approx(run.ttft_s[30:270].mean())


def test_requests_longer_than_the_model_are_counted() -> None:
    found = llmir.plan(
        "gpt2", gpus=1, traffic=llmir.Traffic(rate=1, prompt="lognormal:300,1", generate=50, requests=200)
    )
    runs = [  # of the search, and of the hour
        llmir.traffic(
            llmir.Traffic(
                rate=1, prompt="lognormal:300,1", generate=50, requests=3600 if seed == 40 else 200, seed=seed
            )
        )
        for seed in range(41)
    ]
    share = float((np.concatenate([each.prompt for each in runs]) + 50 > 1024).mean())
    assert 0.05 < share < 0.2 and found.traffic.refused == pytest.approx(share)
    assert any(f"{100 * share:.3g}% of requests" in note for note in found.notes)


@pytest.mark.slow
def test_no_plan_is_overloaded_where_only_tpot_is_limited() -> None:
    """Few requests at once keep TPOT, and then fewer are answered than come: waits would grow for ever."""
    asked = {"rate": 2, "prompt": 500, "generate": 200, "max_tpot": "6.7ms"}
    alone = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, gpus=1, **asked))
    assert alone.best is None
    several = llmir.plan("llama3.1-8b", "h100-sxm", **records(llmir.plan, gpus=8, **asked))
    best = several.best
    assert best is not None and several.largest_rate is not None and several.largest_rate >= asked["rate"]
    for candidate in several.ranked:
        s = candidate.structure
        run = llmir.simulate(
            s.program,
            s.device,
            llmir.Traffic(
                rate=asked["rate"] / candidate.replicas, prompt=500, generate=200, requests=1000, seed=77
            ),
            memory=llmir.Memory(max_num_seqs=candidate.batch),
        )
        assert not run.overloaded


def test_what_is_too_slow_is_not_hidden_by_what_does_not_fit() -> None:
    """The T4 has no room for Llama 3.1 8B; the L4 has, and reads 16 GB at 0.3 TB/s for each token."""
    ran = run("llama3.1-8b", "--rate", "1", "--gpus", "1", "--hw", "t4,l4", "--max-tpot", "10ms")
    assert ran.exit_code == 1
    late = re.search(
        r"limit not met: the closest plan is L4 tp 1: TPOT is ([\d.]+) ms .* limit of 10.0 ms", ran.output
    )
    assert late and 16.06e9 / 300e9 < float(late[1]) / 1e3 < 0.08


@pytest.mark.slow
def test_a_plan_says_what_is_taken_to_join_its_nodes() -> None:
    """No file says how 16 such devices are joined; as `analyze` has it, a plan says what is assumed."""
    assert "assumed to be in" not in run("llama3.1-8b", "--rate", "4", "--gpus", "2").output
    wide = run("deepseek-v3", "--rate", "1", "--gpus", "16", "--hw", "h100-sxm", "--max-tpot", "50ms")
    assert "16 × H100-SXM are assumed to be in DGX-H100: 8 devices per node" in " ".join(wide.output.split())


def test_a_bare_number_of_the_command_line_is_milliseconds() -> None:
    assert [parse_limit(said) for said in ("30", " p50:1.5", "1s", "p99", "-1")] == [
        *("30ms", "p50:1.5ms", "1s", "p99", "-1")
    ]
    said = run("llama3.1-8b", "--rate", "9", "--gpus", "1", "--requests", "100", "--max-tpot", "p50:20")
    assert said.exit_code == 0 and re.search(r"^TPOT .* 20.0 ms  ← tightest$", said.output, re.MULTILINE)
