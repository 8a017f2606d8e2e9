"""Kernels that are borrowed: how near two GPUs are, what changes on the way, how far off they then are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.cost.transfer import (
    DIE,
    basis,
    combine_errors,
    device_error,
    engine_error,
    relation,
    transfer_sources,
    transfer_to,
)
from llmir.backends.kernels.attention import AttentionShape, DecodeAttention, PrefillAttention
from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.backends.silicon.calibrate.transfer import WITHIN, TransferCase, band_coverage, relation_bands
from llmir.backends.silicon.validate.estimates import cost_model_choice
from llmir.base.errors import InputError
from llmir.hw import library, transfer

H100, H20 = library.load("h100-sxm"), library.load("h20")
LARGE = GemmShape(m=8192, n=8192, k=8192)


def test_rates_of_one_die_and_of_two_lie_apart() -> None:
    """So that any ratio between, as `DIE` is one, tells them apart: clocks differ by less than designs do."""
    gpus = [d for d in map(library.load, library.names()) if d.isa and d.multiprocessors]
    ratios = []
    for one, other in combinations(gpus, 2):
        if one.isa == other.isa and one.memory_kind[:3] == other.memory_kind[:3]:
            slow, fast = sorted(d.matrix_peak("bf16")[0] / (d.multiprocessors or 1) for d in (one, other))
            ratios.append(fast / slow)
    near = [r for r in ratios if 0.99 * DIE <= r <= 1.06 * DIE]
    assert not near, f"near the limit DIE = {DIE}: do these GPUs have one die? Move it accordingly"


@pytest.mark.parametrize(
    ("device", "other", "expected"),
    [
        ("h200", "h100-sxm", "same die"),
        ("h800", "h100-sxm", "same die"),
        ("gb200", "b200", "same die"),
        ("a30", "a100-80-sxm", "same die"),
        ("mi325x", "mi300x", "same die"),
        ("h20", "h100-sxm", "same SM"),
        ("rtx4090", "l40s", "same SM"),
        ("b200", "h100-sxm", "other SM"),
        ("rtx-pro-6000", "l40s", "other SM"),
        ("l40s", "h100-sxm", "other memory"),
        ("mi300x", "h100-sxm", "other vendor"),
    ],
)
def test_what_two_gpus_have_in_common(device: str, other: str, expected: str) -> None:
    assert relation(library.load(device), library.load(other)) == expected


def test_a_farther_relation_is_never_narrower() -> None:
    table = transfer.table()
    for group in {kernel.group for kernel in KERNELS.values()} - {""}:
        far = [table[name][group] for name in transfer.RELATIONS]
        assert far == sorted(far)
        assert far[0] > 0


def test_every_kernel_that_a_gpu_can_borrow_is_of_a_group_that_was_measured() -> None:
    gpus = (
        f for f, kernel in KERNELS.items() if not f.startswith("cpu_") and not issubclass(kernel, EngineCpu)
    )
    of_gpus = {f: KERNELS[f] for f in gpus}
    assert {kernel.group for kernel in of_gpus.values()} == {*transfer.table()["other SM"]}
    assert all(engine_error(family) > 0 for family in of_gpus)


def test_the_file_is_what_the_command_writes() -> None:
    percents = {r: {g: 100 * v for g, v in groups.items()} for r, groups in transfer.table().items()}
    assert transfer.to_yaml(percents) == transfer.FILE.read_text(encoding="utf-8")


def test_a_kernel_at_home_has_its_own_error_and_parameters() -> None:
    fit = basis(H100, "gemm_bf16", "vllm")
    assert fit
    assert device_error(H100, H100, "gemm_bf16") == 0
    assert vars(transfer_to(fit.kernel, H100, H100)) == pytest.approx(vars(fit.kernel))
    assert combine_errors(fit.fitted.error, 0.0) == fit.fitted.error


def test_slow_matrix_units_are_nearer_to_their_peak() -> None:
    """H20 has the multiprocessors and clocks of H100 and a fifth of its matrix rate."""
    home = GemmKernel(rate=0.8, sustained=0.85)
    moved = transfer_to(home, H20, H100)
    share = (
        2 * 8192**3 / H20.matrix_peak("bf16")[0] / np.array([k.seconds(H20, LARGE) for k in (home, moved)])
    )
    assert share[0] < 0.75
    assert 0.9 < share[1] < 1


@pytest.mark.parametrize("kernel", [GemmKernel(rate=0.8), PrefillAttention(), DecodeAttention(alone=0.5)])
@pytest.mark.parametrize("borrower", ["h20", "h200", "a100", "rtx4090"])
@pytest.mark.parametrize("rate", ["matrix", "vector", "memory"])
def test_a_borrowed_kernel_is_never_slower_where_a_rate_is_raised(
    kernel: Any, borrower: str, rate: str
) -> None:
    device = library.load(borrower)
    raised = {
        "matrix": {"matrix_flops": {name: 1.2 * v for name, v in device.matrix_flops.items()}},
        "vector": {"vector_flops": {name: 1.2 * v for name, v in device.vector_flops.items()}},
        "memory": {"memory_Bps": 1.2 * device.memory_Bps},
    }
    faster: Any = replace(device, **raised[rate])  # type: ignore[arg-type]
    rows = np.array([1.0, 7, 64, 300, 4096])
    new = 1.0 if isinstance(kernel, DecodeAttention) else rows
    shape: Any = (
        GemmShape(m=rows, n=4096, k=4096)
        if isinstance(kernel, GemmKernel)
        else AttentionShape(batch=rows, new=new, cached=1024.0, kv_heads=8, group=4, head=128)
    )
    before, after = (transfer_to(kernel, d, H100).seconds(d, shape) for d in (device, faster))
    assert (after <= before * (1 + 1e-12)).all()


def test_two_of_three_rows_lie_within_the_bands_that_loans_make() -> None:
    """Errors of any spread, of cases of any length."""
    random = np.random.default_rng(0)
    found = [_loan(name, random.normal(0, spread, rows)) for name, spread, rows in SPREADS]
    table = relation_bands(found)
    for name in {name for name, *_ in SPREADS}:
        one, two = band_coverage([loan for loan in found if loan.relation == name], table)
        assert one == pytest.approx(WITHIN, abs=0.02)
        assert 0.85 < two < 0.97
    assert table["same SM"]["products"] <= table["other SM"]["products"] <= table["other memory"]["products"]


SPREADS = [
    ("other SM", 0.2, 4000),
    ("other SM", 0.3, 900),
    ("other memory", 0.6, 2000),
    ("other vendor", 0.9, 3000),
    ("other engine", 0.3, 1000),
]


def _loan(relation: str, off: Any) -> TransferCase:
    case: Any = SimpleNamespace(families=("gemm_bf16",))
    return TransferCase(case, relation, H100, "vllm", 0.08, off)


def test_an_engine_that_lends_a_kernel_widens_its_band() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    own, other = (
        {
            op.name: op
            for op in llmir.analyze(program, "h100", batch=4, estimation=llmir.Estimation(engine=engine)).ops
        }["layer.qkv_proj"]
        for engine in ("vllm", "hf-transformers")
    )
    assert (str(own.basis), str(other.basis)) == ("calibrated", "calibrated for vllm")
    assert own.error
    assert other.error == pytest.approx(combine_errors(own.error, engine_error("gemm_bf16")))


def test_rows_without_their_device_borrow_its_relatives_kernels() -> None:
    plain, alone, other = (cost_model_choice("calibrated", without) for without in (None, "device", "engine"))
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    steps = [by.step(program, H100, "vllm", 8, 1, 512) for by in (plain, alone, other)]
    products = [{op.name: op for op in step.ops}["layer.qkv_proj"] for step in steps]
    said = ["calibrated", "transferred from A100-80-SXM", "calibrated for sglang"]
    assert [str(product.basis) for product in products] == said
    with pytest.raises(InputError, match="the roofline uses no measured kernels"):
        cost_model_choice("ideal", "device")
    with pytest.raises(InputError, match="without"):
        cost_model_choice("calibrated", "host")


@pytest.mark.parametrize("name", ["mi300x", "mi250", "rtx4090", "a40", "v100-32", "h20"])
def test_a_raised_rate_does_not_change_whose_kernels_are_taken(name: str) -> None:
    device = library.load(name)
    rates = {dtype: 4 * rate for dtype, rate in device.matrix_flops.items()}
    faster = replace(device, matrix_flops=rates, memory_Bps=4 * device.memory_Bps)
    assert transfer_sources(faster) == transfer_sources(device)


def test_a_file_that_states_other_rates_keeps_kernels_and_widens_their_band() -> None:
    """As of another device of the same die: of links for collectives, of the chip for all else."""
    half = replace(H100, memory_Bps=H100.memory_Bps / 2)
    slow = replace(H100, matrix_flops={**H100.matrix_flops, "bf16": 4e14})
    links = {name: replace(link, Bps=link.Bps / 2) for name, link in H100.links.items()}
    for device, products, sums in (
        (replace(H100, memory_bytes=2 * H100.memory_bytes, name="double"), "", ""),
        (half, transfer.SAME_DIE, ""),
        (slow, transfer.SAME_SM, ""),
        (replace(H100, links=links), "", transfer.SAME_DIE),
    ):
        for family, group, expected in (
            ("gemm_bf16", "products", products),
            ("all_reduce", "collectives", sums),
        ):
            fit = basis(device, family)
            assert fit is not None
            assert fit.kernel == getattr(basis(H100, family), "kernel", None)
            wider = device_error(device, fit.device, family)
            assert wider == (transfer.table()[expected][group] if expected else 0.0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("name", "peak"), [("h100-sxm", 1.05), ("h100-sxm", 1.5), ("h200", 1.5)])
def test_a_step_at_other_rates_is_further_off_than_whole_runs_were(
    name: str, peak: float, engine: str
) -> None:
    """No run was of such a device: what its kernels are further off comes on top of what the engine was."""
    program = llmir.run(llmir.load("llama3.2-1b"), llmir.pipeline_of(engine))
    device = library.load(name)
    rates = {dtype: peak * rate for dtype, rate in device.matrix_flops.items()}
    bare, other = (
        llmir.analyze(program, of, batch=8, new=1, context=1000, estimation=llmir.Estimation(engine=engine))
        for of in (device, replace(device, matrix_flops=rates))
    )
    kind = transfer.SAME_DIE if peak <= DIE else transfer.SAME_SM
    known = set(transfer.table()[transfer.SAME_DIE].values()) if name == "h200" else {0.0}
    (most,), (least,) = set(transfer.table()[kind].values()), known
    added = (most**2 - least**2) ** 0.5
    host = bare.plan.model.host_error
    assert host
    assert added
    assert float(other.error or 0) >= combine_errors(host, added) * (1 - 1e-12)
    assert float(other.error or 0) > float(bare.error or 0)
    assert all((a.error or 0) < (b.error or 0) for a, b in zip(bare.work, other.work, strict=True) if a.error)
