"""Quantized and back: the error stays within the bound of the format, which `docs/interpret.md` derives."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llmir.ir.core.dtype import dtype
from llmir.ir.ops.quant import round_trip, to_format

Array = np.ndarray[Any, np.dtype[Any]]

# Every value of the small formats, from their bits: (exponent bits, mantissa bits, bias).
LAYOUTS = {"fp8_e4m3": (4, 3, 7), "fp8_e5m2": (5, 2, 15), "fp4": (2, 1, 1)}


def values_of(name: str) -> Array:
    """All finite values of a format, by decoding its codes (OCP 8-bit Floating Point, and MX, v1.0)."""
    exponents, mantissas, bias = LAYOUTS[name]
    found = []
    for exponent in range(2**exponents):
        for mantissa in range(2**mantissas):
            if name == "fp8_e4m3" and (exponent, mantissa) == (15, 7):
                continue  # NaN
            if name == "fp8_e5m2" and exponent == 31:
                continue  # infinities and NaN
            whole = mantissa / 2**mantissas + (exponent > 0)
            found.append(whole * 2.0 ** (max(exponent, 1) - bias))
    return np.unique([*found, *(-x for x in found)])


@pytest.mark.parametrize("name", LAYOUTS)
@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=20), st.integers(-30, 5))
@settings(max_examples=60)
def test_a_format_gives_the_nearest_of_its_values(name: str, numbers: list[float], power: int) -> None:
    known = values_of(name)
    assert np.array_equal(to_format(known, name), known)
    for x in np.array(numbers) * 2.0**power:
        nearest = np.abs(known - x).min()
        assert abs(to_format(np.array([x]), name)[0] - x) == nearest


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_between_two_values_becomes_one_of_them(name: str) -> None:
    known = values_of(name)
    for share in (0.25, 0.75):
        between = known[:-1] + share * np.diff(known)
        assert np.array_equal(to_format(between, name), known[:-1] if share < 0.5 else known[1:])
    assert np.isin(to_format(known[:-1] + np.diff(known) / 2, name), known).all()


def test_normal_floats_are_quantiles_of_a_normal_distribution() -> None:
    """`create_normal_map` of bitsandbytes: 8 positive and 7 negative quantiles, and 0, of unit size."""
    quantile = np.vectorize(NormalDist().inv_cdf)
    high, low = (quantile(np.linspace(0.9677083, 0.5, n)[:-1]) for n in (9, 8))
    table = np.sort([*high, 0.0, *-low]) / high[0]
    assert to_format(table, "nf4") == pytest.approx(table, abs=1e-6)


def test_the_largest_values_are_those_of_the_standards() -> None:
    assert {name: values_of(name).max() for name in LAYOUTS} == {
        "fp8_e4m3": 448.0,
        "fp8_e5m2": 57344.0,
        "fp4": 6.0,
    }


def tile(x: Array, name: str) -> tuple[Array, Array, Array]:
    """The largest magnitude, the least and the highest value of each element's own tile, by loops."""
    rows, along = x.shape
    low, high = np.zeros_like(x), np.zeros_like(x)
    scheme = name.partition(".")[0].rpartition("_")[2]
    scheme = "nf4" if scheme in ("dq", "fp4") else scheme
    tiles = {"t": (rows, along), "nf4": (1, 64), "mxfp4": (1, 32), "nvfp4": (1, 16)}
    tall, long = tiles.get(scheme, (1, along))
    if scheme[0] == "g":
        long = int(scheme[1:].rstrip("zi"))
    if scheme[0] == "b" and "x" in scheme:
        tall, long = map(int, scheme[1:].split("x"))
    for i in range(rows):
        for j in range(along):
            a, b = i // tall * tall, j // long * long
            part = x[a : a + tall, b : b + long]
            low[i, j], high[i, j] = min(part.min(), 0.0), max(part.max(), 0.0)
    return np.maximum(-low, high), low, high


def bound(x: Array, name: str) -> Array:
    """The table of docs/interpret.md."""
    largest, low, high = tile(x, name)
    magnitude = np.abs(x)
    if name.startswith("fp8_e4m3"):
        return np.maximum(magnitude / 16, largest / 448 / 1024)
    if name.startswith("fp8_e5m2"):
        return np.maximum(magnitude / 8, largest / 57344 / 131072)
    if name.startswith("int4") and "z" in name:
        return (high - low) / 30
    shares = {"int8": 1 / 254, "int4": 1 / 14, "mxfp4": 1 / 4, "nf4": 0.152, "bnb_fp4": 1 / 6}
    for format, share in shares.items():
        if name.startswith(format):
            return largest * share
    whole = np.abs(x).max()
    return np.asarray(largest * 17 / 96 + whole / 458752)


NAMES = (
    *("fp8_e4m3_c.nk", "fp8_e4m3_t.nk", "fp8_e4m3_b3x5.nk", "fp8_e5m2_c.nk", "int8_c.nk", "int8_g7.nk"),
    *("int4_g4.nk", "int4_g4z.nk", "int4_c16.nk", "int4_c16zi.nk", "mxfp4.nk", "nvfp4.nk"),
    *("nf4.nk", "nf4_dq.nk", "bnb_fp4.nk"),
)
MATRICES = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 9), st.integers(1, 40)),
    elements=st.one_of(st.just(0.0), st.floats(2.0**-40, 1e6), st.floats(-1e6, -(2.0**-40))),
)


@pytest.mark.mostly_slow(15)
@pytest.mark.parametrize("name", NAMES)
@given(MATRICES)
@settings(max_examples=80)
def test_the_error_is_within_the_bound_of_the_format(name: str, x: Array) -> None:
    error = np.abs(round_trip(x, dtype(name)) - x)
    assert (error <= bound(x, name) * (1 + 1e-9)).all()


@pytest.mark.mostly_slow(14)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "mxfp4.nk"])
@given(MATRICES)
@settings(max_examples=40)
def test_what_a_format_gives_it_keeps(name: str, x: Array) -> None:
    """Twice is once, as long as the largest value of a tile has a code of its own."""
    once = round_trip(x, dtype(name))
    twice = round_trip(once, dtype(name))
    assert (
        np.abs(twice - once) <= bound(once, name) * 1e-6 + (bound(once, name) if "4" in name[2:5] else 0)
    ).all()


@given(MATRICES, st.sampled_from(("bf16", "fp16", "fp32", "tf32")))
def test_wide_types_keep_values(x: Array, name: str) -> None:
    assert round_trip(x, dtype(name)) is x


@given(MATRICES, st.sampled_from([n for n in NAMES if "_t" not in n and n[:5] != "nvfp4" and "_b" not in n]))
@settings(max_examples=60)
def test_the_place_of_the_contracted_axis_does_not_matter(x: Array, name: str) -> None:
    across = round_trip(x.T, dtype(name.replace(".nk", ".kn"))).T
    split = round_trip(x[:, None, :, None], dtype(name.replace(".nk", ".bnkk")))[:, 0, :, 0]
    assert np.array_equal(across, round_trip(x, dtype(name)))
    assert np.array_equal(split, round_trip(x, dtype(name)))
