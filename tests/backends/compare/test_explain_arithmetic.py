"""The lines by which `explain` shows a kernel are what it computes: put together they are its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.explain import TIME, FormulaLine, arithmetic, explain
from llmir.backends.kernels import gemm
from llmir.backends.kernels.base import Kernel, Shape, parameters
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.base.array_namespace import SCALARS, Number
from llmir.hw import library
from tests.backends.tape.test_tape import CASES, kernels, shapes
from tests.flat import records

FUSED = llmir.pipeline_of()
H100 = library.load("dgx-h100")
# Products of all types, attention of all kinds, experts, scans, collectives.
PROGRAMS = (
    ("llama3.1-8b", "", "h100-sxm"),
    ("llama3.1-8b", f"{FUSED},shard{{tp=4, sp=1}}", "l40s"),
    ("gpt-oss-20b", f"{FUSED},shard{{tp=2}}", "b200"),
    ("deepseek-v3.2", f"{FUSED},shard{{tp=8, ep=8}}", "h200"),
    ("deepseek-v3", f"{FUSED},shard{{tp=4, dp=2, ep=8}}", "h100-sxm"),
    ("Qwen3-Next-80B-A3B", FUSED, "h100-sxm"),
    ("kimi-linear-48b-a3b", FUSED, "h20"),
    ("nemotron-h-8b", FUSED, "a100-sxm"),
    ("minimax-m2", f"{FUSED},shard{{tp=8}}", "mi300x"),
)
POINTS = ({"batch": 1, "new": 1, "context": 0}, {"batch": 40, "new": 1, "context": 5000})
POINTS += ({"batch": 3, "new": 700, "context": 300},)


def composed(lines: tuple[FormulaLine, ...], given: Mapping[str, Number]) -> float:
    """The last of the lines, each as Python of what is above it."""
    known = {name: getattr(SCALARS, name) for name in ("ceil", "floor", "sqrt", "cbrt", "hypot", "expm1")}
    known |= {"inf": math.inf, **given}
    for line in lines:
        known[line.name] = eval(line.formula, {}, known)
        assert known[line.name] == line.value
    return float(known[TIME])


def names(kernel: Kernel, shape: Shape) -> dict[str, Number]:
    """All that lines may read: no two are called alike."""
    own = {p.name: getattr(kernel, p.name) for p in parameters(type(kernel))}
    assert not own.keys() & shape.numbers().keys()
    return own | shape.numbers()


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize(("kind", "part", "takes"), CASES, ids=lambda x: getattr(x, "__name__", x))
@settings(max_examples=12, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_lines_are_every_kernel(kind: type[Kernel], part: str, takes: Any, data: Any) -> None:
    device = library.load("cpu") if kind.__name__.startswith("Cpu") else H100
    shape, kernel = data.draw(shapes(takes)), data.draw(kernels(kind))
    assume(part != "seconds" or kind.supports(shape))
    assume(getattr(shape, "causal", 1) or getattr(shape, "cached", 1))  # who sees all sees a key
    found = composed(arithmetic(kernel, part, device, shape), names(kernel, shape))
    assert found == pytest.approx(float(getattr(kernel, part)(device, shape, SCALARS)), rel=1e-12, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "pipeline", "device"), PROGRAMS)
def test_lines_together_are_the_time_of_an_op(model: str, pipeline: str, device: str) -> None:
    program, seen = llmir.run(llmir.load(model), pipeline), set()
    for at in POINTS:
        report = llmir.analyze(program, device, **records(llmir.analyze, **at))
        for op in report.work[: len(report.plan.rows)]:
            e = explain(report, op.name)
            if e.kernel is None or not e.kernel.lines:
                continue
            seen.add(e.kernel.family)
            own = {p.name: p.value for p in e.kernel.parameters}
            seconds = composed(e.kernel.lines, {**e.kernel.given, **own})
            exact = {"rel": 1e-12, "abs": 0}
            assert e.kernel.alone_s == pytest.approx(max(seconds, e.ideal_time_s), **exact), op.name
            captured = seconds - e.kernel.hidden * e.kernel.launch_s
            assert e.time_s == pytest.approx(max(captured, e.ideal_time_s), **exact), op.name
    assert len(seen) >= 2


def _more(of: Callable[..., Number]) -> Callable[..., Number]:
    return lambda *args: 1.5 * of(*args)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (GemmKernel, "memory"),
        (GemmKernel, "waves"),
        (GemmKernel, "multiplied"),
        (gemm, "cache_miss_share"),
        (gemm, "overlap_time"),
    ],
)
def test_a_kernel_that_changes_changes_its_lines(
    where: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = GemmKernel()
    # Where tiles and memory take as long, both decide.
    shape = GemmShape(m=250, n=4096, k=4096, turns=1)
    before = arithmetic(kernel, "seconds", H100, shape)
    monkeypatch.setattr(where, line, _more(getattr(where, line)))
    after = arithmetic(kernel, "seconds", H100, shape)
    assert after[-1].value != before[-1].value
    assert {x.formula for x in after} != {x.formula for x in before}
    assert after[-1].value == pytest.approx(float(kernel.seconds(H100, shape, SCALARS)), rel=1e-12, abs=0)


def test_lines_say_what_is_chosen() -> None:
    """Attention over a short cache is one piece, of which nothing is combined."""
    program = llmir.run(llmir.load("llama3.1-8b"), FUSED)
    for context, combines in ((100, False), (100_000, True)):
        kernel = explain(
            llmir.analyze(program, "h100-sxm", batch=1, new=1, context=context), "flash_attention"
        ).kernel
        assert kernel and kernel.family == "attention_decode"
        text = "\n".join(line.formula for line in kernel.lines)
        assert ("combine_us" in text) == combines
        assert "if" not in text.split() and "lone_us" not in text
