"""Traces of requests in publishers' formats, and what a simulation of them says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import llmir
from llmir.backends.simulate import replications, result
from llmir.backends.simulate.engine import has_policy
from llmir.backends.simulate.load import closed_loop_warm_up, trace_load
from llmir.backends.simulate.replications import STUDENT
from llmir.base.errors import InputError
from llmir.cli.main import cli
from tests.flat import records

from .serving_cases import load

MODEL = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:14.2222250,879,55
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n4.814579,396,109\n28.041635,879,55\n"
MOONCAKE = "\n".join(
    json.dumps({"timestamp": ms, "input_length": p, "output_length": g, "hash_ids": [1]})
    for ms, p, g in ((500, 374, 44), (4814.579, 396, 109), (28041.635, 879, 55))
)
OURS = VIDUR.replace("arrived_at,num_prefill_tokens,num_decode_tokens", "arrival_s,prompt,generate")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", AZURE),
        ("v.csv", VIDUR),
        ("m.jsonl", MOONCAKE),
        ("o.csv", OURS),
        # An index without a name, as pandas writes it, and cells beyond the header.
        ("i.csv", "".join(f"{i or ''},{line}\n" for i, line in enumerate(VIDUR.splitlines()))),
        ("z.csv", AZURE.replace("44\n", "44,1\n")),
    ],
)
def test_each_format_says_the_same_requests(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    found = trace_load(tmp_path / name, speed=2)
    assert found.prompt.tolist() == [374, 396, 879]
    assert found.generate.tolist() == [44, 109, 55]
    assert found.arrival_s == pytest.approx([0, 2.1572895, 13.7708175], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", AZURE.replace("18:15:50", "18:15:40"), "row 2 (line 3): comes before a row above"),
        (
            "a.csv",
            AZURE.replace("396", "-396"),
            "row 2 (line 3): ContextTokens is '-396', expected tokens from 1",
        ),
        ("a.csv", AZURE.replace(",109", ","), "row 2 (line 3): GeneratedTokens is missing"),
        (
            "a.csv",
            AZURE.replace("2023-11-16 18:15:50", "noon"),
            "row 2 (line 3): TIMESTAMP is 'noon.9951690'",
        ),
        (
            "v.csv",
            VIDUR.replace("0.5,", "-0.5,"),
            "row 1 (line 2): arrived_at is '-0.5', expected a time from 0 up",
        ),
        ("v.csv", VIDUR.splitlines()[0], "has no requests"),
        (
            "x.csv",
            "a,b\n1,2\n",
            "columns a, b do not belong to a known trace format; known formats: TIMESTAMP, ContextTokens",
        ),
        ("m.jsonl", MOONCAKE.replace("396", '"x"'), "row 2 (line 2): input_length is 'x'"),
        (
            "m.jsonl",
            MOONCAKE.replace("[1]", '"a"'),
            "row 1 (line 1): hash_ids is 'a', expected a list of integers",
        ),
        ("m.jsonl", "[1]\n{", "row 1 (line 1): no JSON object, '[1]'; row 2 (line 2): no JSON object, '{'"),
        ("none.csv", None, "cannot be read"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(InputError) as error:
        llmir.simulate(MODEL, "h100-sxm", llmir.Traffic(trace=tmp_path / name))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_first_five_wrong_rows_are_named_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(OURS + "30,0,1\n" * 8, "utf-8")
    with pytest.raises(InputError, match=r"row 4 \(line 5\): .*\(line 9\): .*; and 3 more$") as error:
        trace_load(tmp_path / "t.csv")
    assert str(error.value).count("line ") == 5


def test_the_command_names_columns_of_a_trace_as_the_file_has_them(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt,generate,cancel_s\n2,10,5,0.5\n", "utf-8")
    ran = CliRunner().invoke(cli, ["serve-sim", "llama3.1-8b", "--trace", str(file)])
    assert "row 1 (line 2): cancel_s is '0.5', expected a time after arrival_s" in ran.output


def test_what_is_written_of_requests_is_a_trace(tmp_path: Path) -> None:
    requests, steps = tmp_path / "requests.csv", tmp_path / "steps.csv"
    asked = ["--rate", "9", "--requests", "70", "--prompt", "uniform:5,900", "--generate", "30"]
    out = ["--requests-out", str(requests), "--steps-out", str(steps), "--format", "json"]
    first = CliRunner().invoke(cli, ["serve-sim", "llama3.1-8b", *asked, *out])
    again = CliRunner().invoke(
        cli, ["serve-sim", "llama3.1-8b", "--trace", str(requests), "--format", "json"]
    )
    assert first.exit_code == again.exit_code == 0
    before, after = (json.loads(run.stdout)["latency_s"] for run in (first, again))
    assert after["ttft"] == pytest.approx(before["ttft"], rel=1e-9, abs=0)
    header, *lines = (line.split(",") for line in steps.read_text().splitlines())
    rows = [dict(zip(header, map(float, line), strict=True)) for line in lines]
    assert sum(row["steps"] * row["decodes"] for row in rows) == 70 * 29
    assert sum(row["reads"] for row in rows) == 70
    ends = [row["start_s"] + row["time_s"] for row in rows]
    assert all(row["start_s"] >= end - 1e-12 for row, end in zip(rows[1:], ends, strict=False))


def test_goodput_counts_the_requests_within_all_limits() -> None:
    asked = {"rate": 20, "requests": 300, "prompt": "lognormal:512,0.6", "generate": "lognormal:99,0.6"}
    found = llmir.simulate(
        MODEL, "h100-sxm", **records(llmir.simulate, **asked, warm_up=50, max_ttft_s=0.03, max_tpot_s=0.0095)
    )
    good = [t <= 0.03 and not p > 0.0095 for t, p in zip(found.ttft_s, found.tpot_s, strict=True)]
    assert found.goodput_share == pytest.approx(np.mean(good[50:]))
    assert 0 < found.goodput_share < 1
    assert found.goodput == pytest.approx(sum(good[50:]) / (found.end_s.max() - found.arrival_s[50]))
    assert found.latencies["ttft"].mean == pytest.approx(found.ttft_s[50:].mean())
    assert llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **asked)).goodput is None


def test_what_comes_in_is_counted_in_requests_a_second_also_of_sessions() -> None:
    """Each of 40 sessions has five turns; they come as long as the last one does, not as sessions begin."""
    asked = {"rate": 2, "requests": 200, "prompt": 100, "generate": 20, "turns": 5, "think_s": 5}
    found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **asked))
    first = found.arrival_s[::5]
    assert found.load.talks == 40
    assert found.load.sessions_per_s == pytest.approx(39 / (first[-1] - first[0]))
    assert found.rate == pytest.approx(199 / (found.arrival_s.max() - first[0]))
    assert found.rate < found.load.rate
    assert found.to_dict()["rate"] == found.rate
    assert "200 turns of 40 sessions" in str(found)


@pytest.mark.parametrize("generate", [400, "lognormal:400,0.6"])
def test_the_largest_rate_is_no_matter_of_how_many_requests_find_it(
    monkeypatch: pytest.MonkeyPatch, generate: int | str
) -> None:
    """Equal requests end in waves of a thousand, of which a fixed number of answers is no whole number."""
    traffic = llmir.Traffic(rate=10, prompt=100, generate=generate, requests=3000)
    rates = []
    for count in (3000, 25_000):
        monkeypatch.setattr(result, "ENOUGH", count)
        rates.append(llmir.simulate("llama3.1-8b", "b200", traffic).largest_rate)
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


@pytest.mark.slow
def test_a_server_is_stable_below_its_largest_rate_and_overloaded_above() -> None:
    asked = {"requests": 2500, "prompt": 800, "generate": "uniform:1,99"}
    most = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=10, **asked)).largest_rate
    for share, overloaded in ((0.5, False), (0.9, False), (1.1, True), (2.0, True)):
        found = llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=share * most, **asked))
        assert found.overloaded == overloaded, share
        assert found.largest_rate == pytest.approx(most, rel=0.01)
        if overloaded:  # it cannot do more than that
            assert found.requests_per_s <= 1.02 * most


@pytest.mark.slow
def test_nothing_is_said_of_the_load_of_few_requests() -> None:
    """Their waits differ by the steps that they happen to meet: no line goes through so few of them."""
    for count, said in ((3, None), (49, None), (50, False), (200, False)):
        asked: dict[str, Any] = {"requests": count, "prompt": "uniform:10,3000", "generate": 20}
        runs = [
            llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, rate=6, seed=seed, **asked))
            for seed in range(5)
        ]
        assert {run.overloaded for run in runs} == {said}
    row = re.search(r"load +(.*)", str(llmir.simulate(MODEL, "h100-sxm", llmir.Traffic(rate=6, requests=3))))
    assert row
    assert re.fullmatch(r"capacity [\d.]+ requests/s", row[1])
    assert "stable" not in row[1]


def test_a_table_of_replications_has_a_line_a_latency() -> None:
    """In 80 columns."""
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    found = llmir.replicate(model, "h100-sxm", llmir.Traffic(rate=5, requests=30), 2)
    lines = str(found).splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("───"))
    rows = lines[rule + 1 : rule + 1 + len(found.latencies)]
    assert all(row.count("±") == 4 for row in rows) and max(map(len, lines)) <= 80


@pytest.mark.slow
def test_intervals_of_replications_are_students() -> None:
    asked = {"rate": 12, "requests": 200, "prompt": "lognormal:512,0.6", "generate": 50}
    found = llmir.replicate(MODEL, "h100-sxm", **records(llmir.replicate, times=4, seed=3, **asked))
    each = [
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, seed=seed, **asked))
        for seed in (3, 4, 5, 6)
    ]
    p99 = [np.percentile(run.ttft_s, 99) for run in each]
    interval = stats.t.interval(0.95, 3, np.mean(p99), stats.sem(p99))
    mean, half = found.latencies["ttft"]["p99"]
    assert (mean - half, mean + half) == pytest.approx(interval, rel=1e-3)
    assert found.overloaded == 0
    options = ["--rate", "12", "--requests", "200", "--prompt", "lognormal:512,0.6", "--generate", "50"]
    shown = CliRunner().invoke(
        cli, ["serve-sim", "llama3.1-8b", *options, "--seed", "3", "--replications", "4", "--format", "json"]
    )
    assert json.loads(shown.stdout) == found.to_dict()
    table = CliRunner().invoke(
        cli, ["serve-sim", "llama3.1-8b", *options, "--replications", "4"], env={"COLUMNS": "80"}
    )
    assert max(map(len, table.stdout.splitlines())) <= 80


def test_quantiles_of_student_are_those_of_scipy() -> None:
    assert stats.t.ppf(0.975, np.arange(1, 21)) == pytest.approx(np.array(STUDENT), abs=6e-4)


@pytest.mark.parametrize("count", [2, 5, 21, 22, 60])
def test_intervals_of_any_number_of_runs_are_students(count: int) -> None:
    """Above 21 runs, to 0.4%."""
    values = np.random.default_rng(count).normal(size=count)
    mean, half = replications._interval(values)
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert (mean, half) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=4e-3)


def test_several_rates_are_several_reports() -> None:
    run = llmir.simulate(MODEL, "h100-sxm", llmir.Traffic(rate=1, requests=2, prompt=9, generate=2))
    assert replications.RateSeries((run, run)).to_dict()["runs"] == [run.to_dict()] * 2
    assert [result.ServingCost(*x).known for x in ((None,) * 4, (None, 0.1, None, None))] == [False, True]


def test_clients_of_a_trace_leave_when_it_says(tmp_path: Path) -> None:
    """Where it says so of none, nobody leaves."""
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt,generate,cancel_s\n2,10,5,2.5\n3,10,5,\n", "utf-8")
    leaves = trace_load(file).leave_s
    assert leaves is not None and leaves.tolist() == [0.5, math.inf]
    file.write_text("arrival_s,prompt,generate,cancel_s\n2,10,5,\n", "utf-8")
    assert trace_load(file).leave_s is None


def test_the_longest_request_has_the_most_tokens() -> None:
    sizes = [(9, 3), (5, 20), (12, 1)]
    found = load(*zip(*sizes, strict=True))
    assert found.longest_request == max(sizes, key=sum)


def test_the_first_two_requests_of_a_user_do_not_count_if_there_are_more() -> None:
    for count, warm in ((13, 8), (12, 0), (10, 0)):
        assert closed_loop_warm_up(load([1] * count, [1] * count, users=4)) == warm


@pytest.mark.parametrize(("engine", "known"), [("vllm", True), ("hf-transformers", False)])
def test_an_engine_has_a_policy(engine: str, known: bool) -> None:
    program = llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of(engine))
    how = llmir.Estimation(engine=engine)
    job = llmir.workload(program, "h100-sxm", prompt=9, generate=2, estimation=how)
    assert has_policy(job) is known


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"trace": "x.csv", "rate": 1}, "requires one of rate, closed or trace"),
        ({"trace": "x.csv", "prompt": 9}, "prompt: has no effect on a trace"),
        ({"rate": 1e300}, "rate: expected a number from 0.000001 to 1,000,000,000"),
        ({"rate": 1, "speed": 2}, "speed: 2; it applies only to a trace"),
        ({"rate": 1, "requests": 9, "warm_up": 9}, "warm_up: 9 requests, there are 9"),
        ({"rate": 1, "max_ttft_s": 0}, "max_ttft_s: expected a number above 0"),
    ],
)
def test_what_cannot_act_is_refused(asked: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as error:
        llmir.simulate(MODEL, "h100-sxm", **records(llmir.simulate, **asked))  # type: ignore[arg-type]
    assert says in str(error.value)
