"""Every device that is asked for has its best plan, or the reason why it has none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import llmir
from llmir.backends.export.plan import devices_without_plan
from llmir.backends.search.plan import Plans
from llmir.cli.main import cli
from tests.flat import records

UNPRICED = ("h20", "a30")
DEVICES = ("h100-sxm", "mi300x", "l40s", *UNPRICED)
ASKED: dict[str, Any] = {
    **{"rate": 10, "prompt": 2000, "generate": 200, "requests": 100},
    **{"max_ttft": "1s", "max_tpot": "30ms", "gpus": 16},
}


def planned(devices: str, model: str = "llama3.1-8b", **more: Any) -> Plans:
    return llmir.plan(model, devices, **records(llmir.plan, **{**ASKED, **more}))


@pytest.fixture(scope="module")
def every() -> Plans:
    return planned(",".join(DEVICES))


@pytest.mark.slow
def test_each_device_has_the_plan_that_it_has_alone(every: Plans) -> None:
    assert list(every.by_device) == [llmir.hw.library.load(name).name for name in DEVICES]
    for name, best in zip(DEVICES, every.by_device.values(), strict=True):
        alone = planned(name).best
        assert best is not None and alone is not None and best.meets
        assert (best.structure.split, best.replicas) == (alone.structure.split, alone.replicas)


def test_a_device_without_a_plan_has_a_reason() -> None:
    """Weights that do not fit, a limit below a step, and too few devices."""
    found = planned("h100-sxm,b200,l4", "llama3.1-70b", gpus=8, max_tpot="25ms")
    assert found.best is not None
    reasons = devices_without_plan(found)
    assert set(reasons) == {name for name, best in found.by_device.items() if best is None}
    assert "L4" in reasons and any(word in reasons["L4"] for word in ("fit", "GPUs", "TPOT", "TTFT"))
    tight = planned("h100-sxm,l40s", max_tpot="6ms", gpus=2)
    assert "TPOT is" in devices_without_plan(tight)["L40S"]


@pytest.mark.slow
def test_a_device_without_a_price_changes_no_other_rank(every: Plans) -> None:
    priced = planned(",".join(name for name in DEVICES if name not in UNPRICED))
    with_price = [each for each in every.ranked if each.cost_per_hour_usd is not None]
    assert [each.laid for each in with_price] == [each.laid for each in priced.ranked][: len(with_price)]
    assert every.best is with_price[0] and every.priced
    without = every.ranked[len(with_price) :]
    assert {each.structure.device.name for each in without} == {"H20", "A30"}
    assert [each.devices for each in without] == sorted(each.devices for each in without)
    costs = [each.cost_per_hour_usd or 0.0 for each in with_price]
    assert costs == sorted(costs)


@pytest.mark.slow
def test_the_report_has_a_row_or_a_reason_of_each_device() -> None:
    said = ("--rate", "10", "--prompt", "2000", "--generate", "200", "--requests", "100", "--gpus", "16")
    asked = ("plan", "llama3.1-8b", "--hw", "h100-sxm,h20,rtx3090", *said, "--max-tpot", "30ms")
    shown = CliRunner().invoke(cli, asked)
    assert shown.exit_code == 0, shown.output
    report = json.loads(CliRunner().invoke(cli, [*asked, "--format", "json"]).stdout)
    assert list(report["devices"]) == ["H100-SXM", "H20", "RTX-3090"]
    for name, number in report["devices"].items():
        if number is None:
            assert f" – {name}: " in " ".join(shown.output.split())
        else:
            assert report["plans"][number]["hardware"] == name
            assert any(line.split()[1:2] == [name] for line in shown.output.splitlines())
    assert "no price is known for H20" in " ".join(shown.output.split())
    assert "H100-SXM Lambda, 2026-09" in " ".join(shown.output.split())
