"""Sweeps: each row is what `analyze` says of that step, whoever computes it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.api.sweep import axis
from llmir.backends.search.sweep import BYTES, SHARES, WORK, Sweep
from llmir.base.errors import InputError
from llmir.hw import library
from tests.commands import TINY, Run
from tests.flat import records
from tests.strategies import configs

from .equal_rows import same

FUSED = "fuse-attention,fuse,dce"
POINTS = {"batch": (1, 6, 64), "new": (1, 5), "context": (0, 300)}


def check(row: dict[str, Any], program: llmir.Program, **how: Any) -> None:
    """A row against `analyze` and `workload` of its step."""
    hw = row["hw"]
    at = {name: row[name] for name in ("batch", "new", "context")}
    report = llmir.analyze(program, hw, **records(llmir.analyze, **at, **how))
    for name in ("time_s", "ideal_time_s", "error"):
        stated = getattr(report, name)
        assert row[name] == (None if stated is None else pytest.approx(stated, rel=1e-12, abs=0)), name
    for name in (*BYTES, *WORK):
        assert row[name] == pytest.approx(getattr(report, name), rel=1e-15, abs=0), name
    shares = {f"{bound}_share": share for bound, share in report.bound.items()}
    assert {name: row[name] for name in SHARES} == pytest.approx(shares, rel=1e-9, abs=1e-12)
    length = row["new"] + row["context"]
    assert (
        row["fits"]
        == llmir.workload(
            program, hw, **records(llmir.workload, batch=row["batch"], prompt=length, generate=1, **how)
        ).fits
    )
    assert row["devices"] == program.devices


@pytest.mark.slow
@given(configs(), st.sampled_from(("", "fuse-attention,fuse,dce")), st.sampled_from(("ideal", "calibrated")))
@settings(max_examples=20)
def test_rows_are_what_analyze_says(config: dict[str, Any], pipeline: str, cost: str) -> None:
    axes = {"hw": ("h100-sxm", "l40s"), "cost": cost, "kv": (None, "fp8"), **POINTS}
    found = llmir.sweep(config, axes, pipeline=pipeline)
    rows = list(found.rows())
    assert [tuple(row[n] for n in found.axes) for row in rows] == list(product(*found.axes.values()))
    plain = llmir.run(llmir.load(config), pipeline)
    narrow = llmir.run(llmir.load(config), ["quantize{kv=fp8}", pipeline])
    for row in rows[::5]:
        check(row, narrow if row["kv"] else plain, cost=cost)


@pytest.mark.parametrize("hw", ["h100-sxm", "l40s", "b200"])
def test_errors_of_hosts_that_were_run_with_borrowed_kernels(hw: str) -> None:
    (row,) = llmir.sweep("qwen3-0.6b", {"hw": hw, "new": 5, "context": 300}, pipeline=FUSED).rows()
    program = llmir.run(llmir.load("qwen3-0.6b"), FUSED)
    check(row, program)


def test_errors_of_rates_that_a_file_states(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("extend: h100-sxm\nmemory_GBps: 2000\n", encoding="utf-8")
    axes = {"hw": (str(tmp_path / "slow.yaml"), "h100-sxm"), "new": 5, "context": 300}
    slow, plain = llmir.sweep("qwen3-0.6b", axes, pipeline=FUSED).rows()
    check(slow, llmir.run(llmir.load("qwen3-0.6b"), FUSED))
    assert slow["error"] > plain["error"]


@pytest.mark.slow
def test_each_engine_runs_its_own_passes_and_ranks() -> None:
    engines = ("vllm", "sglang", "trtllm", "hf-transformers")
    axes = {"engine": engines, "weights": ("bf16", "fp8"), "tp": (1, 2), "pp": (1, 2), **POINTS}
    rows = list(llmir.sweep("llama3.2-1b", axes).rows())
    assert len(rows) == 4 * 2 * 2 * 2 * 12
    for row in rows[::7]:
        pp, tp = row["pp"], row["tp"]
        stages = [f"stages{{pp={pp}}}"] if pp > 1 else []
        ranks = [f"shard{{tp={tp}}}"] if tp > 1 else []
        sent = ["slice-sends"] if stages and ranks else []
        engine = row["engine"]
        types = {"bf16": "bf16", "fp8": "fp8, activations=fp8"}[row["weights"]]  # on an H100
        passes = [f"quantize{{weights={types}}}", *stages, llmir.pipeline_of(engine), *ranks, *sent]
        check(row, llmir.run(llmir.load("llama3.2-1b"), passes), engine=engine)


class Backwards(Executor):
    """Runs nothing until its first result is asked for, and then the last task first."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """A future that all are run for together."""
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **named)))
        ask, tasks = future.result, self.tasks

        def result(timeout: float | None = None) -> Any:
            while tasks:
                last, call = tasks.pop()
                last.set_result(call())
            return ask(timeout)

        future.result = result  # type: ignore[method-assign]
        return future


@pytest.mark.slow
def test_any_executor_gives_the_same() -> None:
    axes = {"tp": (1, 2, 3), "weights": (None, "fp8"), "batch": "1:8:x2", "context": (0, 100)}
    alone = [*llmir.sweep(TINY, axes).rows()]
    for executor in (Backwards(), ThreadPoolExecutor(2), ProcessPoolExecutor(2)):
        with executor:
            same([*llmir.sweep(TINY, axes, executor=executor).rows()], alone)


def test_progress_is_told() -> None:
    told: list[tuple[int, int, int]] = []
    axes = {"dp": (1, 2, 3), "tp": (1, 3), "batch": (1, 6)}
    llmir.sweep(TINY, axes, progress=lambda *said: told.append(said))
    assert told == [(2, 12, 0), (4, 12, 1), (6, 12, 1), (8, 12, 2), (10, 12, 2), (12, 12, 3)]


def test_what_cannot_be_is_a_row_that_says_why() -> None:
    found = llmir.sweep("llama3.1-8b", {"tp": (1, 3), "hw": ("h100-sxm", "h101"), "batch": (1, 2)})
    refused = [row for row in found.rows() if row["refused"]]
    assert [(row["tp"], row["hw"]) for row in refused] == [(1, "h101"), (3, "h100-sxm"), (3, "h101")]
    assert "cannot be split 3 ways" in refused[1]["refused"]
    assert "did you mean" in refused[0]["refused"]
    assert all(row["batch"] is None and row["time_s"] is None for row in refused)
    micro = [*llmir.sweep(TINY, {"micro_batches": 2, "pp": 2, "batch": (1, 2, 3)}).rows()]
    assert [bool(row["refused"]) for row in micro] == [True, False, True]
    assert all(row["batch"] for row in micro)


@pytest.mark.parametrize(
    "axes", [{"context": "10M"}, {"context": "5,10M", "new": "1,9"}, {"new": 10_000_001}]
)
def test_lengths_beyond_what_requests_have_are_refused(axes: dict[str, Any]) -> None:
    """Each alone: rows beside them have figures."""
    found = llmir.sweep(TINY, axes)
    for row in found.rows():
        length = row["new"] + row["context"]
        assert row["refused"] == (
            f"requests of {length:,} tokens; the limit is 10,000,000" if length > 10_000_000 else None
        )


@pytest.mark.slow
def test_a_range_of_the_command_is_as_long_as_one_of_python(run: Run) -> None:
    ran = run("sweep", "tiny.json", "--batch", "1:10001", "--format", "csv")
    assert ran.code == 0, ran.err
    assert [line.split(",")[1] for line in ran.out.splitlines()[1:]] == [str(n) for n in range(1, 10002)]


def brute(first: int, last: int, step: str) -> list[int]:
    found, value = [], first
    while value <= last:
        found.append(value)
        value = value * int(step[1:]) if step.startswith("x") else value + int(step or 1)
    return found


@given(st.integers(1, 200), st.integers(0, 3000), st.sampled_from(("", "1", "7", "x2", "x3", "x10")))
def test_ranges(first: int, more: int, step: str) -> None:
    said = f"{first}:{first + more}{':' if step else ''}{step}"
    assert list(axis("batch", said)) == brute(first, first + more, step)
    assert axis("batch", f"{said},{first}") == axis("batch", said)


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("batch", "8:1", "reversed"),
        ("batch", "0", "expected an integer from 1"),
        ("batch", "1:8:x1", "never ends"),
        ("context", "0:8:x2", "never ends"),
        ("context", "0:8:0", "never ends"),
        ("context", "0:9999999999", "more than 1,000,000 values"),
        ("batch", "", "expected a number, or a range"),
        ("batch", "two", "got 'two'"),
        ("batch", (), "got none"),
        ("batch", -4, "from 1"),
        ("batch", True, "from 1"),
        ("weights", "fp8,", "a value is empty"),
        ("hw", "h200,l40s,h200", "h200 occurs twice"),
        ("bath", "1", "did you mean batch"),
    ],
)
def test_axes_that_mean_nothing(name: str, said: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        axis(name, said)


@pytest.mark.parametrize("asked", [llmir.sweep, llmir.page])
def test_a_device_by_two_of_its_names_is_there_twice(asked: Callable[..., object]) -> None:
    with pytest.raises(InputError, match=r"^hw: H200-SXM occurs twice$"):
        asked(TINY, {"hw": "h200,l40s,h200-141gb"})


def sample() -> Sweep:
    axes = {"tp": (1, 2, 3), "batch": (1, 4), "context": (0, 64)}
    return llmir.sweep(TINY, axes)


@pytest.mark.slow
def test_files_hold_the_rows(tmp_path: Path) -> None:
    found = sample()
    rows = [*found.rows()]
    lines = llmir.save(found, tmp_path / "x.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert json.loads(llmir.save(found, tmp_path / "x.json").read_text("utf-8"))["rows"] == rows
    pandas = pytest.importorskip("pandas")
    read = pandas.read_csv(io.StringIO(llmir.save(found, tmp_path / "x.csv").read_text("utf-8")))
    assert read["time_s"].dropna().tolist() == [row["time_s"] for row in rows if row["time_s"]]
    assert list(read.columns) == list(found.names) == list(found.to_pandas().columns)
    pytest.importorskip("pyarrow")
    for suffix, how in ((".parquet", pandas.read_parquet), (".arrow", pandas.read_feather)):
        read = how(llmir.save(found, tmp_path / f"x{suffix}"))
        assert read["time_s"].dropna().tolist() == [row["time_s"] for row in rows if row["time_s"]]


@pytest.mark.slow
def test_labelled_dimensions() -> None:
    pytest.importorskip("xarray")
    found = sample()
    data = found.to_xarray()
    for row in found.rows():
        if not row["refused"]:
            at = {name: row[name] for name in ("hw", "tp", "batch", "new", "context")}
            assert float(data["time_s"].sel(at)) == row["time_s"]
    assert np.isnan(data["time_s"].sel(tp=3)).all()
    assert "cannot be split" in data["refused"].sel(tp=3).values.ravel()[0]
    assert {*data["basis"].sel(tp=1).values.ravel()} == {*found.basis}
    assert {*data["basis"].sel(tp=3).values.ravel()} == {""}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_have_counts_and_answers_that_may_be_missing(package: str) -> None:
    module = pytest.importorskip(package)
    found = sample()
    frame = getattr(found, f"to_{package}")()
    for name in ("tp", "batch", "devices", "fits", "refused", "basis"):
        values = [None if module.isna(v) else v for v in frame[name]] if package == "pandas" else frame[name]
        assert [*values] == [row[name] for row in found.rows()], name
    those = frame[frame["fits"]] if package == "pandas" else frame.filter(frame["fits"])
    assert len(those) == sum(row["fits"] is True for row in found.rows()) > 0


def test_the_command(run: Run, tmp_path: Path) -> None:
    ran = run("sweep", "tiny.json", "--batch", "1:4:x2", "--context", "1k,2k", "--tp", "1,3")
    assert ran.code == 0
    assert "1 of the rows refused" in ran.out
    lines = run(
        "sweep", "tiny.json", "--batch", "1:4:x2", "--context", "1k,2k", "--format", "jsonl"
    ).out.splitlines()
    assert [(r["batch"], r["context"]) for r in map(json.loads, lines)] == [*product((1, 2, 4), (1024, 2048))]
    ran = run("sweep", "tiny.json", "-o", "x.csv")
    assert ran.code == 0 and "x.csv: 1 row\n" in ran.err
    assert len((tmp_path / "x.csv").read_text("utf-8").splitlines()) == 2
    for bad, why in (("8:1", "reversed"), ("0", "from 1"), ("x", "a range")):
        ran = run("sweep", "tiny.json", "--batch", bad, "-o", "y.csv")
        assert ran.code == 2
        assert why in ran.err
    for split in (("--hw", "h101"), ("--tp", "3,5"), ("--weights", "bf17")):  # all rows refused
        ran = run("sweep", "tiny.json", *split, "-o", "y.csv")
        assert ran.code == 2
        assert " refused: " in ran.err
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "y.csv").exists()


def test_bytes_are_not_for_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for form, code in (("parquet", 2), ("arrow", 2), ("csv", 0)):
        ran = run("sweep", "tiny.json", "--format", form)
        assert ran.code == code and ("writes binary data; name a file with -o FILE" in ran.err) == bool(code)
        assert bool(ran.out) == (not code)


def test_prices_are_of_the_device() -> None:
    found = llmir.sweep("llama3.1-8b", {"hw": ("h100-sxm", "a30"), "batch": 8, "context": 100, "tp": 2})
    first, other = found.rows()
    fields = {
        hw: {row["field"]: row["value"] for row in llmir.devices(hw).rows} for hw in ("h100-sxm", "a30")
    }
    hourly = fields["h100-sxm"]["price_per_hour_usd"]
    assert first["cost_usd_per_mtok"] == pytest.approx(first["time_s"] * 2 * hourly / 3600 / 8 * 1e6)
    assert (other["cost_usd_per_mtok"] is None) == (fields["a30"].get("price_per_hour_usd") is None)


@pytest.mark.slow
def test_prices_that_are_stated(run: Run) -> None:
    axes = {"hw": ("h200", "hgx-h200", "a30"), "batch": 8, "tp": 2}
    listed, plain = llmir.sweep(TINY, axes), llmir.sweep(TINY, axes, price={"nvidia/H200": 3.5})
    hourly = library.load("h200").price_per_hour_usd
    for before, after in zip(listed.rows(), plain.rows(), strict=True):
        usd = after["time_s"] * 2 * 3.5 / 3600 / 8 * 1e6
        assert after["cost_usd_per_mtok"] == (None if after["hw"] == "a30" else pytest.approx(usd))
        if hourly is None:
            assert before["cost_usd_per_mtok"] is None
    for price, why in (("h200", "USD an hour by device"), ("h200=0", "above 0"), ("b200=3", "not among")):
        ran = run("sweep", "tiny.json", "--hw", "h200", "--price", price)
        assert ran.code == 2
        assert why in ran.err
    row = json.loads(run("sweep", "tiny.json", "--hw", "h200", "--price", "h200=2", "--format", "jsonl").out)
    assert row["cost_usd_per_mtok"] == pytest.approx(row["time_s"] * 2 / 3600 * 1e6)
