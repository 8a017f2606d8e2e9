"""Bindings: a grid is its points, a block is a part of the grid, and a mixed step is the sum of its parts."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import llmir
from llmir.base.errors import InputError
from llmir.ir.sizes.binding import Binding, MixedBinding, PackedBinding, pack
from llmir.ir.sizes.polynomial import B, C, Dim, Max, Min, Size, T, ceildiv
from tests.flat import records

SIZES: tuple[Size, ...] = (
    B * T,
    B + 2 * C,
    B * (C + T) * 3 + C,
    ceildiv(B * T, 7),
    B * Min.of(T, 9),
    Max.of(B, C) * T + B,
)


@st.composite
def grids(draw: st.DrawFn) -> dict[str, Any]:
    """Values of B, T and C that broadcast together over rows and columns, some along one of them only."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    shapes = ((), (columns,), (1, columns), (rows, 1), (rows, columns))
    found: dict[str, Any] = {}
    for name in "BTC":
        shape = draw(st.sampled_from(shapes))
        numbers = draw(st.lists(st.integers(0, 50), min_size=math.prod(shape), max_size=math.prod(shape)))
        found[name] = np.array(numbers, dtype=float).reshape(shape) if shape else numbers[0]
    return found


def broadcast(values: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    return {name: np.broadcast_to(value, shape) for name, value in values.items()}


def shape_of(values: Mapping[str, Any]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(np.shape(v) for v in values.values()))


@given(grids(), st.sampled_from(SIZES))
def test_a_grid_is_its_points(values: dict[str, Any], size: Size) -> None:
    at = Binding(**values)
    assert at.shape == shape_of(values)
    grid = np.broadcast_to(at(size), at.shape)
    for point in np.ndindex(at.shape):
        there = {n: int(v[point]) for n, v in broadcast(values, at.shape).items()}
        assert grid[point] == Binding(**there)(size)


@given(grids(), st.sampled_from(SIZES), st.data())
def test_a_block_is_those_rows_of_the_grid(values: dict[str, Any], size: Size, data: st.DataObject) -> None:
    shape = shape_of(values)
    if not shape:
        return
    start = data.draw(st.integers(0, shape[0] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, shape[0])))
    part = Binding(**values).block(rows)
    expected = np.broadcast_to(Binding(**values)(size), shape)[rows]
    assert (np.broadcast_to(part(size), expected.shape) == expected).all()
    assert np.broadcast_shapes(part.shape, expected.shape) == expected.shape


@pytest.mark.parametrize("most", [3, 1000, 1e8, 1e12, 0.5])
def test_a_product_apart_has_each_of_its_values_once(most: float) -> None:
    random = np.random.default_rng(0)
    at = Binding(B=np.floor(random.random(9000) * 7), T=random.random(9000) * most // 0.25 / 4, C=5)
    part, places = at.apart(B * T)
    values = part(B * T)
    assert places is not None and part.shape == values.shape
    assert (np.diff(values) > 0).all()
    assert (values[places] == at(B * T)).all()
    assert (part.block(slice(1, 3))(ceildiv(B * T, 2)) == np.ceil(values[1:3] / 2)).all()
    with pytest.raises(InputError, match="'C' has no value"):
        part(C)


@given(grids(), grids(), st.sampled_from(SIZES), st.data())
def test_a_block_of_a_mixed_step_is_those_rows_of_it(
    one: dict[str, Any], other: dict[str, Any], size: Size, data: st.DataObject
) -> None:
    try:
        shape = np.broadcast_shapes(shape_of(one), shape_of(other))
    except ValueError:
        return
    mixed = MixedBinding([Binding(**one), Binding(**other)])
    assert mixed.shape == shape
    if not shape:
        return
    start = data.draw(st.integers(0, shape[0] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, shape[0])))
    expected = np.broadcast_to(mixed(size), shape)[rows]
    assert (np.broadcast_to(mixed.block(rows)(size), expected.shape) == expected).all()


POINTS = st.fixed_dictionaries({"B": st.integers(1, 9), "T": st.integers(0, 40), "C": st.integers(0, 40)})


@example([{"B": 2, "T": 5, "C": 8}, {"B": 3, "T": 20, "C": 2}], 1, 3)
@given(st.lists(POINTS, min_size=1, max_size=4), st.integers(0, 99), st.integers(1, 9))
def test_a_mixed_step_sums_what_counts_and_has_the_rest_once(
    points: list[dict[str, int]], weights: int, by: int
) -> None:
    at = MixedBinding([Binding(**p) for p in points])
    rows = sum(p["B"] * p["T"] for p in points)
    assert at(weights) == weights
    assert at(B * T + weights) == rows + weights
    assert at(3 * B + C) == sum(3 * p["B"] + p["C"] for p in points)
    assert at(ceildiv(B * T, by)) == -(-rows // by)  # of all rows together
    assert at(Min.of(T, 9) * ceildiv(C, by)) == sum(min(p["T"], 9) * -(-p["C"] // by) for p in points)
    assert at(B * ceildiv(T, by)) == sum(p["B"] * -(-p["T"] // by) for p in points)


@given(POINTS, st.sampled_from(SIZES))
def test_a_mixed_step_of_one_part_is_that_part(point: dict[str, int], size: Size) -> None:
    assert MixedBinding([Binding(**point)])(size) == Binding(**point)(size)


def test_what_has_no_value_is_named() -> None:
    with pytest.raises(InputError, match="symbol 'Q' has no value; bound are B, T"):
        Binding(B=1, T=2)(B * Dim.symbol("Q"))
    with pytest.raises(InputError, match="bound are none"):
        Binding()(B)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_and_bindings_travel_between_processes(size: Size) -> None:
    one, other = Binding(B=3, T=4, C=5), Binding(B=np.arange(3), T=1, C=2)
    assert pickle.loads(pickle.dumps(size)) == size
    assert pickle.loads(pickle.dumps(one))(size) == one(size)
    for at in (other, MixedBinding([one, other])):
        assert (pickle.loads(pickle.dumps(at))(size) == at(size)).all()


def test_packed_points_are_the_points() -> None:
    random, count = np.random.default_rng(0), 1 << 20
    counts = {"B": random.integers(1, 300, count), "T": 1, "C": random.integers(0, 1 << 33, count)}
    plain, few = Binding(**counts), PackedBinding(**{name: pack(n) for name, n in counts.items()})
    assert few.shape == plain.shape
    for name, value in few.symbols.items():
        assert np.array_equal(value, counts[name])
        assert isinstance(value, int) or value.dtype == np.float64
    rows = slice(1000, 3000)
    size = B * T * C * C + ceildiv(B, 7)
    assert np.array_equal(few.block(rows)(size), plain.block(rows)(size))
    assert np.array_equal(few(size), plain(size))


def test_a_report_of_very_many_points_is_that_of_its_parts() -> None:
    random, count = np.random.default_rng(1), (1 << 20) + 5
    at = {"batch": random.integers(1, 200, count), "new": 1, "context": random.integers(0, 9000, count)}
    program = llmir.run(llmir.load("qwen3-0.6b"), llmir.pipeline_of())
    whole, some = (
        llmir.analyze(program, "h100-sxm", **records(llmir.analyze, **at)),
        random.integers(0, count, 50),
    )
    part = llmir.analyze(program, "h100-sxm", batch=at["batch"][some], context=at["context"][some])
    for name in ("batch", "context", "time_s", "peak_memory_bytes", "flops"):
        assert getattr(whole, name).dtype == np.float64
        np.testing.assert_allclose(getattr(whole, name)[some], getattr(part, name), rtol=1e-13)
    assert whole.new == 1
    assert not whole.batch.flags.writeable
