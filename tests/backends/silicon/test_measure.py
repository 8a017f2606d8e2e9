"""Measuring: what is timed, written, read again and fitted, by a machine whose kernels are known."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.cost.models import model
from llmir.backends.cost.transfer import basis
from llmir.backends.kernels.attention import AttentionShape
from llmir.backends.kernels.base import Kernel
from llmir.backends.kernels.cpu import CpuAttention, CpuDeviceEngine, CpuGemm
from llmir.backends.kernels.gemm import GemmShape
from llmir.backends.kernels.stream import StreamKernel, StreamShape
from llmir.backends.silicon.measure import engine_cpu, kernels
from llmir.backends.silicon.measure.device_file import device_text
from llmir.backends.silicon.measure.kernels import EagerMachine
from llmir.backends.silicon.measure.machine import (
    MachineFacts,
    MeasurePoint,
    matmul_point,
    measurement_plan,
    record,
    stream,
    write,
)
from llmir.backends.silicon.rows import DeviceLookup
from llmir.base.errors import InputError
from llmir.hw import library
from llmir.hw.device import Device
from tests.commands import Run
from tests.flat import records

from .table_fits import cases_of, points_of

CORES = 2
FACTS = MachineFacts(("float32", "bfloat16"), 5e11, 5e10, 2**24, 2**35, 2**25)
GPU = MachineFacts(("bfloat16", "float32"), 5e13, 2e12, 50 * 2**20, 80 * 2**30)
TRUE: dict[str, Kernel] = {
    "gemm": CpuGemm(rate=0.8, bandwidth=0.6, packing=0.3, launch_us=5),
    "attention": CpuAttention(matrix=0.5, softmax=0.1, fetch_ns=0.4, block_us=3, launch_us=12),
    "elementwise": StreamKernel(bandwidth=0.5, launch_us=4),
}
DEVICE = Device("fake", {"fp32": 5e11}, 2**35, 5e10, matrix_flops={"bf16": 1e12}, cores=CORES, l2_bytes=2**24)


class Fake:
    """A machine that takes what these kernels take, times `noise`."""

    gpu, devices, processors, facts = False, 1, CORES, FACTS
    name = description = "fake"
    framework = "eager-0.0"

    def __init__(self, each_s: float = 0.1) -> None:
        self.noise = np.random.default_rng(0)

    def seconds(self, point: MeasurePoint) -> float:
        kind = point.file.partition("_")[0]
        return float(TRUE[kind].seconds(DEVICE, shape(point))) * float(self.noise.lognormal(0, 0.02))


def shape(point: MeasurePoint) -> Any:
    if point.file == "elementwise":
        return StreamShape(point["rows"], point["bytes_moved_ideal"])
    bits = 8 * point.size
    dtype = {32: "fp32", 16: "bf16"}[bits]
    if point.file == "gemm":
        return GemmShape(point["m"], point["n"], point["k"], 1, bits, bits, bits, dtype, point["turns"])
    new, heads = point["q_len"], point["num_kv_heads"]
    sizes = point["batch"], new, point["context"] - new, heads, point["num_heads"] / heads, point["head_dim"]
    return AttentionShape(*sizes, np.inf, bits, bits, bits, dtype)


# --- the plan ------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.floats(1e9, 1e15), st.floats(1e9, 1e13), st.integers(2**20, 2**27), st.floats(10, 600))
def test_no_call_takes_longer_than_a_share_of_the_time(
    flops: float, bandwidth: float, cache: int, budget: float
) -> None:
    facts = replace(FACTS, flops=flops, bandwidth=bandwidth, cache_bytes=cache)
    points = [p for p in measurement_plan(facts, budget) if p.cells.get("op") not in ("copy", "read")]
    assert all(facts.seconds(p) <= budget / 1000 for p in points)
    assert len({(p.file, tuple(p.cells.items())) for p in points}) == len(points)


@pytest.mark.parametrize("facts", [FACTS, GPU])
def test_a_plan_has_some_of_all_that_a_model_needs(facts: MachineFacts) -> None:
    points = measurement_plan(facts, 45, quick=True)
    assert points == measurement_plan(facts, 45, quick=True)
    ops = {(p.file, p.cells.get("op", p.cells["dtype"])) for p in points}
    files = ("gemm", "attention_prefill", "attention_decode")
    assert ops >= set(itertools.product(files, facts.dtypes))
    assert {op for _, op in ops} >= {"add", "rms_norm", "softmax", "mlp_act", "attn_rope", "copy", "read"}
    assert len(points) < len(measurement_plan(facts, 300))
    for dtype in facts.dtypes:
        assert {p["m"] for p in points if p.file == "gemm" and p.cells["dtype"] == dtype} > {1}
    # What shows the peaks comes first: it is there if time runs out.
    assert [p.cells["op"] for p in points[:4]] == ["copy", "copy", "read", "read"]
    largest = max(p.flops for p in points if p.file == "gemm" and p.cells["dtype"] == facts.dtypes[0])
    assert points[4].flops == largest


def test_weights_in_turn_fill_the_cache_twice() -> None:
    for p in measurement_plan(FACTS, 300):
        if p.file == "gemm":
            assert p["turns"] * p["n"] * p["k"] * p.size >= 2 * FACTS.cache_bytes


def test_bytes_and_flops_by_hand() -> None:
    p = matmul_point("bfloat16", 3, 5, 7, 2)
    assert (p.flops, p.bytes) == (210, 2 * (21 + 35 + 15))
    assert stream("add", "float32", 4, 8).bytes == 3 * 4 * 32


# --- timing --------------------------------------------------------------------------------------


class Slow:
    """A machine whose calls take a second each of a clock, and that cannot do every third."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self, point: MeasurePoint) -> float | None:
        self.now += 1
        return None if self.now % 3 == 0 else 0.5


def test_a_run_ends_with_its_time_and_leaves_out_what_cannot_be_done() -> None:
    machine, told = Slow(), list[int]()
    points = [matmul_point("float32", m, 1, 1, 2) for m in range(1, 100)]
    found = record(points, machine, 9, clock=lambda: machine.now, tell=lambda n, _: told.append(n))
    assert [p["m"] for p, _ in found] == [1, 2, 4, 5, 7, 8]
    assert told == list(range(9))


def test_rows_are_written_in_order_with_all_that_a_fit_asks_for(tmp_path: Path) -> None:
    timed = record(measurement_plan(FACTS, 300), Fake(), 1e9)
    paths = write(tmp_path, timed, "fake", "eager-0.0")
    assert sorted(p.stem for p in paths) == ["attention_decode", "attention_prefill", "elementwise", "gemm"]
    (tmp_path / "fake.yaml").write_text(device_text("fake", FACTS, CORES, timed, gpu=False))
    found = [cases_of(path) for path in paths]
    reasons = {problem.rpartition(": rows ")[0] for _, problems in found for problem in problems}
    assert reasons <= {"elementwise.csv: shows what the memory can do, and is no op of a model"}
    names = {case.name for some, _ in found for case in some}
    assert names >= {"cpu_gemm_fp32", "cpu_gemm_bf16", "cpu_attention_decode_fp32", "stream"}
    [gemm] = [p for p in paths if p.stem == "gemm"]
    rows = list(csv.DictReader(gemm.open()))
    sizes = [(r["dtype"], *(int(r[c]) for c in "mnk")) for r in rows]
    assert sizes == sorted(sizes)
    assert len(sizes) == sum(p.file == "gemm" for p, _ in timed)


# --- the device ----------------------------------------------------------------------------------


def test_peaks_are_the_best_rates_and_no_row_beats_them(tmp_path: Path) -> None:
    points = [matmul_point("float32", 512, 512, 512, 8), matmul_point("bfloat16", 512, 512, 512, 8)]
    points += [matmul_point("float32", 1, 1024, 1024, 16), stream("copy", "float32", 4096, 1024)]
    timed = list(zip(points, (2.7e-3, 1e-3, 4.2e-4, 1e-3), strict=True))
    text = device_text("mine", FACTS, 2, timed, gpu=False)
    (tmp_path / "mine.yaml").write_text(text)
    device = library.load(tmp_path / "mine.yaml")
    assert device.matrix_peak("fp32")[0] == pytest.approx(2 * 512**3 / 2.7e-3, rel=1e-3)
    assert device.matrix_peak("bf16")[0] == pytest.approx(2 * 512**3 / 1e-3, rel=1e-3)
    assert device.memory_Bps == pytest.approx(2 * 4096 * 1024 * 4 / 1e-3, rel=1e-3)
    [path] = write(tmp_path, timed[:3], "mine", "eager-0.0")
    found = llmir.validate(path, cost="ideal")
    assert len(found.measured) == 3 and not found.exceeding
    assert (device.cores, device.multiprocessors) == (2, None)
    assert device.memory_bytes == FACTS.memory_bytes
    assert device.source("memory_GBps") == "measured by llmir calibrate --run, the best of 4 calls"


def test_an_unknown_gpu_has_multiprocessors_and_a_measured_link(tmp_path: Path) -> None:
    sent = MeasurePoint(
        "collective", {"op": "all_reduce", "dtype": "bfloat16", "num_gpus": 4, "bytes": 10**9}
    )
    timed = [(matmul_point("float32", 512, 512, 512, 8), 1e-5), (sent, 0.01)]
    timed.append((stream("copy", "float32", 4096, 1024), 1e-4))
    (tmp_path / "g.yaml").write_text(device_text("G", GPU, 100, timed, gpu=True))
    device = library.load(tmp_path / "g.yaml")
    assert (device.cores, device.multiprocessors) == (None, 100)
    assert device.link(4)[1].Bps == pytest.approx(2 * 0.75 * 10**9 / 0.01, rel=1e-3)


def test_a_file_beside_the_rows_names_a_device_and_can_be_built_on(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extend: cpu\nname: Mine\n")
    machines = DeviceLookup(tmp_path)
    mine = machines("mine")
    assert (mine.name, machines("h100-sxm")) == ("Mine", library.load("h100-sxm"))
    assert machines(str(tmp_path / "mine.yaml")) is mine
    assert machines.base(mine, "Mine", str(tmp_path / "sub" / "x.yaml")) == "../mine.yaml"
    assert machines.base(machines("h100-sxm"), "h100-sxm", "x.yaml") == "h100-sxm"
    with pytest.raises(InputError, match="is the file that the fit extends"):
        machines.base(mine, "Mine", str(tmp_path / "mine.yaml"))


# --- the loop ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_measured_gives_back_the_kernels_that_made_it(run: Run, tmp_path: Path, fake: None) -> None:
    pytest.importorskip("scipy")
    ran = run("calibrate", "--run", "-o", "here", "--seconds", "300")
    assert ran.code == 0, ran.err
    device = library.load(tmp_path / "here" / "local-cpu.yaml")
    gemm, decode, act = (basis(device, name) for name in ("gemm_fp32", "attention_decode_fp32", "stream"))
    assert gemm and decode and act
    assert (gemm.family, decode.engine) == ("cpu_gemm_fp32", "eager")
    # Peaks were measured too, so that shares are of the best rate that was seen.
    ratio = DEVICE.memory_Bps / device.memory_Bps
    for name, true in (("packing", 0.3 * ratio), ("bandwidth", 0.6 * ratio)):
        assert getattr(gemm.kernel, name) == pytest.approx(true, rel=0.2), name
    assert getattr(decode.kernel, "fetch_ns") == pytest.approx(0.4, rel=0.1)  # noqa: B009 (no field of Kernel)
    assert getattr(act.kernel, "launch_us") == pytest.approx(4, rel=0.2)  # noqa: B009
    assert gemm.fitted.error < 0.05
    step = llmir.analyze(llmir.load("tiny.json"), device, batch=1, new=1, context=8)
    assert step.plan.model.name == "calibrated"
    again = run("calibrate", "--from", "here", "--family", "gemm", "--format", "csv", "-o", "again.yaml")
    assert again.code == 0, again.err
    refitted = basis(library.load(tmp_path / "again.yaml"), "gemm_fp32")
    assert refitted
    assert refitted.fitted.parameters == pytest.approx(gemm.fitted.parameters, rel=0.01)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "EagerMachine", Fake)
    monkeypatch.setattr(engine_cpu, "measure_steps", lambda machine: [])


def test_a_host_is_what_steps_take_beyond_their_kernels(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    made = CpuDeviceEngine(hidden=0, step_us=300, sequence_us=7, kernel_us=15)
    text = device_text("mine", FACTS, 2, [(matmul_point("float32", 512, 512, 512, 8), 1e-3)], gpu=False)
    about = '{origin: "a", rows: 3, error_percent: 5, '
    kernels = f"gemm_bf16: {about}launch_us: 3}}, stream: {about}launch_us: 8}}"
    (tmp_path / "mine.yaml").write_text(
        text.replace("memory_GBps: 0", "memory_GBps: 50")
        + f"calibration: {{engine: eager, eager: {{{kernels}}}}}\n"
    )
    device = library.load(tmp_path / "mine.yaml")

    def build(config: Any) -> llmir.Program:
        return llmir.run(llmir.load(config), llmir.pipeline_of())

    timed = []
    for layers, batch in itertools.product((1, 2, 4, 8), (1, 4, 16)):
        point = MeasurePoint("steps", {"layers": layers, "batch": batch, "context": 16})
        program = build(engine_cpu.config(layers))
        at = {"batch": batch, "new": 1, "context": 16}
        bare = llmir.analyze(program, device, **records(llmir.analyze, **at))
        count = sum(row.repeat for row in bare.plan.rows)
        timed.append((point, bare.time_s + (300 + 7 * batch + 15 * count) * 1e-6))
    found, errors = engine_cpu.fit_eager_cpu(timed, device, build)
    assert isinstance(found, CpuDeviceEngine)
    assert vars(found) == pytest.approx(vars(made), rel=1e-3)
    assert errors.mape < 1e-3


def test_a_device_that_states_a_host_is_priced_with_it(tmp_path: Path) -> None:
    about = '{origin: "a", rows: 3, error_percent: 5, '
    host = f"cpu_host: {about}hidden: 0, step_us: 500, sequence_us: 1, kernel_us: 20}}"
    kernels = f"gemm_bf16: {about}launch_us: 3}}"
    path = tmp_path / "x.yaml"
    path.write_text(f"extend: cpu\ncalibration: {{engine: eager, eager: {{{kernels}, {host}}}}}\n")
    device = library.load(path)
    program = llmir.load("llama3.2-1b")
    with_host = llmir.analyze(program, device, new=1, context=64)
    bare = llmir.analyze(program, device, new=1, context=64, estimation=llmir.Estimation(cost="ideal"))
    kernels_s = sum(
        row.repeat * CalibratedModel(device).price(row).time(with_host.at) for row in with_host.plan.rows
    )
    count = sum(row.repeat for row in with_host.plan.rows)
    assert with_host.time_s == pytest.approx(kernels_s + 501e-6 + 20e-6 * count)
    assert with_host.time_s > bare.time_s
    assert isinstance(model(device).host, CpuDeviceEngine)
    other = model(device, engine="vllm").host  # which knows nothing of this machine
    assert other
    assert not isinstance(other, CpuDeviceEngine)


def test_a_column_with_a_meaning_when_empty_may_be_absent(tmp_path: Path) -> None:
    head = "gpu,dtype,m,n,k,latency_us,framework,source\n"
    rows = "".join(f"h100,float32,{m},{n},64,9,x,y\n" for m in (1, 2) for n in (64, 128))
    (tmp_path / "gemm.csv").write_text(head + rows)
    [points] = points_of(tmp_path / "gemm.csv")
    assert points.program["main"]["w"].op == replace(points.program["main"]["w"].op, turns=0)
    [case], _ = cases_of(tmp_path / "gemm.csv")
    assert len(case.seconds) == 4


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run",), "--run: requires -o with the folder"),
        (
            ("--run", "-o", "x", "--from", "y"),
            "--run: measures all kernels of eager PyTorch; leave --from out",
        ),
        (("--run", "-o", "x", "--engine", "vllm"), "leave --engine out"),
        (("--run", "-o", "tiny.json"), "tiny.json: is not a folder and cannot be created as one"),
        (("--run", "-o", "x", "--device", "h1000"), "unknown device 'h1000'"),
        (("--from", "x", "--quick"), "--quick: requires --run"),
        (("--from", "x", "--seconds", "9"), "--seconds: requires --run"),
        (("--run", "-o", "x", "--seconds", "0"), "--seconds"),
    ],
)
def test_bad_arguments_are_one_line(run: Run, fake: None, arguments: Any, message: str) -> None:
    ran = run("calibrate", *arguments)
    assert (ran.code != 0, ran.out) == (True, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_without_pytorch_a_run_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    ran = run("calibrate", "--run", "-o", "here")
    assert ran.err == "error: --run needs PyTorch: pip install 'llmir[run]'\n"


# --- with PyTorch --------------------------------------------------------------------------------


def test_pytorch_times_each_kind_of_point() -> None:
    pytest.importorskip("torch")
    machine = EagerMachine(each_s=1e-3)
    points = {
        (p.file, p.cells.get("op")): p
        for p in measurement_plan(replace(machine.facts, cache_bytes=2**20), 10)
    }
    for point in points.values():
        seconds = machine.seconds(point)
        assert seconds
        assert 0 < seconds < 10
    assert machine.seconds(matmul_point("float32", 1, 2**20, 2**20, 2)) is None or machine.gpu


def test_collectives_run_in_a_process_each() -> None:
    pytest.importorskip("torch")
    from llmir.backends.silicon.measure.kernels import collectives

    ops = ("all_reduce", "all_gather")
    found = collectives(2, "gloo", sizes=(4096, 65536), ops=ops)
    assert [(p.cells["op"], p["bytes"], p["num_gpus"]) for p, _ in found] == [
        (op, size, 2) for size in (4096, 65536) for op in ops
    ]
    assert all(s > 0 for _, s in found)
