"""Plots of plans, sweeps and simulations, and pictures as files and on the command line."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import llmir
from llmir.api.sweep import axis
from llmir.base.errors import InputError
from llmir.cli.serve_sim import Rates
from tests.commands import Run
from tests.flat import records

from .axes import line, new_axes, outside, texts

KINDS = ("roofline", "distributions", "memory", "batch", "context")
FRONT = {"hw": ("h100-sxm", "h200"), "tp": (1, 2), "batch": "1:1k:x4", "context": 8000}


@cache
def plans() -> Any:
    how: dict[str, Any] = {"max_ttft": "1s", "max_tpot": "25ms", "gpus": 4, "requests": 200}
    return llmir.plan(
        "llama3.1-8b", "h100-sxm,h200", **records(llmir.plan, rate=20, prompt=1000, generate=100, **how)
    )


@cache
def server() -> Any:
    return llmir.server(llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm")), "h100-sxm")


def served(rate: float, requests: int = 200, **how: Any) -> Any:
    load = llmir.traffic(
        llmir.Traffic(rate=rate, prompt="lognormal:512,0.6", generate=100, requests=requests)
    )
    return server().run(load, **how)


def words(ax: Any) -> str:
    return " ".join(text.get_text() for text in texts(ax)).replace("\n", " ")


@pytest.mark.slow
def test_the_front_of_plans_is_theirs_and_the_first_is_marked() -> None:
    found = plans()
    ax = llmir.plot_front(found, new_axes())
    users, gpus = found.tokens_per_s_user, found.tokens_per_s_device
    drawn = []
    for device in ("H100-SXM", "H200-SXM"):
        drawn += list(zip(*line(ax, device), strict=True))
    assert sorted(drawn) == sorted(zip(users[found.front], gpus[found.front], strict=True))
    (chosen,) = (each for each in ax.collections if each.get_label() == "chosen")
    best = found.best
    assert np.asarray(chosen.get_offsets())[0].tolist() == [best.tokens_per_s_user, best.tokens_per_s_device]
    assert "TPOT above 25.0 ms" in words(ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tokens/s of a user, 1 / TPOT", "output tokens/s of a GPU")
    marks = [(each.get_marker(), str(each.get_linestyle())) for each in ax.get_lines()[:2]]
    assert marks[0][0] != marks[1][0] and marks[0][1] != marks[1][1]
    assert outside(ax) == []


def test_the_front_of_a_sweep_is_what_fits_and_nothing_else_beats() -> None:
    found = llmir.sweep("llama3.1-8b", FRONT)
    ax = llmir.plot_front(found, new_axes())
    for device in FRONT["hw"]:
        rows = [row for row in found.rows() if row["hw"] == device and row["fits"]]
        points = {(1 / row["time_s"], row["batch"] / row["time_s"] / row["devices"]) for row in rows}
        best = {p for p in points if not any(o != p and o[0] >= p[0] and o[1] >= p[1] for o in points)}
        drawn = sorted(zip(*line(ax, str(device)), strict=True))
        assert np.array(drawn) == pytest.approx(np.array(sorted(best)), rel=1e-12, abs=0)
    out = [each for each in ax.collections if "does not fit" in str(each.get_label())]
    count = sum(len(each.get_offsets()) for each in out)
    assert count == sum(row["fits"] is False for row in found.rows()) > 0
    assert outside(ax) == []


@pytest.mark.slow
@pytest.mark.parametrize("of", ["ttft", "tpot"])
def test_latencies_are_those_of_the_runs_in_order_of_rate(of: str) -> None:
    runs = [served(rate, max_ttft_s=0.3, max_tpot_s=0.02) for rate in (20, 5, 12)]
    ax = llmir.plot_latencies(runs, new_axes(), of=of, rate=12)
    ordered = sorted(runs, key=lambda one: one.load.rate or 0)
    for stat in ("p50", "p90", "p99"):
        x, y = line(ax, stat)
        assert list(x) == [one.load.rate for one in ordered]
        assert list(y) == [getattr(one.latencies[of], stat) for one in ordered]
    assert f"limit {'300' if of == 'ttft' else '20.0'} ms" in words(ax)
    assert len({str(each.get_linestyle()) for each in ax.get_lines()[:3]}) == 3
    assert ax.yaxis.get_major_formatter()(0.2) == "200 ms" and ax.get_xlabel() == "requests/s"
    assert outside(ax) == []


def test_what_is_overloaded_is_hatched_from_the_largest_stable_rate() -> None:
    runs = [served(rate) for rate in (10, 60)]
    ax = llmir.plot_latencies(runs, new_axes())
    (region,) = (patch for patch in ax.patches if patch.get_hatch())
    stable = float(np.mean([one.largest_rate for one in runs]))
    assert region.get_x() == pytest.approx(stable)
    assert "overloaded" in words(ax)


@pytest.mark.slow
def test_replications_have_bands_of_their_intervals() -> None:
    program = server().job.program
    both = [
        llmir.replicate(
            program,
            "h100-sxm",
            llmir.Traffic(rate=rate, prompt="uniform:100,900", generate=50, requests=60),
            3,
        )
        for rate in (5, 15)
    ]
    ax = llmir.plot_latencies(both, new_axes())
    _, y = line(ax, "p99")
    assert list(y) == [found.latencies["ttft"]["p99"].mean for found in both]
    heights = {round(float(v), 9) for band in ax.collections for v in band.get_paths()[0].vertices[:, 1]}
    for found in both:
        mean, half = found.latencies["ttft"]["p99"]
        assert {round(mean + half, 9), round(max(mean - half, 0), 9)} <= heights


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 3])
def test_over_time_all_that_runs_and_waits_is_there(replicas: int) -> None:
    one = served(60, replicas=replicas)
    ax = llmir.plot_serving(one, new_axes())
    of = one.events
    for label, amount in (("running", of["decodes"] + of["reads"]), ("waiting", of["waiting"])):
        (stairs,) = (patch for patch in ax.patches if patch.get_label() == label)
        values, edges, _ = stairs.get_data()
        assert values @ np.diff(edges) == pytest.approx(float(amount @ of["time_s"]), rel=1e-9, abs=0)
    _, right = ax.figure.axes
    (blocks,) = right.patches
    assert 0 < blocks.get_data()[0].max() <= 100 * one.most_blocks / one.capacity.blocks + 1e-9
    assert (ax.get_ylabel(), right.get_ylabel()) == ("requests", "blocks of caches in use, %")
    assert outside(ax) == []


def test_users_of_a_closed_loop_have_no_rate() -> None:
    run = server().run(llmir.traffic(llmir.Traffic(closed=4, prompt=100, generate=10, requests=20)))
    with pytest.raises(InputError, match="runs with a request rate"):
        llmir.plot_latencies(run, new_axes())
    assert "4 users" in words(llmir.plot_serving(run, new_axes()))


def test_pyplot_has_the_figure_of_axes_that_were_not_given() -> None:
    from matplotlib import pyplot

    before = {*pyplot.get_fignums()}
    ax = llmir.plot_front(plans())
    (own,) = {*pyplot.get_fignums()} - before
    assert pyplot.figure(own) is ax.figure
    pyplot.close(own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")], ids=["png", "svg", "pdf"]
)
def test_results_are_saved_as_pictures_that_are_the_same_each_time(
    form: str, begins: bytes, tmp_path: Path
) -> None:
    files = []
    for name in ("one", "other"):
        files.append(llmir.save(served(5), tmp_path / f"{name}.{form}").read_bytes())
    assert files[0].startswith(begins)
    assert files[0] == files[1] or form == "pdf"  # in which fonts are put together as they come


@pytest.mark.slow
def test_a_plan_is_a_picture_of_its_front_and_of_latencies(tmp_path: Path) -> None:
    text = llmir.save(plans(), tmp_path / "plan.svg").read_text("utf-8")
    assert text.count('id="axes_') == 3


@pytest.mark.slow
def test_a_sweep_is_a_picture_over_what_varies(tmp_path: Path) -> None:
    for axes in ({"batch": "1:64:x4"}, {"context": "1k:8k:x2"}, {"batch": "1:64:x4", "tp": (1, 2)}):
        found = llmir.sweep("llama3.1-8b", axes)
        assert llmir.save(found, tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="this sweep has one of each"):
        llmir.save(llmir.sweep("llama3.1-8b", {"tp": (1, 2)}), tmp_path / "none.png")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_plots_each_kind(run: Run, tmp_path: Path, kind: str) -> None:
    said = run("plot", kind, "tiny.json", "--prompt", "32", "--generate", "8", "-o", "out.png")
    assert (said.code, said.out, said.err) == (0, "out.png\n", "")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_without_a_name_the_file_has_that_of_the_model(run: Run, tmp_path: Path) -> None:
    assert run("plot", "memory", "tiny.json", "--prompt", "8", "--phase", "decode").out == "tiny-memory.png\n"
    assert (tmp_path / "tiny-memory.png").exists()


@pytest.mark.slow
def test_rates_are_a_picture(run: Run, tmp_path: Path) -> None:
    asked = ("serve-sim", "tiny.json", "--prompt", "8", "--generate", "4", "--requests", "50")
    assert run(*asked, "--rates", "5,20", "-o", "late.svg").code == 0
    assert run(*asked, "--rates", "5,20", "--replications", "2", "-o", "late.png").code == 0
    assert run(*asked, "--rate", "5", "-o", "over.png").code == 0
    assert {f.suffix for f in tmp_path.iterdir()} == {".json", ".svg", ".png"}


def rates(text: str) -> list[float]:
    found: list[float] = Rates().convert(text, None, None)
    return found


@given(st.integers(1, 50), st.integers(1, 200), st.integers(1, 30), st.booleans())
def test_rates_take_the_ranges_of_a_sweep(first: int, more: int, step: int, powers: bool) -> None:
    text = f"{first}:{first + more}:{'x' if powers else ''}{step + powers}"
    values = axis("batch", f"7,{text}")
    assume(len(values) > 1)
    assert rates(f"7,{text}") == sorted(values)


@given(st.integers(1, 99), st.integers(1, 60), st.integers(1, 40), st.sampled_from([10, 100]))
def test_a_range_of_rates_may_have_fractions(first: int, more: int, step: int, unit: int) -> None:
    assume(more >= step)
    text = ":".join(str(Decimal(n) / unit) for n in (first, first + more, step))
    assert rates(text) == [n / unit for n in range(first, first + more + 1, step)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0:3", "expected a number from 0.000001 to 1,000,000,000, got 0"),
        ("8:2", "8:2 is reversed"),
        ("1:3:0", "the step must be above 0"),
        ("1:9:x1", "the factor must be at least 2"),
        ("1:2000", "expected rates from two up to 1,000, such as 2,6,10 or 2:18:4; got 2,000"),
        ("2:", "a range such as 1:8"),
    ],
)
def test_a_range_of_rates_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        rates(text)


TRAFFIC = ("serve-sim", "tiny.json", "--prompt", "8", "--generate", "4")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("plot", "pie", "tiny.json"),
            "KIND: expected one of roofline, distributions, memory, batch, context",
        ),
        (("plot", "front", "tiny.json"), "got 'front'; llmir plan or llmir sweep with -o front.png"),
        (
            ("plot", "batch", "tiny.json", "--by", "kind"),
            "--by kind: applies only to distributions, not to batch",
        ),
        (
            ("plot", "batch", "tiny.json", "--phase", "decode"),
            "--phase decode: applies only to roofline, distributions",
        ),
        (("plot", "roofline", "tiny.json", "--phase", "encode", "--prompt", "8"), "prefill and decode"),
        (("plot", "distributions", "tiny.json", "--by", "layer", "--prompt", "8"), "expected block or kind"),
        (
            ("plot", "roofline", "tiny.json", "-o", "x.gif"),
            "suffix '.gif' is unknown; allowed are .png, .svg",
        ),
        (("plot", "roofline", "tiny.json", "-o", "-"), "-o -: a picture must be written to a file"),
        ((*TRAFFIC, "--rates", "5", "-o", "x.png"), "--rates: expected rates from two up"),
        (
            (*TRAFFIC, "--rates", "5,x", "-o", "x.png"),
            "--rates: expected a number from 0.000001 to 1,000,000,000, got 'x'",
        ),
        (
            (*TRAFFIC, "--rates", "5,9", "--rate", "5", "-o", "x.png"),
            "--rate: cannot be combined with --rates",
        ),
        ((*TRAFFIC, "--rates", "5,9", "-o", "x.csv"), "suffix '.csv' is unknown"),
    ],
)
def test_what_cannot_be_plotted_is_refused(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    said = run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ") and says in said.err and said.err.count("\n") == 1
    assert [f.name for f in tmp_path.iterdir()] == ["tiny.json"]


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
    ("arguments", "who"),
    [
        (("plot", "roofline", "tiny.json"), "plot"),
        (("plan", "tiny.json", "--rate", "1", "-o", "plan.png"), "-o plan.png"),
        (("sweep", "tiny.json", "--batch", "1:4", "-o", "sweep.svg"), "-o sweep.svg"),
        ((*TRAFFIC, "--rate", "5", "-o", "x.pdf"), "-o x.pdf"),
        ((*TRAFFIC, "--rates", "5,9", "-o", "x.png"), "-o x.png"),
    ],
)
def test_without_matplotlib_the_extra_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], who: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    said = run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: {who} needs matplotlib: pip install 'llmir[plot]'\n"
    with pytest.raises(InputError, match="plot_front needs matplotlib"):
        llmir.plot_front(plans())


def test_other_files_need_no_matplotlib(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert run(*TRAFFIC, "--rate", "5", "--requests", "20", "-o", "x.json").code == 0
    assert json.loads((tmp_path / "x.json").read_text("utf-8"))["requests"] == 20
