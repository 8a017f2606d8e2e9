"""What the kernels' times must be whatever their parameters: never falling."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.backends.cost.models import model
from llmir.backends.cost.transfer import basis
from llmir.backends.kernels.base import KERNELS, Call
from llmir.backends.kernels.base import parameters as parameters_of
from llmir.backends.kernels.collective import AllReduceKernel, CollectiveShape
from llmir.backends.kernels.gemm import K_STEP, STORE, BlockGemm, CdnaGemm, GemmKernel, GemmShape
from llmir.backends.kernels.stream import ElementwiseKernel, StreamKernel, StreamShape
from llmir.base.array_namespace import ARRAYS
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.calibration import engine_yaml, to_yaml
from llmir.hw.device import Device
from llmir.ir.sizes.binding import Binding

from .kernel_strategies import GPUS, kernels

SIZES = st.integers(1, 1 << 15)
GEMMS = [GemmKernel, BlockGemm, CdnaGemm]


@st.composite
def products(draw: st.DrawFn) -> GemmShape:
    x, w, dtype = draw(
        st.sampled_from(
            [(16, 16, "bf16"), (8, 8, "fp8"), (16, 4.125, "bf16"), (4.5, 4.5, "fp4"), (32, 32, "fp32")]
        )
    )
    turns = draw(st.sampled_from([1, 5, np.inf]))
    sizes = {axis: draw(SIZES) for axis in "mnk"}
    return GemmShape(**sizes, batch=draw(st.integers(1, 9)), x_bits=x, w_bits=w, dtype=dtype, turns=turns)


@given(st.data(), st.sampled_from(GPUS), products(), st.floats(0, 1))
def test_a_call_takes_the_roofline_at_least(
    data: Any, device: Device, shape: GemmShape, least: float
) -> None:
    kernel = data.draw(kernels(data.draw(st.sampled_from(GEMMS))))
    alone = float(kernel.seconds(device, shape))
    found = Call(("gemm_bf16",), shape).seconds(kernel, device, Binding(), least)
    assert found == pytest.approx(
        max(alone, least), rel=1e-12, abs=0
    )  # cube roots of Python and numpy differ


@given(st.data(), st.sampled_from(GPUS), products(), st.sampled_from(["m", "n", "k", "batch"]), SIZES)
def test_a_larger_product_takes_no_less(
    data: Any, device: Device, shape: GemmShape, axis: str, more: int
) -> None:
    kernel = data.draw(kernels(data.draw(st.sampled_from(GEMMS))))
    larger = replace(shape, **{axis: getattr(shape, axis) + more})
    assert kernel.seconds(device, larger) >= kernel.seconds(device, shape) * (1 - 1e-9)


@given(st.data(), st.sampled_from(GPUS), SIZES, SIZES, SIZES, SIZES)
def test_a_stream_takes_more_for_more(
    data: Any, device: Device, rows: int, width: int, more: int, wider: int
) -> None:
    kernel = data.draw(kernels(StreamKernel))
    time = kernel.seconds(device, StreamShape(rows, rows * width))
    assert kernel.seconds(device, StreamShape(rows + more, (rows + more) * (width + wider))) >= time


# What two kernels move, in tensors, and what one does in place of both: add and norm, norm and narrowing, all
# three, an activation and its product. The second number is of what is written where it was read.
PARTS = st.sampled_from(
    [
        ((3, 0), (2, 0), (4, 1)),
        ((2, 0), (1.5, 0), (1.5, 0)),
        ((4, 1), (1.5, 0), (3.5, 1)),
        ((2, 0), (3, 0), (3, 0)),
    ]
)


@given(st.data(), st.sampled_from(GPUS), SIZES, SIZES, PARTS)
def test_two_streams_take_no_less_than_one_that_does_both(
    data: Any, device: Device, rows: int, width: int, parts: tuple[tuple[float, float], ...]
) -> None:
    kernel, unit = data.draw(kernels(ElementwiseKernel)), 2.0 * rows * width
    flops = (2 * rows * width, 3 * rows * width, 5 * rows * width)
    first, second, both = (
        kernel.seconds(device, StreamShape(rows, moved * unit, again=again * unit, flops=sums))
        for (moved, again), sums in zip(parts, flops, strict=True)
    )
    assert both <= (first + second) * (1 + 1e-9)


@given(st.data(), products())
def test_a_grid_is_its_points(data: Any, shape: GemmShape) -> None:
    kernel, device = data.draw(kernels(GemmKernel)), library.load("h100-sxm")
    m, n = np.array([[1.0], [shape.m], [4096.0]]), np.array([shape.n, 1024.0])
    grid = np.asarray(kernel.seconds(device, replace(shape, m=m, n=n)))
    assert grid.shape == (3, 2)
    for i, j in np.ndindex(3, 2):
        point = replace(shape, m=float(m[i, 0]), n=float(n[j]))
        assert grid[i, j] == pytest.approx(float(kernel.seconds(device, point)), rel=1e-12, abs=0)


@given(st.data(), st.sampled_from(GPUS), st.lists(products(), min_size=1, max_size=3))
def test_a_product_takes_the_fastest_of_all_tiles_and_splits(
    data: Any, device: Device, shapes: list[GemmShape]
) -> None:
    kernel = data.draw(kernels(data.draw(st.sampled_from(GEMMS))))
    share = 1 / (device.multiprocessors or 1)
    sizes = np.array([shape.m for shape in shapes], dtype=float)
    found = kernel.busy(device, replace(shapes[0], m=sizes), ARRAYS)
    for m, time in zip(sizes, found, strict=True):
        shape = replace(shapes[0], m=m)
        n, k, batch = shape.n, shape.k, shape.batch
        times = []
        for (rows, columns), split in itertools.product(kernel.tiles, kernel.splits):
            feed = device.vector_flops["fp32"] * share * kernel.feed
            high, wide = min(rows, m), min(columns, n)
            sums = rows * columns if device.matrix_unit(shape.dtype) else high * wide
            multiply = 2 * sums / (device.matrix_peak(shape.dtype)[0] * share * kernel.rate)
            fetch = (high * shape.x_bits + wide * shape.w_bits) / 8 / feed
            step = (multiply**3 + fetch**3) ** (1 / 3) + kernel.step_ns * 1e-9 / K_STEP
            depth = math.ceil(k / K_STEP / split) * K_STEP
            piece = step * depth + STORE * high * wide * shape.y_bits / 8 / feed + kernel.tile_s
            across = math.ceil(n / columns) * (batch * share) * split
            even, whole = max(m / rows, 1) * across, math.ceil(math.ceil(m / rows) * across)
            waves = max(1, even + kernel.tail * min(1, whole - even))
            gather = kernel.split_us * 1e-6 + split * m * n * batch * 4 / device.memory_Bps
            power = 2 if isinstance(kernel, CdnaGemm) else 3
            tiles = ((waves * piece) ** power + float(kernel.memory(device, shape)) ** power) ** (1 / power)
            times.append(tiles + (gather if split > 1 else 0))
        assert time == pytest.approx(min(times), rel=1e-9, abs=0)


def test_a_large_product_runs_at_the_rate_and_a_long_vector_at_the_bandwidth() -> None:
    # By hand: 2·16384³ FLOPs at nine tenths of the peak, and 2·16384² bytes at eight tenths of the bandwidth.
    device = library.load("h100-sxm")
    kernel = GemmKernel(rate=0.9, sustained=1, bandwidth=0.8, feed=3, tail=0, step_ns=1)
    full = kernel.seconds(device, GemmShape(16384, 16384, 16384))
    assert full == pytest.approx(2 * 16384**3 / (0.9 * 989.4e12), rel=0.05)
    thin = kernel.seconds(device, GemmShape(1, 16384, 16384))
    assert thin == pytest.approx(2 * 16384**2 / (0.8 * 3350e9), rel=0.1)


def test_a_row_in_fp32_runs_at_the_bandwidth_and_many_at_the_lanes() -> None:
    # By hand: 4·16384² bytes at eight tenths of the bandwidth, 2·8192³ FLOPs at nine tenths of the peak.
    device = library.load("a100")
    kernel = GemmKernel(rate=0.9, sustained=1, bandwidth=0.8, feed=3, tail=0, step_ns=1)
    row = GemmShape(1, 16384, 16384, x_bits=32, w_bits=32, y_bits=32, dtype="fp32")
    for vector in (row, replace(row, m=16384, n=1)):  # of rows, or of columns
        assert kernel.seconds(device, vector) == pytest.approx(4 * 16384**2 / (0.8 * 2039e9), rel=0.1)
    full = kernel.seconds(device, replace(row, m=8192, n=8192, k=8192))
    assert full == pytest.approx(2 * 8192**3 / (0.9 * 19.5e12), rel=0.05)


def test_a_half_empty_wave_costs_what_a_full_one_does() -> None:
    device, kernel = library.load("a100"), GemmKernel(tail=1, split_us=20, sustained=1)  # 108 multiprocessors
    times = kernel.seconds(device, GemmShape(1024, 128 * np.arange(1.0, 109.0), 16384))
    steps = int(np.sum(np.diff(times) / times[:-1] > 1e-3))
    assert steps < 50  # of 107: a time that rises with each column of tiles would have them all


def test_what_stays_in_the_l2_is_not_fetched_again() -> None:
    device, kernel = library.load("l40s"), GemmKernel()
    shape = GemmShape(1, 4096, 1024)
    assert kernel.memory(device, replace(shape, turns=1)) < 0.1 * kernel.memory(device, shape)


@pytest.mark.parametrize("family", KERNELS)
def test_a_family_is_a_dozen_parameters_with_unit_and_meaning(family: str) -> None:
    known = parameters_of(KERNELS[family])
    assert 1 <= len([p for p in known if not p.choices]) <= 12
    for p in known:
        assert p.low <= p.default <= p.high
        assert p.meaning
        suffix = p.name.rpartition("_")[2]
        assert suffix not in ("us", "ns") or p.unit == {"us": "µs", "ns": "ns"}[suffix], p


def test_parameters_that_are_not_known_or_not_possible_are_named() -> None:
    with pytest.raises(HardwareError, match="x: unknown parameter 'rat'; did you mean rate"):
        GemmKernel.of({"rat": 0.5}, "x")
    with pytest.raises(HardwareError, match=r"x\.rate must be a number from 0\.3 to 1, got 1\.5"):
        GemmKernel.of({"rate": 1.5}, "x")


def test_a_device_without_multiprocessors_has_no_tiles() -> None:
    with pytest.raises(HardwareError, match="states no multiprocessors"):
        GemmKernel().seconds(Device("X", {"fp32": 1e12}, 2**30, 1e12), GemmShape(1, 1, 1))


@pytest.mark.parametrize("name", library.calibrated_devices())
def test_each_bundled_calibration_is_of_known_kernels_and_prints_as_it_is_read(name: str) -> None:
    import yaml

    from llmir.hw import schema

    device = library.load(name)
    assert device.calibration
    for engine, families in device.calibration.engines.items():
        for family, fitted in families.items():
            found = basis(device, family, engine)
            assert found
            assert (found.device, found.engine) == (device, engine)
            assert {f.name for f in fields(found.kernel)} == set(fitted.parameters)
            assert 0 < fitted.error < 0.8
            assert fitted.rows > 0
    again = schema.calibration(yaml.safe_load(to_yaml(device.calibration))["calibration"], name, 1)
    assert again == device.calibration
    files = {
        f.stem: f.read_text() for f in (Path(library.__file__).parent / "calibrations" / name).glob("*.yaml")
    }
    assert files == {engine: engine_yaml(families) for engine, families in again.engines.items()}


def test_a_device_without_a_calibration_takes_its_nearest_relatives() -> None:
    for name, relative in (("h200", "H100-SXM"), ("a100-40-sxm", "A100-80-SXM"), ("rtx4090", "L40S")):
        found = basis(library.load(name), "gemm_bf16")
        assert found
        assert found.device.name == relative
    for name in ("h100-sxm", "h200"):
        with pytest.raises(HardwareError, match="unknown engine 'vlm'; did you mean vllm"):
            model(library.load(name), "calibrated", "vlm")
    assert basis(library.load("tpu-v6e"), "gemm_bf16") is None


def test_a_link_is_that_of_each_rows_ranks() -> None:
    """Bridges join two; more ranks go another way, whatever else is asked at once."""
    device = library.load("a100-80-pcie")
    kernel = AllReduceKernel()
    together = kernel.seconds(device, CollectiveShape(1e8, np.array([2, 4])))
    alone = [float(kernel.seconds(device, CollectiveShape(1e8, n))) for n in (2, 4)]
    assert np.asarray(together).tolist() == pytest.approx(alone)


@given(st.floats(0.5, 200), st.floats(1, 1e5))
def test_more_rows_of_a_stream_never_take_less(spread: float, width: float) -> None:
    rows = np.arange(1, 400.0)
    shape = StreamShape(rows, rows * 4 * width + 2 * width, 2 * width)
    time = np.asarray(StreamKernel(spread=spread).seconds(library.load("a100"), shape))
    assert (np.diff(time) >= -1e-15).all()
