"""A new point, its time and peak memory, by llmir and by AIConfigurator, in turns in one run.

    python benchmarks/peers.py [--environment .venv-peers]

AIConfigurator is installed from the package registry into an environment of its own, where it is not there
yet. Each figure is a median of CPU time on one core, of decoding steps of 1 to 2,003 sequences, each of a
batch and at a context that were not asked for before; data and programs are loaded before. Both know H100,
bf16 and vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

PEER, POINTS, TURNS = "aiconfigurator", 300, 5
MOST = 2003  # sequences: a prime above all points that are asked for
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read by numpy
    os.environ[variable] = "1"


class Model(NamedTuple):
    """A model by llmir's name and by the peer's, and how many ways its tensors and experts are split."""

    name: str
    path: str
    tp: int
    ep: int


MODELS = (
    Model("Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B", 1, 1),
    Model("Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B", 8, 8),
)
Point = Callable[[int, int], object]


def llmir_point(model: Model) -> Point:
    """What prices a step of decoding by llmir as code, of a batch at a context: its time and peak memory."""
    import llmir

    shard = f",shard{{tp={model.tp}, ep={model.ep}}}" if model.tp > 1 else ""
    program = llmir.run(llmir.load(model.name), llmir.pipeline_of("vllm") + shard)

    step = llmir.compile(program, "h100-sxm", estimation=llmir.Estimation(engine="vllm"))

    def point(batch: int, context: int) -> object:
        return step(batch, 1, context)

    return point


def peer_point(model: Model) -> Point:
    """The same by AIConfigurator: one step after a prompt of that length."""
    import logging

    logging.disable(logging.CRITICAL)
    from aiconfigurator.sdk import common, config, perf_database
    from aiconfigurator.sdk.backends.factory import get_backend
    from aiconfigurator.sdk.inference_session import InferenceSession
    from aiconfigurator.sdk.models import get_model

    system, engine = "h100_sxm", "vllm"
    version = perf_database.get_latest_database_version(system, engine)
    data: Any = perf_database.get_database(system, engine, version)
    narrow = {
        "gemm_quant_mode": common.GEMMQuantMode.bfloat16,
        "moe_quant_mode": common.MoEQuantMode.bfloat16,
        "kvcache_quant_mode": common.KVCacheQuantMode.bfloat16,
        "fmha_quant_mode": common.FMHAQuantMode.bfloat16,
    }
    split = {"tp_size": model.tp, "moe_tp_size": model.tp // model.ep, "moe_ep_size": model.ep}
    built = get_model(model.path, config.ModelConfig(**split, **narrow), engine)
    session = InferenceSession(built, data, get_backend(engine))

    def point(batch: int, context: int) -> object:
        at = config.RuntimeConfig(batch_size=batch, isl=context, osl=2)
        found = session.run_static(at, mode="static_gen")
        return sum(found.get_generation_latency_dict().values()), found.get_memory()["total"]

    return point


def timed(point: Point) -> list[float]:
    """The median seconds of a point in each of some turns, each of points of its own."""
    turns: list[float] = []
    for turn in range(TURNS + 1):
        times = []
        for i in range(turn * POINTS, (turn + 1) * POINTS):
            start = time.process_time()
            point(1 + 37 * i % MOST, 1000 + i)  # no batch comes back, and no context
            times.append(time.process_time() - start)
        turns.append(median(times))
    return turns[1:]


def installed(environment: Path) -> str:
    """The Python of an environment that has the peer, made if it is not there; else why it cannot be had."""
    python = environment / "bin" / "python"
    have = [str(python), "-c", f"import {PEER}"]
    if python.exists() and not subprocess.run(have, capture_output=True, check=False).returncode:
        return str(python)
    print(f"installing {PEER} in {environment}, a minute or two", file=sys.stderr)
    made = subprocess.run([sys.executable, "-m", "venv", str(environment)], capture_output=True, check=False)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", PEER]
    done = made if made.returncode else subprocess.run(pip, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        reason = next((line for line in said if "rror" in line), "no reason given")
        sys.exit(f"{PEER} cannot be installed in {environment}: {reason}")
    return str(python)


def main() -> None:
    parser = argparse.ArgumentParser(description="A new point, by llmir and by AIConfigurator.")
    parser.add_argument("--environment", type=Path, default=Path(".venv-peers"), help="where the peer is")
    parser.add_argument("--by", choices=("llmir", PEER), help="time this one alone, here, for --model")
    parser.add_argument("--model", type=int, choices=range(len(MODELS)), default=0)
    given = parser.parse_args()
    if given.by:
        make = llmir_point if given.by == "llmir" else peer_point
        print(json.dumps(timed(make(MODELS[given.model]))))
        return
    pythons = {"llmir": sys.executable, PEER: installed(given.environment)}
    print(f"{'median, ms':36}{'llmir':>10}{PEER:>16}{'ratio':>9}")
    for i, model in enumerate(MODELS):
        found: dict[str, list[float]] = {}
        for by in (*pythons, *reversed(pythons)):  # there and back, as a machine may slow down
            command = [pythons[by], __file__, "--by", by, "--model", str(i)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                sys.exit(f"{by}: {(run.stderr.strip() or 'failed').splitlines()[-1]}")
            found.setdefault(by, []).extend(json.loads(run.stdout.splitlines()[-1]))
        ours, theirs = (1e3 * median(times) for times in found.values())
        how = f"{model.name}, tp {model.tp} ep {model.ep}" if model.tp > 1 else model.name
        print(f"{how:36}{ours:10.3f}{theirs:16.3f}{ours / theirs:9.2f}", flush=True)


if __name__ == "__main__":
    main()
