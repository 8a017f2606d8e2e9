"""A model given by name is estimated as its engine runs it, in Python as on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.cli.command import COMMANDS
from llmir.frontends.models import presets
from tests.commands import Run

MODEL, HW = "llama3.2-1b", "h100-sxm"
OVER = {"precision": llmir.Precision(weights="fp8", kv="fp8"), "parallel": llmir.Parallel(tp=2)}
DEPLOYED = ("--weights", "fp8", "--kv", "fp8", "--tp", "2")
ARRIVALS = llmir.Traffic(rate=4, prompt=300, generate=20, requests=100)
LOAD = ("--rate", "4", "--prompt", "300", "--generate", "20", "--requests", "100")
SGLANG = llmir.Estimation(engine="sglang")

Pair = tuple[tuple[str, ...], Callable[[Path], Any]]
JOB: dict[str, Any] = {"batch": 4, "prompt": 500, "generate": 30}
REQUESTS = ("--batch", "4", "--prompt", "500", "--generate", "30")


def job() -> Any:
    return llmir.workload(MODEL, HW, **JOB, **OVER)


# By command: its arguments after the model, and what Python gives for the same question.
PAIRS: dict[str, Pair] = {
    "analyze": ((*REQUESTS, *DEPLOYED), lambda _: job()),
    "analyze by sglang": (
        (*REQUESTS, "--engine", "sglang"),
        lambda _: llmir.workload(MODEL, HW, **JOB, estimation=SGLANG),
    ),
    "analyze by the roofline": (
        (*REQUESTS, "--cost", "ideal", "--weights", "fp8"),
        lambda _: llmir.workload(
            MODEL,
            HW,
            **JOB,
            estimation=llmir.Estimation(cost="ideal"),
            precision=llmir.Precision(weights="fp8"),
        ),
    ),
    "analyze on a100": (
        (*REQUESTS, "--hw", "a100", "--weights", "fp8"),
        lambda _: llmir.workload(MODEL, "a100", **JOB, precision=llmir.Precision(weights="fp8")),
    ),
    "diff": ((*REQUESTS,), lambda _: llmir.diff(llmir.load(MODEL), MODEL, HW, **JOB)),
    "diff of engines": (
        (*REQUESTS, "--engine", "sglang", "--engine-after", "hf-transformers"),
        lambda _: llmir.diff(MODEL, MODEL, HW, **JOB, estimation=SGLANG, engine_after="hf-transformers"),
    ),
    "emit": ((), lambda _: llmir.emit(MODEL, HW)),
    "explain": (("qkv_proj", *REQUESTS, *DEPLOYED), lambda _: llmir.explain(job(), "qkv_proj")),
    "kv": (("--kv", "fp8"), lambda _: llmir.kv(MODEL, HW, precision=llmir.Precision(kv="fp8"))),
    "max": (
        ("--prompt", "500", "--max-tpot", "10ms", *DEPLOYED),
        lambda _: llmir.largest(MODEL, HW, prompt=500, max_tpot="10ms", **OVER),
    ),
    "plan": (
        (*LOAD, "--gpus", "1", "--batch", "8", "--chunk", "2048", "--weights", "bf16,fp8", "--kv", "fp8"),
        lambda _: llmir.plan(
            MODEL,
            HW,
            ARRIVALS,
            gpus=1,
            batch=8,
            chunk=2048,
            precision=llmir.Precision(weights="bf16,fp8", kv="fp8"),
        ),
    ),
    "report": (("--tp", "1,2", "-o", "-"), lambda _: llmir.page(MODEL, {"tp": (1, 2)})),
    "sensitivity": ((*REQUESTS, *DEPLOYED), lambda _: llmir.sensitivity(job())),
    "serve-sim": ((*LOAD, *DEPLOYED), lambda _: llmir.simulate(MODEL, HW, ARRIVALS, **OVER)),
    "sweep": (
        ("--batch", "1,8", "--context", "500", "--weights", "bf16,fp8", "--engine", "vllm,sglang"),
        lambda _: llmir.sweep(
            MODEL,
            {"batch": (1, 8), "context": 500, "weights": "bf16,fp8", "engine": "vllm,sglang"},
        ),
    ),
    "draw": ((*REQUESTS, *DEPLOYED, "-o", "one.dot"), lambda folder: llmir.draw(job(), folder / "two.dot")),
    "trace": (
        (*REQUESTS, *DEPLOYED, "-o", "one.json"),
        lambda folder: llmir.trace(job(), folder / "two.json"),
    ),
}

# Commands without a counterpart in Python that estimates: they list, measure, rewrite, check or draw.
OTHERS = {"calibrate", "check", "doctor", "hw", "models", "ops", "opt", "passes", "plot", "serve", "validate"}


def test_every_command_that_estimates_has_its_pair() -> None:
    assert {name.split()[0] for name in PAIRS} | OTHERS == {*COMMANDS}


@pytest.mark.parametrize("name", PAIRS)
def test_python_and_the_command_line_give_equal_results(run: Run, tmp_path: Path, name: str) -> None:
    arguments, function = PAIRS[name]
    command = name.split(maxsplit=1)[0]
    writes = command in ("emit", "report", "draw", "trace")
    ran = run(command, MODEL, *arguments, *([] if writes else ["--format", "json"]))
    found = function(tmp_path)
    if isinstance(found, Path):
        assert (tmp_path / "one").with_suffix(found.suffix).read_text() == found.read_text()
    elif writes:
        assert ran.out.rstrip("\n") == str(found).rstrip("\n")
    else:
        file = llmir.save(found, tmp_path / "found.json")
        own, other = json.loads(ran.out), json.loads(file.read_text())
        for each in (own, other):
            each.pop("pipelines", None)
            for side in ("before", "after"):  # a command names the passes that it ran
                each.get(side, {}).pop("pipeline", None)
        assert own == other


UNLOWERED: dict[str, Callable[[Any], Any]] = {
    "analyze": lambda model: llmir.analyze(model, HW).notes,
    "workload": lambda model: llmir.workload(model, HW, **JOB).notes,
    "largest": lambda model: llmir.largest(model, HW, prompt=100).notes,
    "simulate": lambda model: llmir.simulate(model, HW, ARRIVALS).notes,
    "plan": lambda model: llmir.plan(model, HW, ARRIVALS, gpus=1, batch=8, chunk=2048).notes,
    "sweep": lambda model: llmir.sweep(model, {"batch": 2}).notes,
    "diff": lambda model: llmir.diff(model, model, HW, batch=2).after.notes,
}


@pytest.mark.parametrize("name", UNLOWERED)
def test_a_program_is_estimated_as_it_is_and_the_first_note_says_that_no_pass_has_run(name: str) -> None:
    program = llmir.load(MODEL)
    notes = UNLOWERED[name](program)
    assert notes[0].startswith("no pass has run")
    assert UNLOWERED[name](MODEL) == notes[1:]
    assert UNLOWERED[name](llmir.run(program, llmir.pipeline_of("vllm"))) == notes[1:]


@pytest.mark.parametrize("axes", [{}, {"tp": 2}, {"weights": "fp8"}])
def test_a_program_in_a_sweep_is_estimated_as_by_analyze(axes: dict[str, Any]) -> None:
    program = llmir.load(MODEL)
    (row,) = llmir.sweep(program, {"batch": 2, "context": 300, **axes}).rows()
    parallel = llmir.Parallel(tp=axes.get("tp", 1))
    precision = llmir.Precision(weights=axes.get("weights"))
    step = llmir.analyze(program, HW, batch=2, context=300, parallel=parallel, precision=precision)
    assert row["time_s"] == pytest.approx(step.time_s, rel=1e-14, abs=0)  # sums in another order
    named = llmir.analyze(MODEL, HW, batch=2, context=300, parallel=parallel, precision=precision)
    assert named.time_s < step.time_s


def test_a_plan_of_a_program_runs_no_passes_of_the_engine() -> None:
    plain, fused = (
        llmir.plan(model, HW, ARRIVALS, gpus=1, batch=8, chunk=2048).best
        for model in (llmir.load(MODEL), MODEL)
    )
    assert plain is not None and fused is not None
    assert not plain.structure.program.is_lowered and fused.structure.program.is_lowered
    assert plain.tpot_s > fused.tpot_s


def test_an_ir_file_is_estimated_as_it_is(run: Run, tmp_path: Path) -> None:
    assert run("opt", MODEL, "-o", "plain.ir").code == 0
    step = llmir.analyze(llmir.load(MODEL), HW, batch=2)
    ran = run("sweep", "plain.ir", "--batch", "2", "--format", "json")
    assert json.loads(ran.out)["rows"][0]["time_s"] == step.time_s
    assert "note: no pass has run" in ran.err
    assert llmir.analyze(tmp_path / "plain.ir", HW, batch=2).time_s == step.time_s


@pytest.mark.mostly_slow(40)
@pytest.mark.parametrize("model", presets.names())
def test_programs_know_whether_the_passes_of_an_engine_have_run(model: str) -> None:
    program = llmir.load(model)
    assert not program.is_lowered
    for engine in (None, "vllm", "sglang", "trtllm", "hf-transformers", "deepspeed"):
        lowered = llmir.run(program, llmir.pipeline_of(engine))
        assert lowered.is_lowered
        assert llmir.parse_program(llmir.print_program(lowered)).is_lowered


@pytest.mark.parametrize(
    ("pipeline", "noted"),
    [("", True), ("shard{tp=2}", False), ("quantize{weights=fp8}", False), ("fuse-attention", False)],
)
def test_a_program_after_any_pass_has_no_note(pipeline: str, noted: bool) -> None:
    program = llmir.run(llmir.load(MODEL), pipeline)
    assert bool(llmir.analyze(program, HW, batch=2).notes) == noted
    assert bool(llmir.simulate(program, HW, ARRIVALS).notes) == noted


@pytest.mark.parametrize(
    "options",
    [{}, {"parallel": llmir.Parallel(tp=2)}, {"precision": llmir.Precision(weights="fp8")}],
)
def test_a_program_that_is_split_by_an_option_keeps_the_note(options: dict[str, Any]) -> None:
    notes = llmir.workload(llmir.load(MODEL), HW, **JOB, **options).notes
    assert [note for note in notes if note.startswith("no pass has run")] == [notes[0]]
    assert llmir.workload(MODEL, HW, **JOB, **options).notes == notes[1:]


def test_a_quantized_checkpoint_is_a_model_as_loaded() -> None:
    program = llmir.load("deepseek-v3")
    assert "quantization" in program.facts
    step = llmir.analyze(program, "h200", parallel=llmir.Parallel(tp=8))
    assert step.notes[0].startswith("no pass has run")
