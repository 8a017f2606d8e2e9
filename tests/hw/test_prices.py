"""What devices cost and draw, from their price and the limit of their power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import llmir
from llmir.hw import library
from llmir.hw.prices import operating_cost

KWH = 3.6e6  # joules


def test_an_hour_of_tokens_costs_an_hour_of_devices() -> None:
    device = replace(library.load("h100-sxm"), price_per_hour_usd=2.5)
    found = operating_cost(device, 8, 5000.0)
    assert found.usd_per_hour == 20
    assert found.usd_per_mtok * 5000 * 3600 / 1e6 == pytest.approx(20)
    # Eight boards of 700 W take 5.6 kWh in that hour.
    assert found.joules_per_token * 5000 * 3600 / KWH == pytest.approx(5.6)


def test_many_rates_at_once() -> None:
    device = library.load("h100-sxm")
    rates = np.array([10.0, 20.0])
    each = [operating_cost(device, 2, rate) for rate in rates]
    assert operating_cost(device, 2, rates).usd_per_mtok.tolist() == [one.usd_per_mtok for one in each]
    assert operating_cost(device, 2, rates).joules_per_token.tolist() == [
        one.joules_per_token for one in each
    ]


def test_no_figure_is_made_up() -> None:
    bare = replace(library.load("h100-sxm"), price_per_hour_usd=None, board_power_W=None)
    assert operating_cost(bare, 2, 10.0) == (None, None, None, None)


def test_rows_of_a_sweep_have_joules_where_power_is_known() -> None:
    found = llmir.sweep("llama3.1-8b", {"hw": ("h100-sxm", "gh200"), "batch": (1, 8), "tp": 2})
    for row in found.rows():
        known = row["hw"] == "h100-sxm"  # the GH200's datasheet has no power of the GPU alone
        joules = row["time_s"] * 2 * 700 / row["batch"]
        assert row["energy_j_per_token"] == (pytest.approx(joules) if known else None)
