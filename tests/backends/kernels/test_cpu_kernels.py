"""A CPU's kernels: never falling, tiles as PyTorch walks them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.backends.cost.transfer import device_family
from llmir.backends.kernels.attention import AttentionShape
from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.cpu import CpuAttention, CpuGemm
from llmir.backends.kernels.gemm import GemmShape
from llmir.backends.kernels.stream import ElementwiseKernel
from llmir.hw import library

CPU = library.load("cpu")
SHARES = st.floats(0.1, 1)


@given(
    st.builds(CpuGemm, rate=SHARES, bandwidth=SHARES, packing=SHARES, tile_rows=st.sampled_from((1, 4, 8)))
)
def test_a_product_on_a_cpu_is_never_faster_for_being_larger(kernel: CpuGemm) -> None:
    m, n, k = np.meshgrid((1, 2, 3, 8, 9, 64, 1000), (1, 100, 4096), (1, 100, 4096), indexing="ij")
    given_ = GemmShape(m, n, k, x_bits=32, w_bits=32, y_bits=32, dtype="fp32")
    times = np.asarray(kernel.seconds(CPU, given_))
    assert all(np.all(np.diff(times, axis=axis) >= 0) for axis in range(3))


def brute_force(new: int) -> int:
    """Pairs of a query tile's head that PyTorch's loop walks through, causal, nothing cached."""
    tile = 256 if new >= 768 else 64 if new >= 192 else 32
    keys = 0
    for first in range(0, new, tile):
        last = min(first + tile, new)
        keys += sum(min(512, new - at) for at in range(0, last, 512))
    return keys


@pytest.mark.parametrize("new", [1, 16, 32, 128, 192, 512, 768, 1024, 2048, 8192])
def test_a_causal_walk_over_tiles_is_that_of_pytorchs_loop(new: int) -> None:
    kernel = CpuAttention(fetch_ns=20, matrix=1, softmax=1, block_us=0.01, launch_us=0.5)
    device = replace(CPU, cores=1, vector_flops={"fp32": 1e18}, matrix_flops={"bf16": 1e18}, memory_Bps=1e18)
    seconds = kernel.seconds(device, AttentionShape(1, new, 0, 1, 1, 64))
    assert seconds == pytest.approx(brute_force(new) * 64 * 20e-9 + 0.5e-6, rel=1e-2)


def test_a_cpu_takes_its_own_kernels_of_the_same_rows() -> None:
    assert KERNELS[device_family("gemm_fp32", CPU)] is CpuGemm
    assert KERNELS[device_family("stream", CPU)] is ElementwiseKernel
    assert device_family("gemm_fp32", library.load("h100-sxm")) == "gemm_fp32"
