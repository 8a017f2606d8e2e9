"""The calibrated model on whole programs: never below the roofline, and honest about its basis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.cost.models import model
from llmir.backends.cost.transfer import combine_errors, device_error, nearest_fit
from llmir.backends.work.rows import Basis, rows
from llmir.base.errors import HardwareError, InputError
from llmir.hw import library
from llmir.ir.sizes.binding import Binding
from tests.commands import Run
from tests.flat import records
from tests.strategies import LOGITS, PIPELINES, configs, points

MEASURED = Path(__file__).parents[4] / "shared" / "measured" / "e2e.csv"
DEVICES = st.sampled_from(("h100-sxm", "a100-80-sxm", "b200", "l40s", "h200", "rtx4090"))
ENGINES = st.sampled_from((None, *library.engines()))


@pytest.mark.slow
@given(configs(), LOGITS, PIPELINES, points(), DEVICES, ENGINES)
@settings(max_examples=60)
def test_no_time_is_below_the_rooflines(
    config: dict[str, Any],
    logits: str,
    pipeline: str,
    point: dict[str, int],
    device: str,
    engine: str | None,
) -> None:
    program = llmir.run(llmir.load(config, logits=logits), pipeline)
    step = llmir.analyze(program, device, **records(llmir.analyze, **point, cost="calibrated", engine=engine))
    ideal = llmir.analyze(program, device, **records(llmir.analyze, **point, cost="ideal"))
    for ours, least in zip(step.work, ideal.work, strict=True):
        assert ours.time_s >= least.time_s == ours.ideal_time_s, ours.name
    assert step.time_s >= step.ideal_time_s == ideal.time_s
    assert step.time_s == pytest.approx(sum(op.repeat * op.time_s for op in step.ops))
    assert sum(step.bound.values()) == pytest.approx(1)
    assert step.flops == ideal.flops
    assert step.peak_memory_bytes == ideal.peak_memory_bytes


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("device", ["h100-sxm", "a100-80-sxm", "b200"])
def test_more_sequences_and_more_context_take_no_less(name: str, device: str) -> None:
    """Up to tiles: what a larger step is faster by is less than a hundredth.

    Engines read a prompt of one token, after which nothing is cached, by their kernel for prompts.
    """
    program = llmir.run(llmir.load(name), llmir.pipeline_of())
    batch, context = np.arange(1, 300)[:, None], np.arange(1, 20000, 97)
    time = llmir.analyze(
        program, device, batch=batch, new=1, context=context, estimation=llmir.Estimation(cost="calibrated")
    ).time_s
    assert np.all(time[1:] >= 0.99 * time[:-1])
    assert np.all(time[:, 1:] >= 0.99 * time[:, :-1])


def test_a_grid_is_its_points() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), [llmir.pipeline_of(), "shard{tp=4, ep=4}"])
    batch, new, context = np.array([[[1]], [[70]]]), np.array([[1], [33]]), np.array([0, 5, 4000])
    grid = llmir.analyze(program, "h100", batch=batch, new=new, context=context)
    for i, j, k in np.ndindex(2, 2, 3):
        at = {"batch": int(batch[i, 0, 0]), "new": int(new[j, 0]), "context": int(context[k])}
        point = llmir.analyze(program, "h100", **records(llmir.analyze, **at))
        assert grid.time_s[i, j, k] == pytest.approx(point.time_s)
        ops = {op.name: op for op in point.ops}
        for whole in grid.ops:
            one = ops.pop(whole.name, None)
            if one is None:  # a part of the overhead that is 0 here, and above 0 at another point
                assert whole.kind == "overhead" and whole.time_s[i, j, k] == 0
            else:
                assert whole.time_s[i, j, k] == pytest.approx(one.time_s)
                assert whole.bound[i, j, k] == one.bound
        assert not ops


@pytest.mark.parametrize("how", ["shard{tp=4, ep=4}", "stages{pp=2}"])
@pytest.mark.parametrize("cost", ["calibrated", "ideal"])
def test_many_unrelated_points_are_each_its_own(how: str, cost: str) -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), [llmir.pipeline_of(), how])
    random = np.random.default_rng(0)
    at = {"batch": (1, 300), "new": (1, 4096), "context": (0, 1 << 17)}
    some = {name: random.integers(*ends, 150_000) for name, ends in at.items()}
    some["new"][::2] = 1  # decodes beside prompts
    many = llmir.analyze(program, "h100", **records(llmir.analyze, **some, cost=cost))
    for i in (0, 1, 2, 3, 4095, 65_536, 131_073, 149_999):
        one = llmir.analyze(
            program, "h100", **records(llmir.analyze, **{k: int(v[i]) for k, v in some.items()}, cost=cost)
        )
        for figure in ("time_s", "period_s", "bubble", "ideal_time_s", "peak_memory_bytes"):
            assert getattr(many, figure)[i] == pytest.approx(getattr(one, figure), rel=1e-12, abs=1e-15)


def test_each_op_says_the_basis_of_its_time() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), [llmir.pipeline_of(), "shard{tp=2}"])
    own, other = (
        {op.name: op for op in llmir.analyze(program, d, batch=4, new=1, context=99).ops}
        for d in ("h100", library.load("h100"))
    )
    assert own.keys() == other.keys()
    assert own["layer.qkv_proj"].basis == Basis("calibrated")
    assert own["layer.input_norm"].basis == Basis("calibrated")
    moved = llmir.analyze(program, "h200", batch=4, new=1, context=99).ops
    (product,) = (op for op in moved if op.name == "layer.qkv_proj")
    assert product.basis == Basis("calibrated", "H100-SXM")
    assert product.error == pytest.approx(
        combine_errors(
            own["layer.qkv_proj"].error or 0,
            device_error(library.load("h200"), library.load("h100"), "gemm_bf16"),
        )
    )
    abroad = {op.name: op for op in llmir.analyze(program, "mi300x", batch=4, new=1, context=99).ops}
    assert abroad["layer.qkv_proj"].basis == Basis("calibrated", "", "aiter")
    attention = abroad["layer.flash_attention"]
    assert attention.basis == Basis("calibrated", "H100-SXM")
    assert attention.error == pytest.approx(
        combine_errors(
            own["layer.flash_attention"].error or 0,
            device_error(library.load("mi300x"), library.load("h100"), "attention_decode"),
        )
    )
    far = llmir.run(llmir.load("llama3.1-70b"), [llmir.pipeline_of(), "shard{tp=16}"])
    crossing = llmir.analyze(far, "dgx-h100", batch=4, new=1, context=99).ops
    assert {str(op.basis) for op in crossing if op.kind == "collective"} == {"roofline between nodes"}


@pytest.mark.parametrize("op", ["append_k", "append_v"])
def test_appending_costs_no_more_over_a_longer_cache(op: str) -> None:
    model = llmir.load("llama3.1-8b")
    steps = [
        llmir.analyze(model, "h100", batch=8, new=1, context=c, estimation=llmir.Estimation(engine="vllm"))
        for c in (16, 65536)
    ]
    few, many = ([x.time_s for x in step.ops if x.name.endswith(op)] for step in steps)
    assert few == many


def test_the_band_is_of_what_it_is_known_of() -> None:
    """Sums between nodes are not calibrated; they neither widen nor narrow the band."""
    program = llmir.run(llmir.load("llama3.1-70b"), f"{llmir.pipeline_of()},shard{{tp=16}}")
    step = llmir.analyze(program, "dgx-h100", batch=1, new=1, context=4096)
    known = [op.error for op in step.ops if op.error is not None]
    assert min(known) <= step.error <= max(known)
    assert any(op.error is None for op in step.ops)


def test_whose_kernels_and_whose_host(run: Run) -> None:
    assert (
        "calibrated, vllm kernels, CPU time of hf-transformers 4\n"
        in run("analyze", "llama3.1-8b", "--engine", "hf-transformers").out
    )
    shown = run("analyze", "llama3.1-8b", "--engine", "trtllm").out
    assert "calibrated, trtllm kernels, CPU time of trtllm 1.1" in shown


def test_calibrated_is_the_default_where_kernels_were_measured_or_can_be_borrowed() -> None:
    program = llmir.load("qwen3-0.6b")
    names = [llmir.analyze(program, d).cost_model for d in ("h100", "h200", "tpu-v6e", "dgx-h100")]
    assert names == ["calibrated", "calibrated", "ideal", "calibrated"]
    assert {op.basis for op in llmir.analyze(program, "tpu-v6e").ops} == {Basis("roofline")}
    for asked in ({"cost": "calibrated"}, {"engine": "vllm"}):
        with pytest.raises(HardwareError, match="TPU-v6e was not measured, nor was a GPU like it"):
            llmir.analyze(program, "tpu-v6e", **records(llmir.analyze, **asked))
    alone = llmir.analyze(program, "tpu-v6e")
    assert (alone.time_s, alone.error) == (alone.ideal_time_s, None)


@pytest.mark.parametrize(
    ("share", "limit"), [("compute", "compute"), ("memory", "memory"), ("nvlink", "network")]
)
def test_each_efficiency_acts(share: str, limit: str) -> None:
    """Half the rate is twice the time of what it bounds, and nothing else."""
    program = llmir.run(llmir.load("llama3.1-8b"), [llmir.pipeline_of(), "shard{tp=8}"])
    at = {"batch": 8, "new": 512, "context": 0}
    whole = llmir.analyze(program, "a100", **records(llmir.analyze, **at, efficiency={share: 1}))
    half = llmir.analyze(program, "a100", **records(llmir.analyze, **at, efficiency={share: 0.5}))
    assert whole.time_s == pytest.approx(whole.ideal_time_s)
    assert half.cost_model == "efficiency"
    bound = [a.bound == limit for a in whole.ops]
    assert any(bound)
    for before, after, mine in zip(whole.ops, half.ops, bound, strict=True):
        assert after.time_s == pytest.approx(before.time_s * (2 if mine else 1)) or after.bound == limit
    launch = llmir.analyze(program, "a100", **records(llmir.analyze, **at, efficiency={"launch": 1e-3}))
    calls = sum(op.repeat for op in launch.ops)
    assert launch.time_s == pytest.approx(launch.ideal_time_s + calls * 1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cost": "exact"}, "cost: expected calibrated or ideal, got 'exact'"),
        ({"cost": "ideal", "engine": "vllm"}, "engine 'vllm': cost model ideal knows no engines"),
        ({"engine": "vlm"}, "unknown engine 'vlm'; did you mean vllm"),
        ({"engine": "sglang-tritn"}, "unknown engine 'sglang-tritn'; did you mean sglang-triton"),
        ({"efficiency": {"memory": 0.5}, "cost": "ideal"}, "efficiency: replaces the cost model"),
        ({"efficiency": {"memory": 1.5}}, "memory: expected a number above 0 up to 1, got 1.5"),
        ({"efficiency": {"memory": 0}}, "efficiency: memory: expected a number above 0 up to 1"),
        ({"efficiency": {"cache": 0.5}}, "efficiency: there is no 'cache'"),
    ],
)
def test_what_contradicts_itself(options: dict[str, Any], says: str) -> None:
    with pytest.raises((InputError, HardwareError), match=says):
        llmir.analyze(llmir.load("qwen3-0.6b"), "h100", **records(llmir.analyze, **options))


def test_an_engine_of_ones_own(run: Run, tmp_path: Path) -> None:
    text = 'origin: "by hand"\nrows: 3\nerror_percent: 5\nhidden: 0.5\nstep_us: 5000\nsequence_us: 1\n'
    (tmp_path / "ours.yaml").write_text(text + "kernel_us: 1\n")
    shown = run("analyze", "qwen3-0.6b", "--hw", "h100", "--engine", "ours.yaml", "--prompt", "8")
    assert shown.code == 0
    host = llmir.analyze(
        llmir.load("qwen3-0.6b"), "h100", estimation=llmir.Estimation(engine=str(tmp_path / "ours.yaml"))
    ).overhead["host_s"]
    assert host == pytest.approx(5001e-6)
    (tmp_path / "bad.yaml").write_text(text + "kernel_us: 900\n")
    said = run("analyze", "qwen3-0.6b", "--hw", "h100", "--engine", "bad.yaml")
    error = "error: engine bad.yaml.kernel_us must be a number from 0.1 to 300, got 900\n"
    assert (said.code, said.err) == (2, error)


@pytest.mark.slow
def test_whole_runs_are_predicted() -> None:
    """Static batches and time per token of closed loops, one host for each engine; first tokens apart.

    Some runs of gpt-oss took less than the roofline says, whose time per token leaves out a queue.
    """
    if not MEASURED.exists():
        pytest.skip("no measured runs beside the checkout")
    found = llmir.validate(MEASURED)
    kinds = ("static_batch_latency", "static_batch_throughput", "serving_closed_loop")
    judged = [r for r in found.rows if r.kind in kinds and not r.exceeds]
    known = [r for r in judged if library.load(r.device.removesuffix("-Station")).vendor == "NVIDIA"]
    queued = [r.kind == "serving_closed_loop" and r.metric == "ttft" for r in known]
    errors = np.array([r.predicted_s / r.measured_s - 1 for r in known])
    error, first = errors[~np.array(queued)], errors[queued]
    assert len(error) > 1400
    assert len(first) > 600
    assert np.median(np.abs(first)) < 0.25
    assert np.abs(error).mean() < 0.15
    assert np.median(np.abs(error)) < 0.10
    assert abs(error.mean()) < 0.05


def test_heads_are_narrowed_as_the_rows_that_they_make_up() -> None:
    """A scale a token is a row a token, whether its values lie in heads or not."""
    program = llmir.run(llmir.load("llama3.1-8b"), "quantize{weights=fp8, activations=fp8}")
    step = llmir.analyze(llmir.run(program, llmir.pipeline_of()), "b200", batch=4, new=2048)
    times = {op.name: op.time_s for op in step.ops}
    assert times["layer.quantize_mix"] == pytest.approx(times["layer.quantize_input_norm"])


def test_attention_is_as_uncertain_as_the_kernel_that_runs() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    calibration = library.load("h100").calibration
    assert calibration
    kernels = calibration.engines["trtllm"]
    for new, family in (1, "attention_decode"), (512, "attention_prefill"):
        step = llmir.analyze(
            program, "h100", batch=4, new=new, context=99, estimation=llmir.Estimation(engine="trtllm")
        )
        (attention,) = (op for op in step.ops if op.kind == "attention")
        assert attention.error == kernels[family].error
    both = llmir.analyze(
        program,
        "h100",
        batch=4,
        new=np.array([1, 512]),
        context=99,
        estimation=llmir.Estimation(engine="trtllm"),
    )
    (attention,) = (op for op in both.ops if op.kind == "attention")
    assert [*attention.error] == [kernels[f].error for f in ("attention_decode", "attention_prefill")]


def test_an_engine_takes_its_own_kernel_of_near_arithmetic_before_anothers() -> None:
    h100, a100 = library.load("h100"), library.load("a100")
    for device, families, engine, found in (
        (h100, ("moe_fp8", "moe_fp8_block", "moe_bf16"), "sglang", ("sglang", "moe_fp8_block")),
        (h100, ("moe_fp8", "moe_fp8_block", "moe_bf16"), "trtllm", ("trtllm", "moe_fp8")),
        (
            a100,
            ("gemm_int4_weights", "gemm_int8_weights", "gemm_bf16"),
            "vllm",
            ("trtllm", "gemm_int4_weights"),
        ),
        (
            a100,
            ("gemm_int4_weights", "gemm_int8_weights", "gemm_bf16"),
            None,
            ("trtllm", "gemm_int4_weights"),
        ),
    ):
        basis = nearest_fit(device, families, engine)
        assert basis
        assert (basis.engine, basis.family) == found


def test_an_engines_kernel_goes_with_its_relatives() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    for device in ("h100", "h200"):
        step = llmir.analyze(
            program, device, batch=8, new=1, context=99, estimation=llmir.Estimation(engine="sglang-triton")
        )
        assert step.plan.model.host == model(library.load("h100"), engine="sglang").host
    with pytest.raises(HardwareError, match="unknown engine 'sglang-triton'"):
        llmir.analyze(
            program,
            "tpu-v6e",
            batch=8,
            new=1,
            context=99,
            estimation=llmir.Estimation(engine="sglang-triton"),
        )


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_experts_take_the_faster_kernel_of_their_engine(batch: int) -> None:
    """In NVFP4 on B200 TensorRT-LLM has CUTLASS and min-latency kernels; a step takes the faster of each."""
    types = "quantize{weights=nvfp4, activations=nvfp4}"
    program = llmir.run(llmir.load("deepseek-r1"), [types, llmir.pipeline_of("trtllm")])
    both = model(library.load("b200"), engine="trtllm")
    names = "trtllm-moe_torch_flow_min_latency", "trtllm"
    alone = [replace(both, engine=name, runs=None) for name in names]  # type: ignore[type-var]
    experts = [row for row in rows(program) if row.block == "routed_experts" and row.node.op.matrices]
    assert experts
    for row in experts:
        at = Binding(B=batch, T=1, C=1000)
        assert both.price(row).time(at) == min(one.price(row).time(at) for one in alone)


def test_prompts_and_decodes_of_a_step_are_one_call_of_the_experts() -> None:
    """Of several kernels too: weights are read once for all tokens. Both steps are larger than any graph."""
    types = "quantize{weights=nvfp4, activations=nvfp4}"
    model = llmir.run(llmir.load("deepseek-r1"), [types, llmir.pipeline_of("trtllm"), "shard{tp=8}"])
    trtllm = llmir.Estimation(engine="trtllm")
    mixed = llmir.analyze(
        model, "b200", batch=2100, new=1, context=99, beside=[{"batch": 1, "new": 512}], estimation=trtllm
    )
    merged = llmir.analyze(model, "b200", batch=2612, new=1, context=99, estimation=trtllm)
    for name in ("moe_layer.experts_gate", "moe_layer.combine"):
        one, other = (next(op for op in step.ops if op.name.startswith(name)) for step in (mixed, merged))
        assert one.time_s == pytest.approx(other.time_s, rel=1e-9)
