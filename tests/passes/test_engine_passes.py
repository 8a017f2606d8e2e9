"""What engines run by default, and that no pass of theirs ever costs time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.cost.transfer import kernel_sources
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.engine import Engine, ranges
from llmir.hw.engine_sections import passes
from llmir.ir.tools.pipeline import label, parse_pipeline
from tests.commands import Run
from tests.flat import records


@pytest.mark.parametrize("engine", [engine for name in library.engines() for engine in ranges(name)], ids=str)
def test_the_passes_of_each_bundled_engine_are_there(engine: Engine) -> None:
    name = f"{engine.name}@{engine.versions[-1]}"
    steps = parse_pipeline(llmir.pipeline_of(name))
    assert ",".join(map(label, steps)) == llmir.pipeline_of(name)
    assert llmir.run(llmir.load("llama3.2-1b"), steps) is not None


def test_an_engine_of_no_name_has_the_default_passes() -> None:
    assert llmir.pipeline_of() == llmir.pipeline_of()
    assert "fuse-quantize" in llmir.pipeline_of("vllm@0.12")
    assert "fuse-quantize" not in llmir.pipeline_of("vllm@0.11")
    with pytest.raises(HardwareError, match="unknown engine"):
        llmir.pipeline_of("vlm")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"new": {"pipeline": "dce", "source": "a"}}, "expected the first release of each"),
        ({"0.1": {"pipeline": "dce"}}, "source"),
        ({"0.1": {"pipeline": 3, "source": "a"}}, "pipeline"),
        ([], "x"),
    ],
)
def test_what_a_file_may_not_say(value: Any, says: str) -> None:
    with pytest.raises(HardwareError, match=says):
        passes(value, "x")


def test_a_file_of_ones_own_says_its_passes(run: Run, tmp_path: Path) -> None:
    said = 'passes: {"1": {pipeline: "fuse-attention", source: "ours"}}'
    (tmp_path / "ours.yaml").write_text(f"extend: vllm\n{said}\n")
    names = [
        [op["name"] for op in json.loads(ran.out)["phases"]["prefill"]["ops"]]
        for engine in ("vllm", "ours.yaml", "hf-transformers")
        if (ran := run("analyze", "tiny.json", "--engine", engine, "--format", "json")).code == 0
    ]
    assert [("layer.qkv_proj" in ops, "layer.input_norm" in ops) for ops in names] == [
        (True, True),
        (False, True),
        (False, True),
    ]


# A dense model, experts, latent attention, windows, states; a GPU of each kind, and one that borrows.
MODELS = ("llama3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite-16b", "gemma-3-4b", "mamba-2.8b")
DEVICES = ("h100-sxm", "a100-80-sxm", "b200", "l40s", "mi300x", "rtx4090", "v100-32")
STEPS = [(np.array([1, 8, 64]), 1, 2048), (np.array([1, 4]), 512, 0)]


@pytest.mark.mostly_slow(17)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", ["", "quantize{weights=fp8, activations=fp8}"])
def test_no_fusion_costs_time(model: str, device: str, how: str) -> None:
    """One after another; `fuse-attention`, whose kernels are fitted by themselves, is not asked for here.

    A wide product of q, k and v may take up to 1% longer than three, by their tiles.
    """
    found = library.load(device)
    programs = [llmir.run(llmir.load(model), [how, "absorb-mla{phase=decode},fuse-attention"])]
    for step in ("rotate", "fuse", "fuse-quantize"):
        programs.append(llmir.run(programs[-1], step))
    pairs = [(programs[0], programs[2]), (programs[2], programs[3])]  # what is rotated pays once it is fused
    names = {name for name in kernel_sources(found) if name in library.engines()}
    for engine in sorted(names):
        for batch, new, context in STEPS:
            at: dict[str, Any] = {"batch": batch, "new": new, "context": context, "engine": engine}
            times = {
                id(p): np.asarray(llmir.analyze(p, found, **records(llmir.analyze, **at)).time_s)
                for p in programs
            }
            for before, after in pairs:
                assert (times[id(after)] <= times[id(before)] * 1.01).all(), (engine, new)


def test_a_rotated_program_is_drawn_and_explained(run: Run) -> None:
    assert run("draw", "llama3.2-1b", "-o", "x.svg").code == 0
    assert run("explain", "llama3.2-1b", "add_input_norm").code == 0


def test_an_engine_s_file_is_what_it_says_now(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    model = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention")
    times = []
    for step_us in (100, 5000):
        path.write_text(f"extend: vllm\nasync_host: {{step_us: {step_us}}}\n", "utf-8")
        times.append(
            llmir.analyze(
                model, "h100-sxm", batch=1, new=1, context=99, estimation=llmir.Estimation(engine=str(path))
            ).time_s
        )
    assert times[1] - times[0] == pytest.approx(4.9e-3)


def test_a_device_s_calibration_names_kernels_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    said = "{origin: ours, rows: 9, error_percent: 5, launch_us: 3}"
    path.write_text(f"extend: h100-sxm\nname: x\ncalibration: {{engine: vllm, vllm: {{rms_norm: {said}}}}}\n")
    with pytest.raises(HardwareError, match="rms_norm: unknown family"):
        llmir.analyze(llmir.load("llama3.1-8b"), str(path), batch=1, new=1, context=99)
