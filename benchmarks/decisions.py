"""What a sweep, a simulation and a plan take: CPU seconds on one core, beside a yardstick of the same run.

    python benchmarks/decisions.py [--times N] [--only WORD]

A sweep of a million steps of Llama-3.1-405B by calibrated kernels, before it is written; requests of
Llama-3.1-8B on one H100, with percentiles, as `llmir serve-sim llama3.1-8b --rate 18 --prompt
lognormal:512,0.6 --generate lognormal:200,0.6` has them; plans for 20 requests/s of 4,000 tokens in and 500
out, within 1 s and 30 ms for 99% of them. Each runs in a process of its own, so that nothing of it is known;
before it imports and calibrations are read, and a first sweep is done. Of N runs the least counts, and the
least ratio to the yardstick: a loop of a million additions, before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def sweep(rows: int) -> str:
    """Steps of batches up to 1,000 at as many contexts."""
    import llmir

    program = llmir.run(llmir.load("Llama-3.1-405B"), llmir.pipeline_of())
    axes = {"hw": "h100-sxm", "batch": "1:1000", "context": f"64:{rows // 1000 * 64}:64"}
    found = llmir.sweep(program, axes, pipeline="")
    return f"{len(found.columns['time_s']):,} rows"


def simulate(requests: int) -> str:
    """Requests that come by chance."""
    import llmir

    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    come: dict[str, Any] = {"rate": 18, "prompt": "lognormal:512,0.6", "generate": "lognormal:200,0.6"}
    found = llmir.simulate(model, "h100-sxm", llmir.Traffic(requests=requests, **come))
    ttft = found.latencies["ttft"]
    return f"p99 TTFT {1e3 * ttft.p99:.1f} ms" if ttft else "no first token"


def plan(model: str, hw: str, gpus: int, rate: float = 20, requests: int = 1000) -> str:
    """The first plan, and how many there are by closed form."""
    import llmir

    traffic = llmir.Traffic(rate=rate, prompt=4000, generate=500, requests=requests)
    found = llmir.plan(model, hw, traffic, gpus=gpus, max_ttft="1s", max_tpot="30ms")
    best = found.best and f"{found.best.devices} × {found.best.structure.name}"
    return f"{found.points.rate.size:,} plans, {len(found.shown)} simulated; first: {best or 'none'}"


Run = Callable[[], str]
CASES: dict[str, tuple[float, Run, Run]] = {  # the goal in seconds, what is timed, and what is run before
    "a sweep of a million rows": (0.2, partial(sweep, 1_000_000), partial(sweep, 1_000_000)),
    "19,366 requests": (0.5, partial(simulate, 19_366), partial(simulate, 10)),
    "a million requests": (10.0, partial(simulate, 1_000_000), partial(simulate, 10)),
    "plan of Qwen3-32B, 32 GPUs": (
        2.0,
        partial(plan, "Qwen/Qwen3-32B", "h100-sxm,h200", 32),
        partial(plan, "llama3.1-8b", "b200", 1, rate=1, requests=100),
    ),
    "plan of Qwen3-235B-A22B, 64 GPUs": (
        5.0,
        partial(plan, "Qwen/Qwen3-235B-A22B", "h200", 64),
        partial(plan, "llama3.1-8b", "b200", 1, rate=1, requests=100),
    ),
}


def timed(run: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def loop() -> int:
    total = 0
    for i in range(1_000_000):
        total += i
    return total


def once(name: str) -> None:
    """One run as JSON: its seconds, the yardstick's, and what was found."""
    _, run, before = CASES[name]
    before()
    first, _ = timed(loop)
    seconds, found = timed(run)
    last, _ = timed(loop)
    print(json.dumps([seconds, (first + last) / 2, found]))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sweep, a simulation and a plan take.")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        once(asked.once)
        return
    one_core = {**os.environ, **dict.fromkeys(ONE_CORE, "1")}
    print(f"{'seconds':34}{'goal':>8}{'measured':>10}{'ratio':>8}", flush=True)
    for name, (goal, _, _) in CASES.items():
        if asked.only not in name:
            continue
        command = [sys.executable, __file__, "--once", name]
        texts = [
            subprocess.run(command, env=one_core, check=True, capture_output=True, text=True).stdout
            for _ in range(asked.times)
        ]
        runs = [json.loads(text) for text in texts]
        least, ratio = min(run[0] for run in runs), min(run[0] / run[1] for run in runs)
        print(f"{name:34}{goal:8g}{least:10.2f}{ratio:8.1f}  {runs[0][2]}", flush=True)


if __name__ == "__main__":
    main()
