"""Results whose pages tests open, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llmir
from llmir.api.serve import simulate_rates
from llmir.backends.simulate.replications import Replications
from tests.flat import records


def _plan() -> Any:
    asked = {"rate": 20, "prompt": 1000, "generate": 100, "max_ttft": "200ms", "max_tpot": "12ms"}
    return llmir.plan("llama3.1-8b", "h100-sxm,a100", **records(llmir.plan, gpus=8, requests=200, **asked))


def _rates() -> Any:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of("vllm"))
    asked = {"prompt": 500, "generate": 50, "requests": 100, "max_ttft_s": 0.1, "max_tpot_s": 0.02}
    options = records(simulate_rates, **asked)
    return simulate_rates(program, "h100-sxm", rates=[4, 30, 90], times=None, **options)


SWEPT = {"hw": "h100-sxm,h200", "tp": "1,2,3", "batch": "1:256:x4", "context": 2000}


def _job() -> Any:
    passes = f"stages{{pp=2, micro_batches=2}},{llmir.pipeline_of('vllm')},shard{{tp=2}}"
    program = llmir.run(llmir.load("llama3.1-8b"), passes)
    return llmir.workload(program, "h100-sxm", batch=8, prompt=1000, generate=20)


def saved(name: str, path: Path) -> Path:
    """Its page as a file."""
    return (llmir.trace if name == "trace" else llmir.save)(made(name), path)


RESULTS: dict[str, Callable[[], Any]] = {
    "plan": _plan,
    "sweep": lambda: llmir.sweep("qwen3-32b", SWEPT),
    "trace": _job,
    "rates": _rates,
    "run": lambda: made("rates").runs[1],
    "runs": lambda: Replications(made("rates").runs[:2]),
}


@cache
def made(name: str) -> Any:
    """One of them."""
    return RESULTS[name]()
