"""Compare the errors of kernels with their goals, from the rows that `llmir validate` writes.

    llmir validate gemm.csv gemm_amd.csv moe.csv moe_amd.csv collective.csv elementwise_recent.csv -o rows.csv
    python benchmarks/bars.py rows.csv

Laws are fitted to these rows, so that the errors are in sample; the printed ± is the mean error on shapes
left out of the fit. Left out are rows that are faster than a roofline.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from statistics import fmean, median

Row = dict[str, str]
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
    with open(path, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["predicted_s"] and r["measured_s"] and not r["exceeds"]]
    print("| kernels | rows | goal | mean error | median | bias | ± |\n|---|---|---|---|---|---|---|")
    for name, (goal, holds) in GOALS.items():
        some = [r for r in rows if holds(r)]
        if not some:
            print(f"| {name} | 0 | {goal:.1%} | – | – | – | – |")
            continue
        errors = [float(r["predicted_s"]) / float(r["measured_s"]) - 1 for r in some]
        sizes, bands = [abs(e) for e in errors], [float(r["band"]) for r in some if r["band"]]
        numbers = (
            f"{fmean(sizes):.1%} | {median(sizes):.1%} | {fmean(errors):+.1%} | {fmean(bands or [0]):.1%}"
        )
        print(f"| {name} | {len(some):,} | {goal:.1%} | {numbers} |")


if __name__ == "__main__":
    main(sys.argv[1])
