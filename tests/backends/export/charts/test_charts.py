"""Plots of a workload: what is drawn is what reports say, in units, whole, and told apart without colour."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.export.charts import frame
from llmir.base.errors import InputError

from .axes import MODELS, grey, line, new_axes, outside, overlapping, texts, workload

WORKLOADS = (
    *(llmir.plot_roofline, llmir.plot_distributions, llmir.plot_memory),
    *(llmir.plot_batch, llmir.plot_context),
)
PARTS = ("weights", "caches", "activations")


def label_of(phase: str, op: Any) -> str:
    return f"{phase} {op.name.rpartition('.')[2]}"


@pytest.mark.mostly_slow(15)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plot", WORKLOADS, ids=lambda plot: plot.__name__)
def test_every_plot_is_whole_and_says_what_it_is_of(plot: Any, name: str) -> None:
    job = workload(name)
    ax = plot(job, new_axes(7.0))
    assert outside(ax) == []
    title = " ".join(text.get_text() for text in texts(ax))
    assert job.program.name in title.replace("\n", " ")
    assert job.device.name in title.replace("\n", " ")
    assert "vllm kernels" in title.replace("\n", " ")
    assert ("tp 8" in title) == (name == "deepseek-v3")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_marks_of_the_roofline_are_the_ops_of_the_report(name: str) -> None:
    job = workload(name)
    ax = llmir.plot_roofline(job, new_axes())
    drawn: dict[str, list[Any]] = {}
    for mark in ax.collections:
        drawn.setdefault(str(mark.get_label()), []).extend(np.asarray(mark.get_offsets()))
    for phase, step in job.steps.items():
        for op in step.work:
            if op.flops:
                at = op.intensity, op.flops / op.time_s
                assert any(np.allclose(each, at, rtol=1e-12) for each in drawn[label_of(phase, op)])
            else:
                assert label_of(phase, op) not in drawn
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "arithmetic intensity, FLOP per byte moved",
        "FLOP/s reached by a rank",
    )


def test_areas_are_shares_and_phases_have_marks_of_their_own() -> None:
    job = workload("llama3.1-8b")
    ax = llmir.plot_roofline(job, new_axes())
    sizes = {each.get_label(): float(each.get_sizes()[0]) for each in ax.collections}
    shares = {label_of(phase, op): op.share for phase, step in job.steps.items() for op in step.work}
    large = [label for label, share in shares.items() if share > 0.05]
    assert len(large) > 3
    for label in large:
        assert sizes[label] / shares[label] == pytest.approx(
            sizes[large[0]] / shares[large[0]], rel=1e-9, abs=0
        )
    corners: dict[str, set[int]] = {phase: set() for phase in job.steps}
    for mark in ax.collections:
        corners[str(mark.get_label()).split()[0]].add(len(mark.get_paths()[0].vertices))
    assert not corners["prefill"] & corners["decode"]


def test_roofs_are_those_of_the_types_in_use() -> None:
    ax = llmir.plot_roofline(workload("deepseek-v3"), new_axes())
    device = llmir.devices("h200").rows
    rates = {row["field"]: row["value"] for row in device}
    for what, field in (("fp8 matrix", "matrix_flops.fp8"), ("bf16 matrix", "matrix_flops.bf16")):
        assert set(line(ax, what)[1]) == {rates[field]}
    x, y = line(ax, "memory")
    assert np.asarray(y) / np.asarray(x) == pytest.approx(rates["memory_Bps"])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_labels_of_ops_lie_over_no_other(name: str) -> None:
    ax = llmir.plot_roofline(workload(name), new_axes(6.2))
    ax.figure.draw_without_rendering()
    top = ax.get_window_extent().y1
    words = [text for text in ax.texts if len(text.get_text()) > 1 and not text.get_rotation()]
    inside = [text for text in words if text.get_window_extent().y0 < top]
    assert len(inside) > 6
    assert overlapping(inside) == []


@pytest.mark.parametrize("by", ["block", "kind"])
@pytest.mark.parametrize("name", MODELS)
def test_bars_of_a_distribution_are_shares_of_the_report(name: str, by: str) -> None:
    job = workload(name)
    ax = llmir.plot_distributions(job, new_axes(7), by=by)
    rows = [label.get_text().replace(" ", "_") for label in ax.get_yticklabels()]
    bars: dict[str, np.ndarray[Any, Any]] = {
        str(each.get_label()): np.array([bar.get_width() for bar in each]) for each in ax.containers
    }
    for label, widths in bars.items():
        if not label.startswith("time"):
            assert widths.sum() == pytest.approx(1, abs=1e-12), label
    for phase, step in job.steps.items():
        amounts = {"FLOPs": lambda op: op.flops, "bytes moved": lambda op: op.read_bytes + op.write_bytes}
        wholes = {"FLOPs": step.flops, "bytes moved": step.read_bytes + step.write_bytes}
        for what, amount in amounts.items():
            for row, width in zip(rows, bars[f"{what}, {phase}"], strict=True):
                total = sum(op.repeat * amount(op) for op in step.work if getattr(op, by) == row)
                assert width == pytest.approx(total / wholes[what], abs=1e-12), (what, row)
        time = sum(widths for label, widths in bars.items() if label.startswith(f"time, {phase}"))
        assert np.sum(time) == pytest.approx(1, abs=1e-12)
        positive = sum(float(op.total_s) for op in step.ops if op.total_s > 0)
        for bound in ("memory", "compute", "network"):
            own_s = sum(float(op.total_s) for op in step.ops if op.bound == bound and op.total_s > 0)
            widths = bars.get(f"time, {phase}, {bound}", np.zeros(1))
            assert widths.sum() == pytest.approx(own_s / positive, abs=1e-12)
    total = job.program.parameters
    if by == "block":
        for block, count in job.program.parameters_by_kind.items():
            assert bars["parameters"][rows.index(block)] == pytest.approx(count / total, abs=1e-12)


@settings(max_examples=12)
@given(
    batch=st.integers(1, 300),
    prompt=st.integers(1, 5000),
    generate=st.integers(1, 50),
    stages=st.sampled_from(["", ",stages{pp=2}", ",shard{tp=2}"]),
    by=st.sampled_from(["block", "kind"]),
)
def test_shares_of_any_workload_add_up(batch: int, prompt: int, generate: int, stages: str, by: str) -> None:
    from llmir.backends.export.charts.shares import table

    program = llmir.run(llmir.load("qwen3-0.6b"), llmir.pipeline_of("vllm") + stages)
    job = llmir.workload(program, "h100-sxm", batch=batch, prompt=prompt, generate=generate)
    found = table(program, job.steps, by)
    for column in found.columns.values():
        for shares in column.shares.values():
            assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
            assert {*shares} <= {*found.rows}
    for time in found.seconds.values():
        assert sum(time.rows.values()) == pytest.approx(1, abs=1e-12)
        assert min(min(bounds.values()) for bounds in time.shares.values()) > 0


def test_prefill_stands_above_decode() -> None:
    ax = llmir.plot_distributions(workload("llama3.1-8b"), new_axes())
    places = {str(each.get_label()): each[0].get_y() for each in ax.containers}
    assert places["FLOPs, prefill"] < places["FLOPs, decode"]
    low, high = ax.get_ylim()
    assert low > high  # so that less is above


@pytest.mark.parametrize("name", MODELS)
def test_batches_of_the_curve_are_those_of_analyze(name: str) -> None:
    job = workload(name)
    ax = llmir.plot_batch(job, new_axes())
    _, right = ax.figure.axes
    x, rate = ax.get_lines()[0].get_data()
    again, time = right.get_lines()[0].get_data()
    assert list(x) == list(again)
    context = job.length + job.generate // 2 - 1
    for batch, tokens, seconds in zip(x, rate, time, strict=True):
        step = llmir.analyze(job.program, job.device, batch=int(batch), context=context)
        assert seconds == pytest.approx(step.time_s, rel=1e-12, abs=0)
        assert tokens == pytest.approx(batch / step.time_s, rel=1e-12, abs=0)
    assert max(x) == job.max_batch
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("sequences in a step", "throughput, tokens/s")
    assert right.get_ylabel() == "time of a step (TPOT of a decode)"


def test_bands_are_the_error_that_is_known() -> None:
    step = llmir.analyze(workload("llama3.1-8b").program, "h100-sxm", batch=8, context=[1000, 4000, 16000])
    ax = llmir.plot_context(step, new_axes())
    (band,) = (each for each in ax.collections if len(each.get_paths()[0].vertices) > 4)
    heights = {round(float(y), 12) for _, y in band.get_paths()[0].vertices}
    for seconds, error in zip(step.time_s, step.error, strict=True):
        assert {round(float(seconds * (1 + error)), 12), round(float(seconds * (1 - error)), 12)} <= heights
    ideal = llmir.analyze(
        step.program, "h100-sxm", batch=8, context=[1000, 4000], estimation=llmir.Estimation(cost="ideal")
    )
    assert not llmir.plot_context(ideal, new_axes()).collections


@pytest.mark.parametrize("name", MODELS)
def test_a_short_logarithmic_axis_has_marks_to_read_it_by(name: str) -> None:
    for plot in (llmir.plot_context, llmir.plot_batch):
        for ax in plot(workload(name), new_axes()).figure.axes:
            low, high = ax.get_ylim()
            inside = [y for y in ax.get_yticks() if low <= y <= high]
            assert len(inside) >= 3 or high < 1.5 * low


@pytest.mark.parametrize("name", MODELS)
def test_contexts_of_the_curve_are_those_of_analyze(name: str) -> None:
    job = workload(name)
    ax = llmir.plot_context(job, new_axes())
    x, time = ax.get_lines()[0].get_data()
    for context, seconds in zip(x, time, strict=True):
        step = llmir.analyze(job.program, job.device, batch=job.batch, context=int(context))
        assert seconds == pytest.approx(step.time_s, rel=1e-12, abs=0)


def test_the_longest_context_that_fits_is_the_last_that_does() -> None:
    from llmir.backends.export.charts.curves import longest

    job = workload("llama3.1-8b")
    limit = longest(job, 1 << 20)
    for prompt, fits in ((limit, True), (limit + 1, False)):
        assert llmir.workload(job.program, job.device, batch=8, prompt=prompt, generate=1).fits is fits


@pytest.mark.parametrize("name", MODELS)
def test_memory_over_a_request_is_that_of_its_steps(name: str) -> None:
    from llmir.backends.export.charts.memory import GB

    job = workload(name)
    ax = llmir.plot_memory(job, new_axes())
    tops = {str(e.get_label()): e.get_paths()[0].vertices for e in ax.collections if e.get_label() in PARTS}
    assert len(tops) == 3
    last = job.decode
    assert last is not None
    after = tops["weights"][:, 0].max()
    assert after == pytest.approx(job.e2e_s, rel=1e-9, abs=0)
    held = 0.0
    for name_, amount in zip(
        tops, (last.weight_bytes, last.kv_cache_bytes, last.activation_peak_bytes), strict=True
    ):
        held += float(amount)
        vertices = tops[name_]
        assert vertices[vertices[:, 0] == after, 1].max() * GB == pytest.approx(held, rel=1e-9, abs=0)
    assert ax.get_ylabel().endswith(", GB")
    assert re.search(r"peak [\d.]+ GB", " ".join(text.get_text() for text in ax.texts))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_bars_over_a_step_have_the_peak_of_the_report(name: str, phase: str) -> None:
    step = workload(name).steps[phase]
    ax = llmir.plot_memory(step, new_axes(6))
    heights = [bar.get_height() for bar in ax.containers[0]]
    assert max(heights) == step.activation_peak_bytes
    (mark,) = (each for each in ax.get_lines() if each.get_marker() == "v")
    assert mark.get_ydata()[0] == step.activation_peak_bytes
    assert outside(ax) == []


@pytest.mark.slow
def test_lines_of_a_sweep_differ_in_more_than_colour() -> None:
    axes = {"hw": ("h100-sxm", "h200"), "tp": (1, 2), "batch": "1:64:x4", "context": 1000}
    found = llmir.sweep("llama3.1-8b", axes)
    ax = llmir.plot_batch(found, new_axes())
    lines = ax.get_lines()[:4]
    assert len({(each.get_marker(), str(each.get_linestyle())) for each in lines}) == 4
    rows = [row for row in found.rows() if row["hw"] == "h200" and row["tp"] == 2]
    _, rate = line(ax, "hw h200, tp 2")
    assert list(rate) == pytest.approx([row["batch"] / row["time_s"] for row in rows], rel=1e-12, abs=0)
    assert outside(ax) == []


def test_what_bounds_an_op_is_a_letter_in_its_mark() -> None:
    job = workload("qwen3-30b-a3b")
    ax = llmir.plot_roofline(job, new_axes())
    letters = [text.get_text() for text in ax.texts if len(text.get_text()) == 1]
    assert len(letters) == len([e for e in ax.collections if " " in str(e.get_label())])
    assert {"M", "C", "O"} <= {*letters}


def test_in_grey_two_lines_still_differ() -> None:
    job = workload("llama3.1-8b")
    ax = llmir.plot_batch(job, new_axes())
    _, right = ax.figure.axes
    one, other = ax.get_lines()[0], right.get_lines()[0]
    assert one.get_marker() != other.get_marker()
    assert one.get_linestyle() != other.get_linestyle()
    assert grey(ax).min() < 0.45  # what is drawn is dark on white


def grid(job: Any) -> Any:
    return llmir.analyze(job.program, "h100", batch=[1, 2])


@pytest.mark.parametrize(
    ("plot", "data", "words"),
    [
        (
            llmir.plot_roofline,
            grid,
            "got a grid of (2,)",
        ),
        (
            llmir.plot_memory,
            grid,
            "got a grid of (2,)",
        ),
        (llmir.plot_batch, lambda j: llmir.analyze(j.program, "h100"), "a report on a grid of one axis"),
        (llmir.plot_batch, lambda j: llmir.analyze(j.program, "h100", context=[1, 2]), "context also varies"),
        (llmir.plot_batch, lambda j: llmir.sweep(j.program, {"context": "1:4"}), "has only one batch"),
        (llmir.plot_batch, lambda _: "llama", "data: expected a Workload"),
        (llmir.plot_front, lambda j: llmir.sweep(j.program, {"new": 2}), "no decode steps (new=1)"),
        (llmir.plot_latencies, lambda _: [], "expected runs, got none"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(plot: Any, data: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        plot(data(workload("llama3.1-8b")), new_axes())


def test_axes_are_axes() -> None:
    with pytest.raises(InputError, match="plot_memory: ax is a int; expected Axes of matplotlib, or None"):
        llmir.plot_memory(workload("llama3.1-8b"), 3)  # type: ignore[arg-type]


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    said = "added by the engine: decode 1.89 ms: engine CPU 831 µs ± 9%, rank skew 1.06 ms, 19% of the step"
    parts = ("1.89 ms", "831 µs", "± 9%", "1.06 ms")
    for most in range(20, 60):
        lines = frame.wrap(said, most)
        assert " ".join(lines) == said and max(map(len, lines)) <= most
        assert all(any(part in line for line in lines) for part in parts), most
