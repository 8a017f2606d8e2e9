"""Figures of a report, and whether two reports agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FIGURES = (
    "time_s",
    "flops",
    "matmul_flops",
    "read_bytes",
    "write_bytes",
    "comm_bytes",
    "weight_bytes",
    "kv_cache_bytes",
    "activation_peak_bytes",
    "peak_memory_bytes",
)


def figures(report: Any) -> dict[str, float]:
    return {name: getattr(report, name) for name in FIGURES}


def close(a: Mapping[str, float], b: Mapping[str, float], relative: float = 1e-12) -> bool:
    return all(math.isclose(a[k], b[k], rel_tol=relative) for k in a)
