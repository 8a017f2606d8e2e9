"""Products and experts on every bundled GPU, by its own kernels or borrowed ones: no cliffs, and no gifts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from llmir.backends.cost.transfer import MIN_MULTIPROCESSORS, KernelFit, kernel_sources, nearest_fit
from llmir.backends.kernels.gemm import GemmKernel, GemmShape
from llmir.backends.kernels.moe import GroupedShape, MoeKernel
from llmir.hw import library
from llmir.hw.device import Device

# Bits of x and w, and the arithmetic, of each family.
PRODUCTS = {
    "gemm_bf16": (16, 16, "bf16"),
    "gemm_fp8": (8, 8, "fp8"),
    "gemm_fp8_block": (8, 8, "fp8"),
    "gemm_nvfp4": (4.5, 4.5, "fp4"),
    "gemm_int8": (8, 8, "int8"),
    "gemm_int8_weights": (16, 8, "bf16"),
    "gemm_int4_weights": (16, 4.125, "bf16"),
    "bmm_bf16": (16, 16, "bf16"),
    "bmm_fp8": (8, 8, "fp8"),
}
EXPERTS = {
    "moe_bf16": (16, 16, "bf16"),
    "moe_fp8": (8, 8, "fp8"),
    "moe_fp8_block": (8, 8, "fp8"),
    "moe_nvfp4": (4.5, 4.5, "fp4"),
    "moe_mxfp4": (8.25, 4.25, "fp8"),
    "moe_mxfp4_weights": (16, 4.25, "bf16"),
    "moe_int4_weights": (16, 4.125, "bf16"),
}
WEIGHTS = ((4096, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (128256, 4096), (7168, 2048), (512, 512))
COUNTS = np.unique([*range(1, 300), *np.geomspace(300, 32768, 100).astype(int)]).astype(float)
GPUS = [name for name in library.names() if (library.load(name).multiprocessors or 0) >= MIN_MULTIPROCESSORS]


@lru_cache(maxsize=64)
def fits(name: str, families: tuple[str, ...]) -> tuple[KernelFit, ...]:
    """Each kernel that some engine would take for one of these families."""
    device = library.load(name)
    found = {
        (fit.family, fit.engine, fit.device.name): fit
        for family in families
        for engine in kernel_sources(device)
        if (fit := nearest_fit(device, (family,), engine))
    }
    return tuple(found.values())


def products(name: str) -> Iterator[tuple[KernelFit, GemmShape]]:
    for fit in fits(name, tuple(PRODUCTS)):
        x, w, dtype = PRODUCTS[fit.family.removeprefix("cdna_")]
        batch = 128 if fit.family.startswith("bmm") else 1
        for n, k in WEIGHTS:
            yield fit, GemmShape(COUNTS, n, k, batch=batch, x_bits=x, w_bits=w, dtype=dtype)


MIXTURES = ((128, 8), (16, 2))  # experts, and how many of them a token chooses


def experts(name: str) -> Iterator[tuple[KernelFit, GroupedShape, int, int]]:
    """Products of so many tokens, by mixture."""
    for fit in fits(name, tuple(EXPERTS)):
        x, w, dtype = EXPERTS[fit.family.removeprefix("cdna_")]
        for (n, k), (count, top) in product(WEIGHTS[:4], MIXTURES):
            shape = GroupedShape(0, 0, n, k, x_bits=x, w_bits=w, dtype=dtype)
            yield fit, routed(shape, COUNTS, count, top), count, top


def routed(shape: GroupedShape, tokens: Any, count: int, top: int) -> GroupedShape:
    return replace(shape, rows=top * tokens, experts=count * (1 - (1 - top / count) ** tokens), top_k=top)


def seconds(fit: KernelFit, device: Device, shape: Any) -> Any:
    return np.asarray(fit.kernel.seconds(device, shape))


def wave(device: Device, kernel: GemmKernel, shape: GemmShape) -> float:
    """Seconds of one tile on each multiprocessor, of the largest, at the clock that lasts."""
    tall, wide = kernel.tiles[-1]
    one = replace(shape, m=float(tall), n=float(wide * (device.multiprocessors or 1)), batch=1)
    return float(kernel.seconds(device, one)) / kernel.sustained


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize("name", GPUS)
def test_one_more_row_costs_its_share_and_a_wave_of_tiles_at_most(name: str) -> None:
    device = library.load(name)
    for fit, shape in products(name):
        kernel = fit.kernel
        assert isinstance(kernel, GemmKernel)
        time, more = (seconds(fit, device, replace(shape, m=m)) for m in (COUNTS, COUNTS + 1))
        assert (np.diff(time) >= -1e-9 * time[1:]).all(), (fit.family, fit.engine, shape.n, shape.k)
        assert (more >= time * (1 - 1e-9)).all()
        most = time * (1 + 1 / COUNTS) + kernel.launch_us * 1e-6 + wave(device, kernel, shape)
        assert (more <= most).all(), (fit.family, fit.engine, shape.n, shape.k)


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("name", GPUS)
def test_two_rows_of_a_product_cost_hardly_more_than_one(name: str) -> None:
    """Weights are what is read, once for both."""
    device = library.load(name)
    for fit, shape in products(name):
        one, two = seconds(fit, device, replace(shape, m=np.array([1.0, 2.0])))
        assert two <= 1.3 * one, (fit.family, fit.engine, shape.n, shape.k)


@pytest.mark.parametrize("name", GPUS)
def test_one_more_token_of_experts_costs_its_share_at_most(name: str) -> None:
    """And a launch: with many experts a row more of each is many waves of tiles, and none is allowed."""
    device = library.load(name)
    for fit, shape, count, top in experts(name):
        kernel = fit.kernel
        assert isinstance(kernel, MoeKernel)
        time, more = (seconds(fit, device, routed(shape, m, count, top)) for m in (COUNTS, COUNTS + 1))
        where = fit.family, fit.engine, shape.n, shape.k
        assert (np.diff(time) >= -1e-9 * time[1:]).all(), where
        assert (more >= time * (1 - 1e-9)).all(), where
        assert (more <= time * (1 + 1 / COUNTS) + kernel.launch_us * 1e-6).all(), where


FASTER = {
    "memory": lambda d: replace(d, memory_Bps=1.5 * d.memory_Bps),
    "matrix": lambda d: replace(d, matrix_flops={t: 1.5 * f for t, f in d.matrix_flops.items()}),
    "vector": lambda d: replace(d, vector_flops={t: 1.5 * f for t, f in d.vector_flops.items()}),
    "L2": lambda d: replace(d, l2_bytes=2 * (d.l2_bytes or 0)),
}


@pytest.mark.mostly_slow(17)
@pytest.mark.parametrize("rate", FASTER)
@pytest.mark.parametrize("name", GPUS)
def test_the_same_gpu_with_one_rate_raised_is_never_slower(name: str, rate: str) -> None:
    device = library.load(name)
    faster = FASTER[rate](device)
    for fit, shape, *_ in (*products(name), *experts(name)):
        assert (seconds(fit, faster, shape) <= seconds(fit, device, shape) * (1 + 1e-9)).all(), fit.family
