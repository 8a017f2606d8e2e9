"""How fast the simulator is: `python -m benchmarks.simulate [requests]`, on one core.

Requests of Llama-3.1-8B on one H100, as `llmir serve-sim llama3.1-8b --rate 18 --prompt lognormal:512,0.6
--generate lognormal:200,0.6` has them; percentiles and tables of prices included, imports and lowering not.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import llmir

LOADS = ((19_366, 0.5), (1_000_000, 10.0))  # requests, and the seconds that are the goal


def main(*only: str) -> None:
    """A line a load: processor seconds, the goal, the time of a request."""
    model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    asked: dict[str, Any] = {"rate": 18.0, "prompt": "lognormal:512,0.6", "generate": "lognormal:200,0.6"}
    llmir.simulate(model, "h100-sxm", requests=10, **asked)  # reads calibrations
    for requests, goal in [(int(n), float("nan")) for n in only] or LOADS:
        begin = time.process_time()
        found = llmir.simulate(model, "h100-sxm", requests=requests, **asked)
        p99 = found.latencies["ttft"].p99
        seconds = time.process_time() - begin
        each = f"{1e6 * seconds / requests:.1f} µs a request"
        print(
            f"{requests:>9,} requests: {seconds:.2f} s (goal {goal:g}), {each}, p99 TTFT {1e3 * p99:.1f} ms"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
