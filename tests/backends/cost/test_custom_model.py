"""A cost model of the user's own prices every op, alone and compared, and what is wrong with it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.cost.registry import COSTS, cost_model
from llmir.backends.export import wording
from llmir.base.errors import InputError
from tests.commands import TINY


class Flat:
    """So many seconds a kernel, and a second for each terabyte."""

    def __init__(self, launch_s: float = 5e-6) -> None:
        self.launch_s = launch_s

    def price(self, row: Any) -> Callable[[Any], Any]:
        launch, moved = self.launch_s, row.read + row.write
        return lambda at: launch + at(moved) / 1e12


def program() -> llmir.Program:
    return llmir.run(llmir.load(TINY), llmir.pipeline_of())


def test_a_step_takes_what_the_model_says_of_its_ops() -> None:
    step = llmir.analyze(
        program(), "h100-sxm", batch=3, new=5, context=7, estimation=llmir.Estimation(cost=Flat())
    )
    kernels = sum(op.repeat for op in step.ops)
    moved = sum(op.repeat * (op.read_bytes + op.write_bytes) for op in step.ops)
    assert step.time_s == pytest.approx(5e-6 * kernels + moved / 1e12, rel=1e-12, abs=0)
    assert (step.cost_model, {op.basis.kind for op in step.ops}, step.error) == ("Flat", {"Flat"}, None)
    assert (
        step.ideal_time_s
        == llmir.analyze(
            program(), "h100-sxm", batch=3, new=5, context=7, estimation=llmir.Estimation(cost="ideal")
        ).time_s
    )


def test_a_grid_is_its_points() -> None:
    batch, context = np.array([[1], [4]]), np.array([0, 10, 1000])
    grid = llmir.analyze(
        program(), "h100-sxm", batch=batch, new=1, context=context, estimation=llmir.Estimation(cost=Flat())
    )
    points = [
        [
            llmir.analyze(
                program(), "h100-sxm", batch=b, new=1, context=c, estimation=llmir.Estimation(cost=Flat())
            ).time_s
            for c in (0, 10, 1000)
        ]
        for b in (1, 4)
    ]
    assert np.allclose(grid.time_s, points, rtol=1e-12)


def test_nothing_is_kept_of_a_model_that_changes() -> None:
    model = Flat(1e-6)
    before = llmir.analyze(program(), "h100-sxm", estimation=llmir.Estimation(cost=model)).time_s
    model.launch_s = 2e-6
    after = llmir.analyze(program(), "h100-sxm", estimation=llmir.Estimation(cost=model))
    assert after.time_s - before == pytest.approx(1e-6 * sum(op.repeat for op in after.ops))


def test_requests_comparisons_and_tables_take_it_too() -> None:
    job = llmir.workload(
        program(), "h100-sxm", prompt=8, generate=3, estimation=llmir.Estimation(cost=Flat())
    )
    assert json.loads(json.dumps(job.to_dict()))["cost_model"] == "Flat"
    assert ("cost model", "Flat") in wording.head_lines(job)
    assert "Flat" in str(job)
    found = llmir.diff(
        llmir.load(TINY), program(), "h100-sxm", new=8, estimation=llmir.Estimation(cost=Flat())
    )
    saved = sum(c.figure("time_s").delta for c in found.changes)
    assert saved == pytest.approx(found.total("time_s").delta)
    priced = [
        llmir.analyze(program(), "h100-sxm", estimation=llmir.Estimation(cost=cost))
        for cost in (Flat(), "ideal")
    ]
    with pytest.raises(InputError, match="the two sides have different kinds of times"):
        llmir.diff(*priced)


def test_a_registered_model_is_called_with_the_device() -> None:
    @cost_model("bytes-alone")
    def model(device: Any) -> Any:
        class Bytes:
            def price(self, row: Any) -> Any:
                return lambda at: at(row.read + row.write) / device.memory_Bps

        return Bytes()

    try:
        step = llmir.analyze(program(), "h100-sxm", estimation=llmir.Estimation(cost="bytes-alone"))
        assert step.cost_model == "bytes-alone"
        assert step.time_s == pytest.approx((step.read_bytes + step.write_bytes) / step.device.memory_Bps)
        with pytest.raises(InputError, match="cost model bytes-alone knows no engines"):
            llmir.analyze(
                program(), "h100-sxm", estimation=llmir.Estimation(cost="bytes-alone", engine="vllm")
            )
    finally:
        del COSTS["bytes-alone"]


class Priced:
    def __init__(self, value: Any) -> None:
        self.value = value

    def price(self, row: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (3, "expected the name of a cost model, or an object with price"),
        (Flat, "expected the name of a cost model, or an object with price"),
        (object(), "expected the name of a cost model, or an object with price"),
        (Priced(None), "cost model Priced: price gives NoneType for embedding, expected a function"),
        (Priced(1e-6), "cost model Priced: price gives float for embedding, expected a function"),
        (Priced(lambda at: "soon"), "cost model Priced: embedding takes 'soon', expected seconds"),
        (Priced(lambda at: -1.0), "cost model Priced: embedding takes -1.0, expected seconds"),
        (Priced(lambda at: np.nan), "cost model Priced: embedding takes nan, expected seconds"),
        (Priced(lambda at: np.ones(3)), "expected seconds"),
    ],
)
def test_what_is_no_cost_model_is_one_line(model: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        _ = llmir.analyze(program(), "h100-sxm", estimation=llmir.Estimation(cost=model)).time_s
    assert "\n" not in str(error.value)
