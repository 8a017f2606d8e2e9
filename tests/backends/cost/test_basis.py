"""One basis: whose kernels a device takes, and that no comparison mixes times of two kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import pytest

import llmir
from llmir.backends.compare.diff import StepDiff
from llmir.backends.cost.transfer import calibration_source, nearness, transfer_sources
from llmir.backends.work.rows import Basis
from llmir.base.errors import HardwareError, InputError
from llmir.hw import library
from llmir.ir.core.op import OPS, Op
from tests.flat import records

# By instruction set, else by kind of memory: HBM of chips for data centers, GDDR of those for graphics.
BORROWED = {
    "A100-80-SXM": "v100-16 v100-32 a30 a100-40-sxm a100-40-pcie a100-80-pcie mi250",
    "H100-SXM": "h100-pcie h200 gh200 h20 h800 mi300x mi325x",
    "B200": "gb200 b300 mi355x",
    "L40S": "t4 a10 a40 a6000 rtx3090 l4 rtx4090 rtx-pro-6000",
}
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


@pytest.fixture(scope="module")
def program() -> llmir.Program:
    return llmir.run(llmir.load(TINY), llmir.pipeline_of())


# --- whose kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for line in BORROWED.values() for n in line.split()])
def test_a_gpu_borrows_from_the_nearest_that_was_measured(name: str) -> None:
    (expected,) = (relative for relative, names in BORROWED.items() if name in names.split())
    nearest = calibration_source(library.load(name))
    assert nearest
    assert nearest.name == expected


def test_every_bundled_device_is_measured_borrows_or_is_no_gpu() -> None:
    borrows = {n for line in BORROWED.values() for n in line.split()}
    assert set(library.names()) == {*library.calibrated_devices(), *borrows, "tpu-v5p", "tpu-v6e", "cpu"}
    partly = {name for name in library.calibrated_devices() if name in borrows}
    assert partly == {"mi300x", "mi355x", "a100-80-pcie"}  # AITER's products and experts; NCCL's sums
    assert not any(transfer_sources(library.load(n)) for n in ("tpu-v5p", "tpu-v6e", "cpu"))


def test_nearness_goes_by_vendor_instruction_set_technology_generation_and_memory() -> None:
    """Each step decides whatever the steps after it say."""
    h100, like = library.load("h100-sxm"), library.load("a100")
    steps: list[dict[str, Any]] = [
        {"vendor": "AMD"},
        {"isa": "sm_89"},
        {"isa": "sm_89", "memory_kind": "GDDR6"},
        {"isa": "sm_80"},
        {"memory_kind": "HBM2e"},
        {"matrix_flops": {"bf16": 1e12}},
    ]
    far = [nearness(h100, replace(like, **({"isa": "sm_90", "memory_kind": "HBM3"} | s))) for s in steps]
    abroad, generation, technology, further, memory, rate = far
    assert rate < memory < generation < further < technology < abroad
    assert nearness(h100, h100) < rate
    rtx = library.load("rtx-pro-6000")
    assert nearness(rtx, library.load("l40s")) < nearness(rtx, library.load("b200"))


# --- comparisons ---------------------------------------------------------------------------------


def kinds(found: StepDiff) -> set[str]:
    return {op.basis.kind for side in (found.before, found.after) for op in side.ops}


@pytest.mark.slow
def test_no_default_comparison_mixes_bases(program: llmir.Program) -> None:
    """Over all pairs of bundled devices, by each op's basis."""
    for one, other in combinations_with_replacement(library.names(), 2):
        found = llmir.diff(program, program, one, hw_after=other, batch=8, context=100)
        assert isinstance(found, StepDiff)
        alone = {"tpu-v5p", "tpu-v6e", "cpu"} & {one, other}
        assert kinds(found) == ({"roofline"} if alone else {"calibrated"}), (one, other)
        said = str(found.basis)
        assert said.startswith(
            "roofline on both sides: " if alone else "calibrated, vllm kernels on both sides"
        )
        assert not alone or any(f"{library.load(name).name} was not measured" in said for name in alone)


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("passes", ["", "fuse-attention", llmir.pipeline_of()])
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("device", [*library.calibrated_devices(), "h200", "mi300x", "t4"])
def test_within_a_node_no_op_is_beside_the_kernels(name: str, passes: str, device: str) -> None:
    """Eager attention, experts, what ranks send each other and what stages do."""
    for parallel in ("", "shard{tp=2}", "stages{pp=2}"):
        steps = [p for p in ("stages{pp=2}" if "pp" in parallel else "", passes, parallel) if p]
        model = llmir.run(llmir.load(name), list(dict.fromkeys(steps)))
        for new in (1, 64):
            step = llmir.analyze(model, device, batch=4, new=new, context=64)
            assert {op.basis.kind for op in step.ops} == {"calibrated"}


def test_an_op_that_nothing_was_measured_of_says_what_stands_in() -> None:
    """Other attention than ours takes a share of the roofline's rates; sends were measured on A100."""

    @dataclass(frozen=True)
    class Filter(Op):
        """Some op of one's own."""

        opcode = "own_filter"
        kind = "attention"
        rule = "* -> *"
        vector_flops = 3

    b = llmir.Builder()
    b.output(b.own_filter(b.input("bf16[B, T, 4096]", name="x")))
    own = llmir.Program("own", {"main": b.graph()})
    staged = llmir.run(llmir.load(TINY), f"stages{{pp=2}},{llmir.pipeline_of()}")
    try:
        for program, kind, basis in (
            (own, "attention", "no kernel measured"),
            (staged, "collective", "transferred from A100-80-SXM (torch.distributed nccl)"),
        ):
            step = llmir.analyze(program, "h100", batch=8, new=64)
            (op,) = (op for op in step.work if op.kind == kind and not op.name.endswith("recv"))
            assert str(op.basis) == basis
            assert op.time_s >= op.ideal_time_s
            assert op.error
        recv = next(op for op in step.work if op.name.endswith("recv"))  # which is the end of that
        assert (recv.basis.kind, recv.time_s) == ("calibrated", 0)
    finally:
        del OPS["own_filter"]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, 256])
@pytest.mark.parametrize(
    ("device", "engine"), [("h100-sxm", "vllm"), ("b200", "trtllm"), ("mi355x", "sglang")]
)
def test_no_large_op_far_below_its_roofline_claims_a_small_error(
    device: str, engine: str, batch: int
) -> None:
    """Of all bundled models that decode; 5% of the roofline and an error of 30% are the limits."""
    steps = 0
    for name in (str(row["name"]) for row in llmir.models()):
        faults_of = _faults(name, device, engine, batch)
        if faults_of is None:
            continue
        steps += 1
        assert not faults_of
    assert steps > 200


@pytest.mark.parametrize("name", ["glm-5", "deepseek-v4-flash", "minimax-m3"])
def test_scores_of_an_index_take_a_share_of_the_rates_of_the_roofline(name: str) -> None:
    """No kernel of them was measured: they take neither one multiprocessor's time nor a small error."""
    for device in ("h100-sxm", "b200", "mi355x"):
        assert _faults(name, device, "vllm", 256) == []
        step = llmir.analyze(name, device, batch=256, new=1, context=8192)
        scores = [op for op in step.work if op.name.endswith("_scores")]
        assert scores
        for op in scores:
            assert str(op.basis) == "no kernel measured"
            assert op.error is not None
            assert op.error > 0.3
            assert op.ideal_time_s < op.time_s < 3 * op.ideal_time_s + 20e-6


def _faults(name: str, device: str, engine: str, batch: int) -> list[str] | None:
    """Ops of a decode step that a law misses and claims to know; None of a model that decodes nothing."""
    try:
        step = llmir.analyze(
            name, device, batch=batch, new=1, context=4096, estimation=llmir.Estimation(engine=engine)
        )
        ops = step.work
    except llmir.LlmirError:
        return None
    return [
        op.name
        for op in ops
        if op.time_s > 20e-6 and op.ideal_time_s < 0.05 * op.time_s and (op.error or 0.0) < 0.3
    ]


def test_a_newer_gpu_of_the_same_chip_is_as_much_faster_as_its_memory() -> None:
    """H100 and H200 differ in memory alone, 3.35 and 4.8 TB/s."""
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    h100, h200 = (llmir.workload(model, name, batch=8) for name in ("h100-sxm", "h200"))
    assert 1.0 <= h100.tpot_s / h200.tpot_s <= 4800 / 3350
    assert 1.0 <= h100.ttft_s / h200.ttft_s <= 1.1


def test_reports_of_two_kinds_do_not_compare(program: llmir.Program) -> None:
    known, unknown = (llmir.analyze(program, name) for name in ("h100", "tpu-v6e"))
    with pytest.raises(InputError, match=r"calibrated for H100-SXM and roofline for TPU-v6e.*cost='ideal'"):
        llmir.diff(known, unknown)
    with pytest.raises(InputError, match="different kinds of times"):
        llmir.diff(*(llmir.workload(program, name, prompt=8, generate=2) for name in ("h100", "tpu-v6e")))
    bound = llmir.analyze(program, "h100", estimation=llmir.Estimation(cost="ideal"))
    assert kinds(llmir.diff(bound, unknown)) == {"roofline"}
    asked: list[dict[str, Any]] = [{"cost": "ideal"}, {"chunk": 4}, {"cached": 4}, {"concurrency": 4}]
    for one in asked:
        with pytest.raises(InputError, match="are priced already; give two programs and hw"):
            llmir.diff(bound, unknown, **records(llmir.diff, **one))
    with pytest.raises(HardwareError, match="CPU was not measured, nor was a GPU like it"):
        llmir.diff(program, program, "h100", hw_after="cpu", estimation=llmir.Estimation(cost="calibrated"))


def test_what_crosses_nodes_is_said(program: llmir.Program) -> None:
    far = llmir.run(llmir.load("llama3.1-70b"), [llmir.pipeline_of(), "shard{tp=16}"])
    near = llmir.run(llmir.load("llama3.1-70b"), [llmir.pipeline_of(), "shard{tp=8}"])
    found = llmir.diff(near, far, "dgx-h100", batch=4, context=99)
    assert "by the roofline, between nodes: 0% before, " in str(found.basis)
    crossing = [op for op in found.after.ops if op.kind == "collective"]
    assert {op.basis for op in crossing} == {Basis("roofline", why="between nodes")}
    assert {p.basis.kind for c in found.changes for p in (*c.before, *c.after) if p.kind == "gemm"} == {
        "calibrated"
    }
    inside = llmir.diff(near, near, "dgx-h100", batch=4, context=99)
    assert "between nodes" not in str(inside.basis)


@pytest.mark.slow
@pytest.mark.parametrize("new", [1, 512])
def test_nothing_is_sent_faster_between_nodes_than_inside_one(new: int) -> None:
    """Each collective, and what stages send, of eight devices in nodes of one, two and four."""
    model = llmir.load("qwen3-30b-a3b")
    whole = library.load("dgx-h100")
    assert whole.node
    for steps in ("shard{tp=8,ep=8}", "shard{tp=2,dp=4,ep=4}", "stages{pp=2},shard{tp=4}"):
        program = llmir.run(model, f"{llmir.pipeline_of()},{steps}")
        for devices in (1, 2, 4):
            cut = replace(whole, node=replace(whole.node, devices=devices))
            at: dict[str, Any] = {"batch": 8, "new": new, "context": 99}
            inside, across = (
                llmir.analyze(program, d, **records(llmir.analyze, **at)).work for d in (whole, cut)
            )
            for one, other in zip(inside, across, strict=True):
                assert other.time_s >= one.time_s, one.name
                assert other.time_s >= other.ideal_time_s
                assert other.basis.kind == "calibrated" or one.kind == "collective"


@pytest.mark.parametrize("new", [1, 512])
def test_a_sum_over_two_nodes_takes_no_less_than_in_one(new: int) -> None:
    model = llmir.load("llama3.1-70b")
    near, far = (llmir.run(model, f"{llmir.pipeline_of()},shard{{tp={n}}}") for n in (8, 16))
    inside, across = (llmir.analyze(p, "dgx-h100", batch=4, new=new, context=99).ops for p in (near, far))
    for one, other in zip(inside, across, strict=True):
        assert one.kind != "collective" or other.time_s >= one.time_s, one.name


FITTED = "{origin: our own, rows: 3, error_percent: 5, launch_us: 3}"


def test_sides_are_priced_by_one_engine(program: llmir.Program, tmp_path: Any) -> None:
    """An engine that was measured on both; if there is none, by the roofline."""
    ours = tmp_path / "ours.yaml"
    ours.write_text(f"extend: h100-sxm\ncalibration: {{engine: ours, ours: {{gemm_bf16: {FITTED}}}}}\n")
    assert llmir.analyze(program, ours).plan.model.kernels == "ours"
    found = llmir.diff(program, program, ours, hw_after="h200")
    assert str(found.basis).startswith("calibrated, vllm kernels")
    assert {r.plan.model.kernels for r in (found.before, found.after)} == {"vllm"}
    cpu = tmp_path / "mine.yaml"
    cpu.write_text(f"extend: cpu\ncalibration: {{engine: eager, eager: {{gemm_bf16: {FITTED}}}}}\n", "utf-8")
    found = llmir.diff(program, program, cpu, hw_after="h100-sxm")
    assert kinds(found) == {"roofline"}
    assert "no engine was measured on all: eager on CPU, vllm on H100-SXM" in str(found.basis)
    found = llmir.diff(program, program, cpu)
    assert kinds(found) == {"roofline"}
    assert "no kernel for embedding was measured on CPU" in str(found.basis)
    with_ours = llmir.analyze(program, ours), llmir.analyze(program, "h200")
    assert "kernels of ours before, vllm after" in str(llmir.diff(*with_ours).basis)
