"""Where the time per output token rises by more than 12% from n to n + 1 users, n from 1 to 1,023.

    python benchmarks/curves.py [--model NAME …] [--device NAME …] [--engine NAME …] [--rise SHARE]

A curve is the time of a decode step by sequences, as `llmir analyze` prints it, of a model on a device by
an engine in a number of ranks. By the share by which the roofline rises, a step may rise too: one more
sequence reads the weights of more experts. A rise is expected where a documented setting of the engine
changes the step: the largest batch in a CUDA graph, or the next captured size (`graphs` in the file of
the engine, with its source). TensorRT-LLM captures the batch that it serves, so that no rise is expected
of it. Prints each rise, and exits with code 1 if one is not expected.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

import llmir
from llmir.backends.cost.models import model as cost_model
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import LlmirError
from llmir.hw import library
from llmir.hw.engine_sections import CudaGraphs

MODELS = (
    *("llama3.1-8b", "llama3.3-70b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b"),
    *("gpt-oss-120b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b", "minimax-m2", "glm-4.5-air"),
)
DEVICES = ("a100-80-sxm", "h100-sxm", "h200", "b200", "mi300x", "mi355x", "l40s")
ENGINES = ("vllm", "sglang", "trtllm")
RANKS = (1, 8)
USERS = np.arange(1, 1025)
CONTEXT = 1024
RISE = 0.12


class Rise(NamedTuple):
    """A rise from `users` to one more, and the setting that explains it, if any."""

    users: int
    share: float
    setting: str


def rises(model: str, device: str, engine: str, tp: int, most: float = RISE) -> Iterator[Rise]:
    """The rises of a curve above the share `most`."""
    estimation = llmir.Estimation(engine=engine)
    parallel = llmir.Parallel(tp=tp)
    at = {"batch": USERS, "new": 1, "context": CONTEXT}
    found = llmir.analyze(model, device, **at, parallel=parallel, estimation=estimation)
    times, ideal = np.asarray(found.time_s), np.asarray(found.ideal_time_s)
    shares = times[1:] / times[:-1] - np.maximum(ideal[1:] / ideal[:-1], 1)
    for i in np.flatnonzero(shares > most):
        yield Rise(int(USERS[i]), float(shares[i]), setting(device, engine, tp, int(USERS[i])))


def setting(device: str, engine: str, tp: int, users: int) -> str:
    """The documented setting that changes the step at one more user, and its source."""
    runs = cost_model(library.load(device), engine=engine).runs
    graphs = runs.section(CudaGraphs) if runs else None
    if graphs is None or graphs.default:
        return ""
    if graphs.on(library.load(device), tp).decodes == users:
        return f"the largest graph holds {users:,} sequences ({graphs.source})"
    sizes = [float(graphs.padded(n, SCALARS)) for n in (users, users + 1)]
    return (
        f"captured sizes {sizes[0]:g} and {sizes[1]:g} ({graphs.source})" if sizes[0] < sizes[1] - 1 else ""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Rises of TPOT by more than 12% from n to n + 1 users.")
    parser.add_argument("--model", nargs="*", default=MODELS)
    parser.add_argument("--device", nargs="*", default=DEVICES)
    parser.add_argument("--engine", nargs="*", default=ENGINES)
    parser.add_argument("--rise", type=float, default=RISE)
    given = parser.parse_args()
    curves, unexpected = 0, 0
    for model, device, engine, tp in product(given.model, given.device, given.engine, RANKS):
        where = f"{model} on {tp} × {device} by {engine}"
        try:
            found = list(rises(model, device, engine, tp, given.rise))
        except LlmirError as error:
            print(f"{where}: not estimated: {error}")
            continue
        curves += 1
        for rise in found:
            unexpected += not rise.setting
            why = rise.setting or "NOT EXPECTED"
            print(f"{where}: {rise.users:,} to {rise.users + 1:,} users: {rise.share:+.0%}; {why}")
    print(f"{curves} curves, {unexpected} rises that no setting explains")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
