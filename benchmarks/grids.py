"""How much memory many points take: the growth of a process that prices ten million of them.

    python benchmarks/grids.py [--points MILLIONS]

Time and peak memory of a model by default kernels, whose results are 16 bytes a point; each kind of array in
a process of its own, whose peak is told by the system.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from typing import Any

MODEL, DEVICE, COLUMNS = "Llama-3.1-8B", "h100-sxm", 10_000
KINDS = ("decode grid", "prompt grid", "flat decodes", "flat, several lengths")


def points(kind: str, rows: int) -> dict[str, Any]:
    """The points of a kind: rows × 10,000."""
    import numpy as np

    random, count = np.random.default_rng(0), rows * COLUMNS
    if kind.endswith("grid"):
        new = 1 if kind.startswith("decode") else 64
        return {"batch": np.arange(1, rows + 1)[:, None], "new": new, "context": np.arange(COLUMNS)[None] * 8}
    new = 1 if kind == "flat decodes" else random.integers(1, 4096, count)
    return {
        "batch": random.integers(1, 1001, count),
        "new": new,
        "context": random.integers(0, 131_072, count),
    }


def grown(kind: str, rows: int) -> None:
    """Prints MiB beyond those of a small grid, and CPU seconds."""
    import llmir

    program = llmir.run(llmir.load(MODEL), llmir.pipeline_of())

    def price(at: dict[str, Any]) -> object:
        step = llmir.analyze(program, DEVICE, **at)
        return step.time_s, step.peak_memory_bytes

    price(points(kind, 1))
    at = points(kind, rows)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    kept = price(at)
    after, took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time() - start
    assert kept
    print(
        f"{kind:24}{rows * COLUMNS / 1e6:8.1f} million{(after - before) / 1024:8.0f} MiB{took:8.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How much memory many points take.")
    parser.add_argument("--points", type=float, default=10, help="millions")
    parser.add_argument("--kind", choices=KINDS, help="one kind, in this process")
    asked = parser.parse_args()
    rows = max(1, int(asked.points * 1e6 / COLUMNS))
    if asked.kind:
        return grown(asked.kind, rows)
    for kind in KINDS:
        command = [sys.executable, __file__, "--kind", kind, "--points", str(asked.points)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
