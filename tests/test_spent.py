"""Dollars and joules of devices' time: price and power limit times time; nothing where a file has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir import hw
from llmir.hw import spent

H100 = hw.load("h100-sxm")  # 700 W by its datasheet
AMOUNTS = st.floats(1e-3, 1e6)


@given(AMOUNTS, AMOUNTS, st.integers(1, 10**9))
def test_figures_are_price_and_power_times_time(usd_per_hour: float, device_s: float, tokens: int) -> None:
    device = replace(H100, price_per_hour_usd=usd_per_hour)
    assert spent.usd(device, device_s) == pytest.approx(usd_per_hour * device_s / 3600)
    assert spent.usd_per_mtok(device, device_s, tokens) == pytest.approx(
        usd_per_hour * device_s / 3600 / tokens * 1e6
    )
    assert spent.joules(device, device_s) == pytest.approx(700 * device_s)
    assert spent.joules_per_token(device, device_s, tokens) == pytest.approx(700 * device_s / tokens)


def test_a_kilowatt_hour() -> None:
    """A device of 1 kW at 5 dollars an hour: an hour is 3.6 MJ and 5 dollars, whatever the tokens are."""
    device = replace(H100, price_per_hour_usd=5.0, board_power_W=1000.0)
    assert spent.joules(device, 3600) == 3.6e6
    assert spent.joules_per_token(device, 3600, 3_600_000) == 1
    assert spent.usd_per_mtok(device, 3600, 2_500_000) == pytest.approx(2)


def test_what_no_file_states_is_not_known() -> None:
    bare = replace(H100, price_per_hour_usd=None, board_power_W=None)
    for figure in (spent.usd, spent.joules):
        assert figure(bare, 1.0) is None
    for figure in (spent.usd_per_mtok, spent.joules_per_token):
        assert figure(bare, 1.0, 1) is None


def test_arrays_go_through() -> None:
    found = spent.joules_per_token(H100, np.array([1.0, 2.0]), np.array([700, 7]))
    assert found.tolist() == [1.0, 200.0]


def test_rows_of_a_sweep_have_joules_where_power_is_known() -> None:
    found = llmir.sweep("llama3.1-8b", {"hw": ("h100-sxm", "gh200"), "batch": (1, 8), "tp": 2})
    for row in found.rows():
        known = row["hw"] == "h100-sxm"  # the GH200's datasheet has no power of the GPU alone
        joules = row["time_s"] * 2 * 700 / row["batch"]
        assert row["most_joules_per_token"] == (pytest.approx(joules) if known else None)
