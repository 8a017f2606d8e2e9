"""Where the number of GPUs of a plan falls, or rises by more than a replica, as prompts grow.

    python benchmarks/plan_smoothness.py [--engine NAME …] [--model NAME …] [--law fixed lognormal]
                                         [--first N] [--last N] [--step N]

Each model has a device, a rate, and limits. From one length to the next the number of GPUs never falls, and
rises by one replica of the larger plan at most. The last line counts the rises that break this rule, and the
exit code is 1 if there is one. Times are CPU seconds of a search.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

ENGINES = ("vllm", "sglang", "trtllm")
LAWS = {"fixed": "{}", "lognormal": "lognormal:{},0.6"}
# Device, requests per second, output tokens, limits of TTFT and TPOT, and weights.
TRAFFICS: dict[str, tuple[str, float, int, str | None, str | None, str | None]] = {
    "llama3.3-70b": ("h200", 2, 1024, "5s", "60ms", "fp8"),
    "gemma3-12b": ("h100-sxm", 3, 256, "3s", "40ms", None),
    "gpt-oss-120b": ("h100-sxm", 4, 512, "2s", "20ms", None),
}


def best_plan(model: str, engine: str, prompt: str) -> Any:
    """The first plan of a model; None where none meets the limits."""
    import llmir

    hw, rate, generate, max_ttft, max_tpot, weights = TRAFFICS[model]
    return llmir.plan(
        model,
        hw,
        llmir.Traffic(rate=rate, prompt=prompt, generate=generate),
        max_ttft=max_ttft,
        max_tpot=max_tpot,
        precision=llmir.Precision(weights=weights),
        estimation=llmir.Estimation(engine=engine),
    ).best


def breaks(before: Any, best: Any) -> str:
    """How the step from one plan to the next breaks the rule; empty if it does not."""
    if before is None or best is None:
        return "no plan" if best is None else ""
    if best.devices < before.devices:
        return "falls"
    return "jumps" if best.devices > before.devices + best.structure.split.devices else ""


def curve(model: str, engine: str, law: str, prompts: range) -> Iterator[str]:
    """The breaks of one curve, each printed with its plans."""
    before = None
    for prompt in prompts:
        start = time.process_time()
        best = best_plan(model, engine, LAWS[law].format(prompt))
        broken = breaks(before, best)
        took = time.process_time() - start
        plan = f"{best.devices:4} GPUs  {best.laid:28}" if best else f"{'none':38}"
        changed = ", ".join(best.changed_settings) if best else ""
        print(f"  {prompt:6,} tokens {plan}{took:7.1f} s  {changed:40}{broken}", flush=True)
        before = best
        if broken:
            yield broken


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the number of GPUs falls or jumps as prompts grow.")
    parser.add_argument("--engine", nargs="+", default=ENGINES)
    parser.add_argument("--model", nargs="+", default=[*TRAFFICS], choices=TRAFFICS)
    parser.add_argument("--law", nargs="+", default=[*LAWS], choices=LAWS)
    parser.add_argument("--first", type=int, default=7000)
    parser.add_argument("--last", type=int, default=17_000)
    parser.add_argument("--step", type=int, default=500)
    asked = parser.parse_args()
    prompts, count, found = range(asked.first, asked.last + 1, asked.step), 0, []
    for model in asked.model:
        for engine in asked.engine:
            for law in asked.law:
                print(f"{model}, {engine}, {law}", flush=True)
                found += curve(model, engine, law, prompts)
                count += len(prompts) - 1
    print(f"{len(found)} of {count} steps break the rule: {', '.join(found) or 'none'}")
    sys.exit(bool(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
