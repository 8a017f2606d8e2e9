"""What devices cost and draw, from their price and the limit of their power."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llmir
from llmir.hw import library
from llmir.hw.prices import list_prices, operating_cost

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


# --- list prices ---------------------------------------------------------------------------------

HW = Path(library.__file__).parent
NOT_RENTED = {"a30", "cpu", "h20", "h800", "mi250"}  # no large cloud lists them


def test_each_bundled_device_that_is_rented_has_a_dated_list_price() -> None:
    listed = list_prices()
    assert set(listed) == set(library.names()) - NOT_RENTED
    for name, price in listed.items():
        assert library.load(name).price_per_hour_usd == price.usd_per_hour
        assert library.load(name).source("price_per_hour_usd") == price.source
        assert re.search(r", 20\d\d(-(0[1-9]|1[0-2]))?$", price.source), price.source


def test_prices_stand_in_one_file() -> None:
    for path in (*HW.glob("devices/*.yaml"), *HW.glob("clusters/*.yaml")):
        assert "price_per_hour_usd" not in path.read_text(encoding="utf-8"), path.name


def test_prices_are_those_of_the_lists() -> None:
    """Typed from lambda.ai/instances, crusoe.ai/cloud/pricing and runpod.io/pricing, autumn of 2026."""
    published = {"b200": 6.69, "h100-sxm": 3.99, "a100-80-sxm": 2.79, "h200": 4.29, "a100-80-pcie": 1.59}
    assert {name: list_prices()[name].usd_per_hour for name in published} == published


def test_a_file_that_extends_a_device_has_its_price_and_may_state_another(tmp_path: Path) -> None:
    for said, usd in (("", 3.99), ("price_per_hour_usd: 2\n", 2.0), ("price_per_hour_usd: null\n", None)):
        path = tmp_path / "own.yaml"
        path.write_text(f"extend: h100-sxm\nname: Own\n{said}")
        assert library.load(path).price_per_hour_usd == usd
