"""What pricing many plans together saves: every split of one model over some GPUs, at every batch.

    python benchmarks/plans.py [--model NAME] [--device NAME] [--gpus N] [--generate TOKENS]

CPU milliseconds of one run on one core. Each plan has step time, peak memory, TTFT and mean TPOT. `together`
is `llmir.candidates`, `one by one` a workload of each; of the latter some are taken, evenly, and scaled.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
for variable in ONE_CORE:  # read when numpy is first imported
    os.environ[variable] = "1"

BATCHES = (*range(64, 513, 64), *range(640, 1537, 128), *range(2048, 12289, 2048))
PRECISIONS = ("", "quantize{weights=fp8}")
PROMPT = 4000
SOME = 2  # plans that are also priced one by one


def splits(gpus: int, experts: bool) -> Iterator[tuple[str, int]]:
    """Every way to use so many GPUs, in powers of two: the pass that shards, and the pipeline stages."""
    powers = [1 << n for n in range(gpus.bit_length())]
    for tp, dp in ((tp, dp) for tp in powers for dp in powers if gpus % (tp * dp) == 0):
        for ep in (n for n in powers if (tp * dp) % n == 0 and (experts or n == 1)):
            for sp in (0, 1) if tp > 1 else (0,):
                yield f"shard{{tp={tp}, dp={dp}, ep={ep}, sp={sp}}}", gpus // (tp * dp)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return 1e3 * (time.process_time() - start), found


def say(what: str, milliseconds: float) -> None:
    print(f"{what:24}{milliseconds:10,.0f}", flush=True)


def main() -> None:
    import llmir

    parser = argparse.ArgumentParser(description="What pricing many plans together saves.")
    parser.add_argument("--model", default="Qwen3-235B-A22B")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--generate", type=int, default=256)
    asked = parser.parse_args()
    program = llmir.run(llmir.load(asked.model), llmir.pipeline_of())
    experts = any("expert" in n.op.axes for graph in program.graphs.values() for n in graph.sources)

    def lowered() -> list[tuple[Any, int]]:
        found = []
        for precision in PRECISIONS:
            narrow = llmir.run(program, precision) if precision else program
            for shard, stages in splits(asked.gpus, experts):
                if stages <= narrow.depth("main"):
                    found.append((llmir.run(narrow, shard), stages))
        return found

    def priced(candidates: Any, prompt: int) -> Any:
        return candidates.requests(BATCHES, prompt, asked.generate)

    lowering, programs = timed(lowered)
    planning, candidates = timed(lambda: llmir.candidates(programs, asked.device))
    first, _ = timed(lambda: priced(candidates, PROMPT))
    warm = min(timed(partial(priced, candidates, PROMPT + 8 * i))[0] for i in range(1, 5))
    print(f"{len(programs)} plans × {len(BATCHES)} batches of {asked.model} on {asked.gpus} × {asked.device}")
    say("lowered", lowering)
    say("planned", planning)
    say("first prices", first)
    say("cold, together", lowering + planning + first)
    say("warm, together", warm)
    alone = [i for i in range(0, len(programs), max(1, len(programs) // SOME)) if i not in candidates.refused]

    def one_by_one() -> None:
        for i in alone:
            sharded, stages = programs[i]
            if stages > 1:
                sharded = llmir.run(sharded, f"stages{{pp={stages}}},slice-sends")
            for batch in BATCHES:
                at = {"batch": batch, "prompt": PROMPT + 8, "generate": asked.generate}
                job = llmir.workload(sharded, asked.device, **at)
                _ = job.ttft_s, job.tpot_s, job.prefill.peak_memory_bytes

    took, _ = timed(one_by_one)
    say(f"one by one, of {len(alone)}", took * len(programs) / len(alone))


if __name__ == "__main__":
    main()
