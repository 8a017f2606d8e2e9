"""What fp8 weights mean: activations by the engine on the GPU, in every function and command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.backends.step.facts import precision, precision_text
from llmir.base.errors import HardwareError, InputError
from llmir.hw import library
from llmir.hw.engine_sections import fp8_support
from tests.commands import Run

MODEL = "llama3.2-1b"
FP8 = llmir.Precision(weights="fp8")
BOTH, WEIGHTS, REFUSED = "8-bit activations", "weight-only", "refused"

# Typed from docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8 (Ada and newer, MI300; Marlin on
# Turing and Ampere), sglang's `can_auto_enable_marlin_fp8` (80 <= sm < 89), and the support matrix of
# TensorRT-LLM 0.18.2 (Hopper and Ada, not Ampere).
KERNELS = [
    *(("vllm", name, BOTH) for name in ("h100-sxm", "h200", "b200", "l40s", "l4", "rtx4090", "mi300x")),
    *(("vllm", name, WEIGHTS) for name in ("a100", "a10", "rtx3090", "t4")),
    *(("vllm", name, REFUSED) for name in ("v100-32", "mi250")),
    *(("sglang", name, BOTH) for name in ("h100-sxm", "l40s", "mi300x", "mi355x")),
    *(("sglang", name, WEIGHTS) for name in ("a100", "rtx3090")),
    *(("sglang", name, REFUSED) for name in ("t4", "v100-32", "mi250")),
    *(("trtllm", name, BOTH) for name in ("h100-sxm", "l40s", "b200")),
    *(("trtllm", name, REFUSED) for name in ("a100", "t4", "mi300x")),
    ("vllm@0.15", "t4", REFUSED),  # before github.com/vllm-project/vllm/pull/29901
    ("vllm@0.5.1", "a100", WEIGHTS),  # github.com/vllm-project/vllm/pull/5975
    ("vllm@0.4", "a100", REFUSED),
    ("vllm@0.4", "h100-sxm", BOTH),
]


@pytest.mark.parametrize(("engine", "device", "kernel"), KERNELS)
def test_fp8_weights_run_as_the_engine_documents(engine: str, device: str, kernel: str) -> None:
    runs, on = library.engine(engine), library.load(device)
    if kernel == REFUSED:
        with pytest.raises(HardwareError, match=f"weights fp8: {runs.name} .* has no kernel"):
            fp8_support(runs, on)
    else:
        assert fp8_support(runs, on).activations == (kernel == BOTH)


@pytest.mark.parametrize("device", ["h100-sxm", "a100", "mi300x", "mi250", "tpu-v6e"])
def test_without_an_engine_the_matrix_units_decide(device: str) -> None:
    on = library.load(device)
    assert fp8_support(None, on).activations == ("fp8" in on.matrix_flops)


def test_a_device_without_an_isa_follows_its_matrix_units(tmp_path: Path) -> None:
    native = "matrix_tflops: {bf16: 500, fp8: 1000}"
    for peaks, activations in ((native, True), ("matrix_tflops: {bf16: 500}", False)):
        path = tmp_path / f"x{activations}.yaml"
        keys = "vector_tflops: {fp32: 50}\nmemory_GiB: 64\nmemory_GBps: 2000\nmultiprocessors: 100"
        source = "matrix_tflops, vector_tflops, memory_GiB, memory_GBps, multiprocessors"
        path.write_text(f'name: X1\n{peaks}\n{keys}\nsources: {{"{source}": a test}}\n')
        assert fp8_support(library.engine("vllm"), library.load(path)).activations == activations


@pytest.mark.parametrize(
    ("device", "engine", "head"),
    [
        ("h100-sxm", "vllm", "weights fp8, activations fp8 (vLLM on sm_90)"),
        ("mi300x", "sglang", "weights fp8, activations fp8 (SGLang on gfx942)"),
        ("a100", "vllm", "weights fp8, activations bf16 (vLLM on sm_80: weight-only, Marlin)"),
        ("l40s", "trtllm", "weights fp8, activations fp8 (TensorRT-LLM on sm_89)"),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "max", "serve-sim"])
def test_the_head_names_the_engine_and_the_gpu(
    run: Run, command: str, device: str, engine: str, head: str
) -> None:
    more = ("--rate", "1", "--requests", "20") if command == "serve-sim" else ()
    ran = run(command, MODEL, "--hw", device, "--engine", engine, "--weights", "fp8", *more)
    assert head in " ".join(ran.out.split())


def test_the_head_of_a_sweep_has_the_types_of_its_rows(run: Run) -> None:
    ran = run("sweep", MODEL, "--hw", "h100-sxm,a100", "--weights", "bf16,fp8")
    text = " ".join(ran.out.split())
    assert "weights fp8, activations fp8 (vLLM on sm_90), KV cache bf16" in text
    assert "weights fp8, activations bf16 (vLLM on sm_80: weight-only, Marlin), KV cache bf16" in text
    assert "precision" not in run("sweep", MODEL).out


def test_other_types_are_left_as_they_are_asked() -> None:
    for asked in (
        llmir.Precision(weights="fp8", activations="bf16"),
        llmir.Precision(weights="fp8_e5m2"),
        llmir.Precision(weights="int8"),
        llmir.Precision(weights="int4"),
        llmir.Precision(kv="fp8"),
    ):
        job = llmir.workload(MODEL, "h100-sxm", precision=asked)
        assert precision(job.program)["activations"] == "bf16"
        assert "vLLM" not in " ".join(precision_text(job.program, job.prefill.plan.model))


def test_fp8_activations_are_what_is_meant_on_a_gpu_that_multiplies_them() -> None:
    both = llmir.Precision(weights="fp8", activations="fp8")
    implied, asked = (llmir.workload(MODEL, "h100-sxm", precision=each) for each in (FP8, both))
    assert implied.program == asked.program and implied.e2e_s == asked.e2e_s
    weights_alone = llmir.Precision(weights="fp8", activations="bf16")
    assert implied.ttft_s < llmir.workload(MODEL, "h100-sxm", precision=weights_alone).ttft_s


def test_a_pipeline_is_run_as_it_is_written() -> None:
    program = llmir.run(llmir.load(MODEL), "quantize{weights=fp8}")
    assert precision(program)["activations"] == "bf16"
    (row,) = llmir.sweep(program, {"batch": 2}).rows()
    assert row["time_s"] == llmir.analyze(program, "h100-sxm", batch=2).time_s


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("max",),
        ("serve-sim", "--rate", "1"),
        ("plan", "--rate", "1"),
        ("sweep",),
        ("report", "-o", "page.html"),
        ("explain", "qkv_proj"),
        ("diff",),
    ],
)
def test_an_engine_that_refuses_fp8_is_refused_with_the_reason(run: Run, arguments: tuple[str, ...]) -> None:
    command, *more = arguments
    ran = run(command, MODEL, *more, "--hw", "a100", "--engine", "trtllm", "--weights", "fp8")
    assert ran.code == 2
    assert "weights fp8: trtllm 1.1 has no kernel for them on sm_80; sm_89 and newer ones have one" in ran.err
    assert ran.err.count("\n") == 1


TRAFFIC = llmir.Traffic(rate=8, prompt=2000, generate=200, requests=100)


def planned(**how: Any) -> Any:
    precision = llmir.Precision(**how)
    return llmir.plan("llama3.1-8b", "h100-sxm", TRAFFIC, gpus=1, batch=64, chunk=8192, precision=precision)


def test_a_plan_with_fp8_weights_runs_the_fp8_kernels_of_the_device() -> None:
    plans = planned(weights="fp8")
    best = plans.best
    assert best.structure.types._asdict() == {"weights": "fp8", "activations": "fp8", "kv": ""}
    step = llmir.analyze(best.structure.program, "h100-sxm", batch=8, context=2000)
    products = {op.name: str(op.basis) for op in step.ops if op.kind == "gemm"}
    assert products and not any("borrowed" in basis for basis in products.values())
    weights_alone = planned(weights="fp8", activations="bf16")
    assert weights_alone.best.structure.types.activations == "bf16"
    assert weights_alone.largest_rate < plans.largest_rate


def test_a_plan_compares_types_of_the_cache() -> None:
    plans = planned(kv="bf16,fp8")
    assert {structure.types.kv for structure in plans.structures} == {"bf16", "fp8"}
    room = {s.types.kv: s.job(2000, 200, None, 8192, None).max_batch for s in plans.structures}
    assert room["fp8"] > 1.9 * room["bf16"]
    assert "kv fp8" in {s.types.kv: s.name for s in plans.structures}["fp8"]


@pytest.mark.parametrize("role", ["weights", "activations", "kv"])
def test_an_empty_type_of_a_plan_is_an_error(role: str) -> None:
    with pytest.raises(InputError, match=f"{role}: a value is empty"):
        planned(**{role: "fp8,"})


@pytest.mark.parametrize("types", [{}, {"weights": "fp8"}, {"weights": "fp8", "kv": "fp8"}])
def test_the_program_of_a_plan_is_that_of_other_functions(types: dict[str, str]) -> None:
    job = llmir.workload("llama3.1-8b", "h100-sxm", precision=llmir.Precision(**types))
    assert planned(**types).best.structure.program == job.program


def test_json_of_a_plan_has_the_types(run: Run) -> None:
    load = ("--rate", "8", "--prompt", "2000", "--generate", "200", "--requests", "100", "--batch", "64")
    types = ("--weights", "fp8", "--kv", "fp8", "--gpus", "1", "--chunk", "8192")
    best = json.loads(run("plan", "llama3.1-8b", *load, *types, "--format", "json").out)["best"]
    assert (best["weights"], best["activations"], best["kv"]) == ("fp8", "fp8", "fp8")


@pytest.mark.parametrize(
    ("engine", "device", "bits"),
    [("trtllm", "b200", 8), ("sglang", "b200", 8), ("vllm", "b200", 16), ("trtllm", "h200", 16)],
)
def test_experts_in_mxfp4_take_the_activations_of_the_engine(engine: str, device: str, bits: int) -> None:
    """TensorRT-LLM's `get_mxfp4_quant_algo` and SGLang's `Mxfp4MoEMethod` narrow them on sm_100 alone."""
    estimation = llmir.Estimation(engine=engine)
    assert expert_row_bits(llmir.analyze("gpt-oss-20b", device, estimation=estimation).program) == {bits}
    wide = llmir.Precision(activations="bf16")
    stated = llmir.analyze("gpt-oss-20b", device, estimation=estimation, precision=wide)
    assert expert_row_bits(stated.program) == {16}


def test_a_program_keeps_the_activations_of_its_experts() -> None:
    program = llmir.load("gpt-oss-20b")
    step = llmir.analyze(
        program, "b200", estimation=llmir.Estimation(engine="trtllm"), parallel=llmir.Parallel(tp=2)
    )
    assert expert_row_bits(step.program) == {16}


def expert_row_bits(program: llmir.Program) -> set[float]:
    """Bits of the rows that products of experts take."""
    return {
        graph.operand_types(node)[0].dtype.bits
        for graph in program.graphs.values()
        for node in graph.nodes
        if node.op.opcode == "grouped_linear"
    }
