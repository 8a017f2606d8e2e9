"""Kernels of AMD's GPUs against times that others published, and what their graphs and links do not do."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

import llmir
from llmir.backends.cost.transfer import nearest_fit
from llmir.backends.kernels.collective import CollectiveShape
from llmir.backends.kernels.gemm import GemmShape
from llmir.backends.kernels.moe import AiterMoe, RoutedShape
from llmir.hw import library
from llmir.hw.link import Link

KB, MB = 2**10, 2**20
# µs by bytes of vLLM's own all-reduce: ROCm/aiter#801 (two MI300X), vllm-project/vllm#19744 (four) and #39080
# (eight MI355X).
SUMS = {
    ("mi300x", 2): {4 * KB: 7.07, 64 * KB: 7.66, 512 * KB: 17.1, 2 * MB: 49.7, 16 * MB: 356, 128 * MB: 2788},
    ("mi300x", 4): {2 * KB: 7.18, 32 * KB: 7.58, 512 * KB: 14.7, 2 * MB: 36.6, 16 * MB: 230},
    ("mi355x", 8): {24 * KB: 6.3, 96 * KB: 7.6, 192 * KB: 10.0, 384 * KB: 13.1, 768 * KB: 16.0},
}
# m, n, k, µs of 16-bit products on MI300X: decodes of Qwen3-8B by SGLang, prompts of gpt-oss-20b by vLLM
# (AMD-AGI/TraceLens, tests/traces).
PRODUCTS = (
    *((32, 6144, 4096, 21.2), (32, 4096, 4096, 17.0), (32, 24576, 4096, 66.6), (32, 4096, 12288, 41.3)),
    *((32, 151936, 4096, 396.8), (8192, 5120, 2880, 382.0), (8192, 2880, 4096, 314.6)),
)


@pytest.mark.parametrize(("device", "ranks"), SUMS)
def test_sums_take_what_was_published(device: str, ranks: int) -> None:
    found = library.load(device)
    fit = nearest_fit(found, ("all_reduce",), "vllm")
    assert fit and fit.device == found
    times = SUMS[device, ranks]
    seconds = [fit.kernel.seconds(found, CollectiveShape(float(size), ranks)) for size in times]
    errors = [float(s) * 1e6 / us - 1 for s, us in zip(seconds, times.values(), strict=True)]
    assert fmean(map(abs, errors)) < 0.12, errors


def test_products_on_mi300x_take_what_profiles_say() -> None:
    device = library.load("mi300x")
    fit = nearest_fit(device, ("gemm_bf16",), "sglang")
    assert fit and fit.device == device
    m, n, k, us = np.array(PRODUCTS, float).T
    errors = fit.kernel.seconds(device, GemmShape(m, n, k)) * 1e6 / us - 1
    assert np.abs(errors).mean() < 0.1 and np.abs(errors).max() < 0.2, errors


def test_ranks_of_a_mesh_share_the_links_between_them() -> None:
    mesh, switched = Link(700.0, peers=7), Link(700.0)
    assert [mesh.among(n).Bps for n in (1, 2, 4, 8, 16)] == [700, 100, 300, 700, 700]
    assert all(switched.among(n) == switched for n in (2, 4, 8))
    assert library.load("mi300x").link(2)[1].Bps == 64e9  # one of seven links of 64 GB/s, AMD's data sheet
    assert library.load("h100-sxm").link(2) == library.load("h100-sxm").link(8)


def test_graphs_of_amd_hide_no_launch() -> None:
    """In a profile of SGLang's graph on MI300X norms and copies take 4.3 µs at least, and 4.8 on average."""
    step = llmir.analyze(
        "qwen3-8b", "mi300x", batch=32, new=1, context=1024, estimation=llmir.Estimation(engine="sglang")
    )
    small = {op.name: op.time_s * 1e6 for op in step.ops if "norm" in op.name or "rope" in op.name}
    assert small
    assert all(4.3 < us < 6 for us in small.values()), small


def test_experts_activate_and_add_up_inside_of_their_products() -> None:
    device = library.load("mi355x")
    for family in ("moe_fp8", "moe_fp8_block", "moe_mxfp4", "moe_nvfp4"):
        fit = nearest_fit(device, (family,), "vllm")
        assert fit and isinstance(fit.kernel, AiterMoe)
        shape = RoutedShape(64, 512, 7168)
        assert fit.kernel.activation(device, shape) == fit.kernel.combine(device, shape) == 0
        assert 0 < fit.kernel.dispatch(device, shape) < fit.kernel.streamed(device, 512 * 7168)


@pytest.mark.parametrize("model", ["deepseek-v3", "minimax-m2", "gpt-oss-120b"])
def test_atom_launches_fewer_kernels_than_vllm(model: str) -> None:
    def kernels(engine: str) -> dict[str, float]:
        parallel = llmir.Parallel(tp=8)
        estimation = llmir.Estimation(engine=engine)
        step = llmir.analyze(
            model, "mi355x", batch=8, new=1, context=1024, parallel=parallel, estimation=estimation
        )
        return {op.name: op.time_s for op in step.ops}

    ours, theirs = kernels("atom"), kernels("vllm")
    joined = [
        name for name in ours.keys() & theirs.keys() if "rope" in name or name.endswith(("q_norm", "k_norm"))
    ]
    assert all(ours[name] <= theirs[name] * 1.001 for name in joined)
    assert sum(ours.values()) < sum(theirs.values())
