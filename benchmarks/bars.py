"""Compare the errors of kernels with their goals, from the rows that `llmir validate` writes.

    llmir validate gemm.csv gemm_amd.csv moe.csv moe_amd.csv collective.csv elementwise_recent.csv -o rows.csv
    python benchmarks/bars.py rows.csv

The kernel models are fitted to these rows, so that the errors are in-sample; the printed ± is the mean error
on held-out shapes. Rows that are faster than the roofline are excluded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.whole import Row, errors, read

NVIDIA = ("A100", "H100", "H200", "B200", "L40S")


def on(*devices: str) -> Callable[[Row], bool]:
    """Whether a row is of these devices, by the first word of their names."""
    return lambda row: any(row["device"].startswith(name) for name in devices)


def of(file: str, where: Callable[[Row], bool] = lambda row: True, dtype: str = "") -> Callable[[Row], bool]:
    """Whether a row is of a file, and of a device and element type."""
    return lambda row: (
        row["file"].startswith(file) and where(row) and (not dtype or row["dtype"] in dtype.split(","))
    )


GOALS: dict[str, tuple[float, Callable[[Row], bool]]] = {
    "GEMM in 16 bits, data-center NVIDIA": (0.07, of("gemm.csv", on(*NVIDIA), "bf16,fp16,float16,bfloat16")),
    "GEMM, all types, data-center NVIDIA": (0.085, of("gemm.csv", on(*NVIDIA))),
    "experts": (0.12, of("moe.csv", on(*NVIDIA))),
    "collectives": (0.09, of("collective", on(*NVIDIA))),
    "collectives, RTX Pro 6000": (0.40, of("collective", on("RTX Pro", "RTX-Pro"))),
    "norms and rope of 2024 on": (0.15, of("elementwise_recent")),
    "GEMM, H20": (0.18, of("gemm.csv", on("H20-", "H20 "))),
    "GEMM, H800": (0.18, of("gemm.csv", on("H800"))),
    "GEMM, MI300X": (0.10, of("gemm_amd", on("MI300X"))),
    "GEMM, MI355X": (0.10, of("gemm_amd", on("MI355X"))),
}


def main(path: str) -> None:
    """A line for each goal."""
    rows = read(path)
    print("| kernels | rows | goal | mean error | median | bias | ± |\n|---|---|---|---|---|---|---|")
    for name, (goal, holds) in GOALS.items():
        if some := [r for r in rows if holds(r)]:
            number, *shares = errors(some)[:5]
            print(f"| {name} | {number:,} | {goal:.1%} | " + " | ".join(f"{x:.1%}" for x in shares) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
