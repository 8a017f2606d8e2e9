"""What a plan takes, from a config to the simulated front: CPU seconds on one core, without imports.

    python benchmarks/planning.py [--times N]

Qwen3-32B on up to 32 H100 or H200, and Qwen3-235B-A22B on up to 64 H200; 20 requests/s of 4,000 tokens in
and 500 out, within 1 s and 30 ms for 99% of them. Each runs in a process of its own, so that nothing is
known before; the least of N is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
PLANS = {  # model: devices, how many at most, and the target in seconds
    "Qwen/Qwen3-32B": ("h100-sxm,h200", 32, 2.0),
    "Qwen/Qwen3-235B-A22B": ("h200", 64, 5.0),
}


def once(model: str) -> None:
    """One plan: seconds, plans by closed form, plans that were simulated, and the first."""
    import llmir
    import llmir.backends.export.plan

    asked = {"rate": 20, "prompt": 4000, "generate": 500, "max_ttft": "1s", "max_tpot": "30ms"}
    hw, gpus, _ = PLANS[model]
    llmir.plan("llama3.1-8b", "b200", rate=1, gpus=1, requests=100)  # imports, and nothing of this plan
    start = time.process_time()
    found = llmir.plan(model, hw, gpus=gpus, **asked)
    seconds, best = time.process_time() - start, found.best
    first = f"{best.devices} × {best.structure.device.name}, {best.structure.split}" if best else "none"
    print(f"{seconds}\t{found.points.rate.size:,} plans, {len(found.shown)} simulated; first: {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a plan takes.")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        once(asked.one)
        return
    one_core = {**os.environ, **dict.fromkeys(ONE_CORE, "1")}
    for model, (_, _, target) in PLANS.items():
        command = [sys.executable, __file__, "--one", model]
        runs = [
            subprocess.run(command, env=one_core, check=True, capture_output=True, text=True).stdout.split(
                "\t"
            )
            for _ in range(asked.times)
        ]
        seconds, what = min((float(took), what.strip()) for took, what in runs)
        print(f"{model:24}{seconds:7.2f} s (target {target:g} s)  {what}", flush=True)


if __name__ == "__main__":
    main()
