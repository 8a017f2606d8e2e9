"""`llmir sensitivity`: what more of a resource saves is what a device that has more of it takes less."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import llmir
from llmir.backends.compare.sensitivity import Gain, Sensitivity
from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.request.workload import Workload
from llmir.base.errors import InputError
from tests.commands import Run

# Each resource as a device's file says it, with a tenth more.
FILES = {
    "memory_GBps": "memory_GBps: 3685",
    "matrix_tflops.bf16": "matrix_tflops: {bf16: 1088.34}",
    "links.nvlink.GBps": "links: {nvlink: {GBps: 495}}",
}


@cache
def job(hw: str, cost: str | None = None) -> Workload:
    pipeline = f"{llmir.pipeline_of('vllm')},shard{{tp=2}}"
    program = llmir.run(llmir.load("llama3.1-8b"), pipeline)
    return llmir.workload(
        program, hw, batch=16, prompt=500, generate=20, estimation=llmir.Estimation(cost=cost)
    )


@cache
def found(cost: str | None = None) -> Sensitivity:
    return llmir.sensitivity(job("h100-sxm", cost))


def gain(of: Sensitivity, resource: str) -> Gain:
    return next(gain for gain in of.gains if gain.resource == resource)


@pytest.mark.parametrize("cost", [None, "ideal"])
@pytest.mark.parametrize("resource", FILES)
def test_saves_what_a_device_file_with_more_does(resource: str, cost: str | None, tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    path.write_text(f"extend: h100-sxm\nname: more\n{FILES[resource]}\n")
    now, then, of = job("h100-sxm", cost), job(str(path), cost), gain(found(cost), resource)
    for phase, step in now.steps.items():
        assert step is not None
        other = then.steps[phase]
        assert other is not None
        saved = step.time_s - other.time_s
        assert of.saved_s[phase] == pytest.approx(saved, rel=1e-9, abs=1e-9 * float(step.time_s))
        ops = {op.op: op.saved_s for op in of.ops if op.phase == phase}
        for before, after in zip(step.ops, other.ops, strict=True):
            less = float(before.total_s - after.total_s)
            assert ops.get(before.name, 0.0) == pytest.approx(less, rel=1e-9, abs=1e-9 * float(step.time_s))


def test_rows_of_ops_add_up_to_the_step() -> None:
    for of in found().gains:
        for phase, saved in of.saved_s.items():
            ops = sum(op.saved_s for op in of.ops if op.phase == phase)
            assert ops == pytest.approx(saved, rel=1e-9, abs=1e-15)


def test_all_rates_together_are_a_device_so_much_faster() -> None:
    """Of the roofline times are 1 / rate: a tenth more of each bound's rate saves 1/11 of its ops at most."""
    of = found("ideal")
    for phase, time in of.time_s.items():
        assert sum(gain.saved_s[phase] for gain in of.gains) <= time / 11 * (1 + 1e-9)
    (memory,) = (op for op in gain(of, "memory_GBps").ops if (op.phase, op.op) == ("decode", "lm_head"))
    assert memory.saved_s == pytest.approx(memory.time_s / 11, rel=1e-9, abs=0)


def test_a_host_that_is_quicker_saves_its_share() -> None:
    """The work of a step; vLLM's work on 16 sequences is hidden while the GPU runs."""
    model = job("h100-sxm").model
    assert isinstance(model, CalibratedModel)
    assert model.host is not None
    decode = job("h100-sxm").decode
    assert decode is not None
    exposed = model.host.step_us * 1e-6
    assert gain(found(), "host").saved_s["decode"] == pytest.approx(exposed * (1 - 1 / 1.1), rel=1e-9, abs=0)


def test_more_saves_more() -> None:
    twice = llmir.sensitivity(job("h100-sxm"), more=0.2)
    for of in found().gains:
        later = gain(twice, of.resource)
        assert all(later.saved_s[phase] >= saved for phase, saved in of.saved_s.items() if saved > 0)


def test_says_it_on_the_command_line(run: Run) -> None:
    args = (
        "sensitivity",
        "llama3.1-8b",
        "--hw",
        "h100-sxm",
        "--tp",
        "2",
        "--engine",
        "vllm",
        "--batch",
        "16",
    )
    requests = ("--prompt", "500", "--generate", "20")
    out = run(*args, *requests).out
    assert "what 10% more of each resource saves" in out
    assert "memory_GBps" in out
    said = json.loads(run(*args, *requests, "--format", "json").out)
    assert said["more"] == 0.1
    shares = {r["resource"]: r["saved_share"]["decode"] for r in said["resources"]}
    assert shares["memory_GBps"] > shares["matrix_tflops.bf16"]
    assert max(map(len, out.splitlines())) <= 80
    for wrong in ("0", "-5", "x", "1e300"):
        failed = run(*args, "--more", wrong)
        assert failed.code == 2
        assert failed.err.count("\n") == 1
        assert "--more" in failed.err


class Slow:
    def price(self, row: object) -> object:
        return lambda at: 1.0


def test_takes_no_model_of_the_users() -> None:
    program = llmir.load("llama3.2-1b")
    with pytest.raises(InputError, match="sensitivity supports only cost models of llmir"):
        llmir.sensitivity(llmir.workload(program, "h100-sxm", estimation=llmir.Estimation(cost=Slow())))  # type: ignore[arg-type]
