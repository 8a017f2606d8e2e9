"""A step asks each price once, however many rows and figures it makes; the rows still make up the step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import llmir
from llmir.backends.cost.calibrated import FastestKernel, KernelTime
from llmir.backends.cost.op_time import OpTime
from llmir.ir.sizes.binding import Binding
from tests.flat import records

MIXED = {"batch": 4, "new": 1, "context": 100, "beside": [{"batch": 2, "new": 64, "context": 0}]}
SHARDED = "quantize{weights=fp8},shard{tp=8, ep=8}"


@pytest.mark.parametrize(
    ("model", "device", "passes"),
    [
        ("DeepSeek-V3", "b200", SHARDED),
        ("llama3.1-8b", "h100-sxm", "stages{pp=2}"),
        ("gemma-3-12b", "a100", "dce"),
    ],
)
def test_rows_of_a_mixed_step_make_up_its_stages(model: str, device: str, passes: str) -> None:
    program = llmir.run(llmir.load(model), f"{llmir.pipeline_of()},{passes}")
    step: Any = llmir.analyze(program, device, **records(llmir.analyze, **MIXED))
    for stage in step.stages:
        rows = [row for row in step.ops if row.stage == stage.stage and row.bound != "bubble"]
        assert sum(row.total_s for row in rows) == pytest.approx(stage.time_s, rel=1e-12, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize("passes", ["dce", "unroll", "stages{pp=4}"])
def test_a_report_asks_a_price_once_for_its_time_in_a_graph_and_once_for_its_bound(
    passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A price may ask itself for its time on the way to its bound."""
    asked: Counter[tuple[str, OpTime]] = Counter()
    inside: list[str] = []

    def counted(kind: type[Any], name: str) -> None:
        known = getattr(kind, name)

        def ask(self: Any, at: Binding, *more: Any) -> Any:
            if id(self) in top and not inside:
                asked[name, self] += 1
            inside.append(name)
            try:
                return known(self, at, *more)
            finally:
                inside.pop()

        monkeypatch.setattr(kind, name, ask)

    program = llmir.run(llmir.load("llama3.1-8b"), f"{llmir.pipeline_of()},{passes}")
    step = llmir.analyze(program, "h100-sxm", batch=3, new=1, context=1001)
    top = {id(price) for price in step.plan.prices}
    for kind in (KernelTime, FastestKernel):
        for name in ("due", "in_graph"):
            counted(kind, name)
    step.to_dict()
    prices = {price for price in step.plan.prices if isinstance(price, KernelTime | FastestKernel)}
    assert len(prices) < 20
    assert asked == {(name, price): 1 for name in ("due", "in_graph") for price in prices}


def test_layers_written_out_have_the_figures_of_one_in_a_loop() -> None:
    rolled = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    loop, flat = (llmir.analyze(p, "h100-sxm", batch=4) for p in (rolled, llmir.run(rolled, "unroll")))
    assert flat.time_s == pytest.approx(loop.time_s, rel=1e-12, abs=0)
    of_one = {row.name.split(".")[-1]: row for row in loop.work if row.repeat == 32}
    for row in flat.work:
        for name, one in of_one.items():
            if row.name.endswith(f".{name}"):
                assert (row.time_s, row.flops, row.shape, row.block) == (
                    one.time_s,
                    one.flops,
                    one.shape,
                    one.block,
                )
    assert len({row.name for row in flat.work}) == len(flat.work)
