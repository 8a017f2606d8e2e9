"""y[m,n] = x[m,k]·w[k,n]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmir.dim import Number
from llmir.hw import Device

from .base import Kernel, Shape, parameter


@dataclass(frozen=True)
class GemmShape(Shape):
    """`batch` products m×k · k×n; bits an element of x, w and y; the dtype that computes.

    `quantizes` says that the kernel narrows x itself, from 16 bits.
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1
    x_bits: float = 16
    w_bits: float = 16
    y_bits: float = 16
    dtype: str = "bf16"
    quantizes: bool = False


@dataclass(frozen=True)
class Gemm(Kernel):
    """Placeholder for the interface; the physics comes next."""

    compute: float = parameter(0.8, 0.2, 1, "", "achieved share of the matrix peak")
    bandwidth: float = parameter(0.8, 0.2, 1, "", "achieved share of the memory bandwidth")
    launch_us: float = parameter(3, 0.1, 30, "µs", "fixed time of a call")

    def seconds(self, device: Device, shape: GemmShape) -> Number:
        """Time of one call."""
        m, n, k = shape.m, shape.n, shape.k
        peak = device.matrix_peak(shape.dtype)[0]
        moved = (m * k * shape.x_bits + k * n * shape.w_bits + m * n * shape.y_bits) / 8 * shape.batch
        compute = 2.0 * m * n * k * shape.batch / (peak * self.compute)
        memory = moved / (device.memory_Bps * self.bandwidth)
        return np.maximum(compute, memory) + self.launch_us * 1e-6
