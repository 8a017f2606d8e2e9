"""Pipeline stages told from one program are those that passes make, op by op and byte by byte."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.cost.models import model
from llmir.backends.step.evaluate import StageCost, step_evaluator
from llmir.backends.step.program_batch import stage_evaluator as by_arithmetic
from llmir.base.errors import InputError, PassError
from llmir.hw.library import load as device
from llmir.ir.core.program import Program
from llmir.ir.tools.loops import cut_sizes
from llmir.passes.stages import Stages
from tests.flat import records
from tests.strategies import FUSIONS, configs, degrees, wide

FIGURES = ("time_s", "period_s", "interval_s", "bubble", "peak_memory_bytes")


def alike(program: Program, sizes: tuple[int, ...], hw: str = "h200", **at: Any) -> None:
    """Each phase, by figures, by row, and by the sizes of memory in symbols."""
    cut = llmir.run(program, [Stages(layers=sizes), "slice-sends"])
    by = model(device(hw))
    for phase in ("prefill", "decode"):
        one, other = by_arithmetic(program.phase(phase), by, sizes), step_evaluator(cut.phase(phase), by)
        if len(sizes) > 1:
            assert one.rows == other.rows
        for ours, theirs in zip(one.memories, other.memories, strict=True):
            assert (ours.weights, ours.caches) == (theirs.weights, theirs.caches)
            assert [m.bytes for m in ours.moments] == [m.bytes for m in theirs.moments]
        (step,) = llmir.stages(program, hw, [sizes], **records(llmir.stages, phase=phase, **at))
        report = llmir.analyze(cut, hw, **records(llmir.analyze, phase=phase, **at))
        assert step.layers == sizes
        for figure in FIGURES:
            assert np.allclose(getattr(step, figure), getattr(report, figure), rtol=1e-12, atol=0), figure
        for stage, due in zip(step.stages, report.stages, strict=True):
            for name in StageCost.__dataclass_fields__:
                tolerance = {"rtol": 1e-12, "atol": 1e-18} if name.endswith("_s") else {"rtol": 0, "atol": 0}
                assert np.allclose(getattr(stage, name), getattr(due, name), **tolerance), name


@st.composite
def layers(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Any sizes of stages."""
    ends = sorted(draw(st.permutations(range(1, count)))[: draw(st.integers(0, count - 1))])
    return tuple(b - a for a, b in pairwise([0, *ends, count]))


@pytest.mark.slow
@given(configs(), FUSIONS, st.data(), st.integers(1, 3))
@settings(max_examples=40)
def test_any_program(config: dict[str, Any], before: str, data: st.DataObject, micro: int) -> None:
    config = wide(config, 12)
    base = llmir.run(llmir.load(config), before)
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or base.active_parameters < base.parameters))
    program = llmir.run(base, [how, Stages(micro_batches=micro)])
    ranks = program.mesh.degree("dp")
    sizes = data.draw(layers(config["num_hidden_layers"]))
    alike(program, sizes, "h100", batch=ranks * micro * np.array([1, 7]), new=1, context=300)


# Periods, layers before and after them, phases with weights of their own, what later layers read of earlier
# ones, states beside caches, images, latents that are absorbed.
FAMILIES = (
    "gemma-3-27b",
    "gemma-3n-e4b",
    "gpt-oss-20b",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "nemotron-h-8b",
    "llava-onevision-qwen2-0.5b",
    "llama-4-scout-17b-16e",
    "zamba2-1.2b",
    "kimi-linear-48b-a3b",
    "deepseek-v4-flash",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("cut", [2, 3, 5])
def test_families(name: str, cut: int) -> None:
    program = llmir.run(llmir.load(name), llmir.pipeline_of())
    alike(program, cut_sizes(program, cut), batch=8, new=1, context=1000)
    narrow = llmir.run(program, "quantize{weights=fp8},shard{tp=2}")
    alike(narrow, cut_sizes(narrow, cut), batch=8, new=1, context=1000)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=10, deadline=None)
def test_periods_are_cut_anywhere(data: st.DataObject) -> None:
    program = llmir.run(llmir.load("gemma-3-4b"), llmir.pipeline_of())
    alike(program, data.draw(layers(program.depth("main"))), batch=4, new=1, context=3000)


@pytest.mark.parametrize("policy", ["paged", "unified"])
def test_policies_of_caches(policy: str) -> None:
    program = llmir.run(llmir.load("gemma-3-4b"), llmir.pipeline_of())
    at = {"batch": 4, "new": 1, "context": 3000, "cache_policy": policy}
    (step,) = llmir.stages(program, "h200", [3], **records(llmir.stages, **at))
    report = llmir.analyze(
        llmir.run(program, "stages{pp=3},slice-sends"), "h200", **records(llmir.analyze, **at)
    )
    assert [s.kv_cache_bytes for s in step.stages] == [s.kv_cache_bytes for s in report.stages]


def test_links_that_only_sends_go_over_may_have_a_share() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of()},shard{{tp=8}}")
    how: dict[str, Any] = {"efficiency": {"network": 0.5}, "batch": 8, "context": 100}
    (step,) = llmir.stages(program, "dgx-h100", [2], **records(llmir.stages, **how))
    cut = llmir.run(program, "stages{pp=2},slice-sends")
    assert step.time_s == llmir.analyze(cut, "dgx-h100", **records(llmir.analyze, **how)).time_s
    with pytest.raises(InputError, match="network has no effect"):
        llmir.stages(program, "dgx-h100", [1], **records(llmir.stages, **how))


def test_one_stage_is_the_program_and_many_are_refused_as_by_the_pass() -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), llmir.pipeline_of())
    (step,) = llmir.stages(program, "h200", [1], batch=4, context=100)
    assert step.time_s == llmir.analyze(program, "h200", batch=4, context=100).time_s
    drafts, staged = llmir.load("deepseek-v3", draft=True), llmir.run(program, "stages{pp=2}")
    for refused, cut in ((program, 29), (program, (1, 2)), (staged, 2), (drafts, 2)):
        how = Stages(cut) if isinstance(cut, int) else Stages(layers=cut)
        with pytest.raises(PassError) as due:
            llmir.run(refused, how)
        with pytest.raises(PassError) as found:
            llmir.stages(refused, "h200", [cut])
        assert str(found.value).partition(":")[2] in str(due.value)
    with pytest.raises(PassError, match=r"stages: 0, but Qwen3-0\.6B has 28 layers"):
        llmir.stages(program, "h200", [()])
    for bad in (1.5, "2", None):
        with pytest.raises(InputError, match="expected a list of layers, or a number of stages, got"):
            llmir.stages(program, "h200", [bad])  # type: ignore[list-item]
