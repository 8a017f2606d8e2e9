"""The peak by which `a100-station` multiplies, fitted to forward passes: `python benchmarks/station.py DIR`.

DIR/e2e.csv has optimum-benchmark's rows. One number, by least squares of the logarithms of predicted over
measured times to the first token, of models in 16 bits.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import minimize_scalar

import llmir
from llmir.backends.silicon.rows import Array

SOURCE = "optimum_benchmark"
# All in 16 bits, by several kernels of attention.
RUNS = {f"hf-transformers(eager) fp16{more}" for more in ("", "+bt", "+fa2")}
# What others have of a type, by what 16 bits have: NVIDIA's own ratios for A100.
RATES = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "int8": 2.0, "int4": 4.0}


def ratios(folder: Path, tflops: float) -> Array:
    """Predicted over measured times to the first token, at this peak."""
    rates = ", ".join(f"{dtype}: {tflops * rate:.6g}" for dtype, rate in RATES.items())
    text = f"extend: a100-80-sxm\nname: station at {tflops:.6g}\nmatrix_tflops: {{{rates}}}\n"
    (folder / "a100-station.yaml").write_text(f"{text}sources: {{matrix_tflops: a trial}}\n")
    found = llmir.validate(folder / "e2e.csv").rows
    return np.array([row.predicted_s / row.measured_s for row in found if row.metric == "ttft"])


def main(measured: str) -> None:
    """Print the peak and the errors by it, and by NVIDIA's own."""
    with TemporaryDirectory() as name, open(Path(measured) / "e2e.csv", encoding="utf-8") as table:
        head, *rows = csv.reader(table)
        folder, at = Path(name), head.index
        kept = [r for r in rows if r[at("source")] == SOURCE and r[at("framework")] in RUNS]
        with open(folder / "e2e.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([head, *kept])

        def squares(tflops: float) -> float:
            return float(np.sum(np.log(ratios(folder, tflops)) ** 2))

        best = minimize_scalar(squares, bounds=(100, 312), method="bounded", options={"xatol": 0.1}).x
        for tflops in (best, 312):
            off = ratios(folder, tflops) - 1
            print(
                f"{tflops:.0f} TFLOP/s: {len(off)} first tokens, {np.mean(abs(off)):.1%} off in the mean, "
                f"{np.median(abs(off)):.1%} at the median, {np.mean(off):+.1%} bias"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
