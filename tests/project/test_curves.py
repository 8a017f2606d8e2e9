"""TPOT rises smoothly with the number of users, but for documented settings of engines."""

from __future__ import annotations

import pytest

from benchmarks.curves import rises


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("model", "tp"), [("llama3.1-8b", 1), ("qwen3-30b-a3b", 1), ("llama3.3-70b", 8)])
@pytest.mark.parametrize("device", ["h100-sxm", "b200", "mi355x"])
def test_each_rise_has_a_documented_setting(model: str, device: str, engine: str, tp: int) -> None:
    found = list(rises(model, device, engine, tp))
    assert all(rise.setting for rise in found), found
    assert engine != "trtllm" or not found
