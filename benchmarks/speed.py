"""How fast llmir itself is: medians of one run on one core, against targets and a yardstick of the same run.

    python benchmarks/speed.py [--format table|json] [--only WORD]

Prices are those of the default cost model, each beside the roofline's (`--cost ideal`) in the same run. The
yardstick of what runs inside Python is a loop of a million additions; that of what starts a process is
`import networkx, numpy`. Ratios to it compare between machines, seconds do not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
for variable in ONE_CORE:  # read when numpy is first imported
    os.environ[variable] = "1"

MODEL, EXPERTS, DEVICE = "Llama-3.1-405B", "Qwen3-235B-A22B", "h100-sxm"


@dataclass(frozen=True)
class Measurement:
    """One line of the result: what was timed, its target, its median, the yardstick's, and the roofline's."""

    name: str
    target_s: float
    measured_s: float
    yardstick_s: float
    ideal_s: float | None = None  # None of what prices nothing

    @property
    def ratio(self) -> float:
        return self.measured_s / self.yardstick_s

    @property
    def met(self) -> bool:
        return self.measured_s <= self.target_s


def timed(
    run: Callable[[], object],
    budget_s: float = 1.0,
    least: int = 5,
    before: Callable[[], object] | None = None,
) -> float:
    """The median time of `run`, after two warm runs; what is done `before` each is not timed."""
    times: list[float] = []
    while len(times) < least + 2 or (sum(times) < budget_s and len(times) < 2000):
        if before:
            before()
        if len(times) == 2:
            gc.collect()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times[2:])


def process(cache: str, *arguments: str) -> Callable[[], object]:
    """A run of Python that finds its bytecode in `cache`, as that of an installed package is found."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = cache
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, check=True, capture_output=True, env=variables)


def loop() -> int:
    total = 0
    for i in range(1_000_000):
        total += i
    return total


Cost = str | None  # a cost model's name, None for the default


def inside() -> Iterator[tuple[str, float, Callable[[Cost], object]]]:
    """What is timed in this process, as (name, target, run by a cost model)."""
    import numpy as np

    import llmir
    from llmir.frontends.presets import find

    preset = find(MODEL)
    assert preset is not None

    def report(cost: Cost) -> object:
        program = llmir.run(llmir.load(preset.config), llmir.DEFAULT_PIPELINE)
        return llmir.workload(program, DEVICE, batch=8, prompt=2048, generate=256, cost=cost).to_dict()

    yield "config to full report, 405B", 5e-3, report

    program = llmir.run(llmir.load(MODEL), llmir.DEFAULT_PIPELINE)
    context = iter(range(1, 1 << 30))

    def point(cost: Cost) -> object:
        step = llmir.analyze(program, DEVICE, batch=8, new=1, context=next(context), cost=cost)
        return step.time_s, step.peak_memory_bytes

    yield "a built program at a new point", 1e-4, point

    batches, contexts = np.arange(1, 1001)[:, None], np.arange(1, 1001)[None, :] * 128

    def grid(cost: Cost) -> object:
        step = llmir.analyze(program, DEVICE, batch=batches, new=1, context=contexts, cost=cost)
        return step.time_s, step.peak_memory_bytes

    yield "1000 × 1000 batches × contexts", 200e-3, grid

    random = np.random.default_rng(0)
    some = {
        "batch": random.integers(1, 512, 1_000_000),
        "new": random.integers(1, 4096, 1_000_000),
        "context": random.integers(0, 131072, 1_000_000),
    }

    def points(cost: Cost) -> object:
        step = llmir.analyze(program, DEVICE, **some, cost=cost)
        return step.time_s, step.peak_memory_bytes

    yield "a million unrelated points", 0.2, points

    narrow = "quantize{weights=fp8, kv=fp8}"
    for name, model, how in (
        ("lower a new 405B, tp 8", MODEL, "shard{tp=8}"),
        ("lower a new 405B, fp8, tp 8 pp 4", MODEL, f"{narrow},stages{{pp=4}},shard{{tp=8}}"),
        ("lower a new 235B, tp 8 ep 8", EXPERTS, "shard{tp=8, ep=8}"),
        ("lower a new 235B, fp8, tp 8 ep 8", EXPERTS, f"{narrow},shard{{tp=8, ep=8}}"),
    ):
        yield name, 3e-3, Fresh(model, how)
    for name, run in (("told from one program", told), ("each lowered", lowered)):
        yield f"1, 2, 4, 8 stages, {name}", 10e-3, Fresh(MODEL, "shard{tp=8}", run)


def sharded(program: Any, how: str, cost: Cost) -> object:
    """The prices of a program after these passes, and the sizes of its memory."""
    import llmir

    lower = llmir.run(program, how)
    plan = llmir.analyze(lower, "h200", batch=32, new=1, context=2048, cost=cost).plan
    return plan.prices, plan.memories


def told(program: Any, how: str, cost: Cost) -> object:
    """Time and peak memory of a program after these passes, in several numbers of stages."""
    import llmir

    lower = llmir.run(program, how)
    return llmir.stages(lower, "h200", (1, 2, 4, 8), batch=32, new=1, context=2048, cost=cost)


def lowered(program: Any, how: str, cost: Cost) -> object:
    """The same by the pass that cuts a program."""
    import llmir

    steps = []
    for pp in (1, 2, 4, 8):
        lower = llmir.run(program, f"stages{{pp={pp}}},{how}")
        steps.append(llmir.analyze(lower, "h200", batch=32, new=1, context=2048, cost=cost))
    return [(step.time_s, step.peak_memory_bytes) for step in steps]


class Fresh:
    """A run on a program of another hidden size each time, so that nothing is known of it."""

    def __init__(self, model: str, how: str, run: Callable[..., object] = sharded) -> None:
        self.model, self.how, self.run, self.programs = model, how, run, 0

    def before(self) -> None:
        """The next program, which is not timed."""
        import llmir
        from llmir.frontends.presets import find

        preset = find(self.model)
        assert preset is not None
        self.programs += 1
        hidden = {"hidden_size": preset.config["hidden_size"] + 128 * self.programs}
        self.program = llmir.run(llmir.load({**preset.config, **hidden}), llmir.DEFAULT_PIPELINE)

    def __call__(self, cost: Cost) -> object:
        return self.run(self.program, self.how, cost)


def drawing(folder: Path) -> Callable[[], object]:
    import llmir

    program = llmir.run(llmir.load(MODEL), llmir.DEFAULT_PIPELINE)
    job = llmir.workload(program, DEVICE, batch=8, prompt=2048, generate=256)
    return lambda: llmir.draw(job, str(folder / "full.svg"), level="full")


def measure(only: str) -> Iterator[Measurement]:
    """Every measurement whose name holds `only`, each beside a yardstick taken next to it."""
    for name, target, run in inside():
        if only in name:
            before = run.before if isinstance(run, Fresh) else None
            default, ideal = (timed(partial(run, cost), before=before) for cost in (None, "ideal"))
            yield Measurement(name, target, default, timed(loop, 0.2), ideal)

    with tempfile.TemporaryDirectory() as cache:
        libraries = process(cache, "-c", "import networkx, numpy")
        loaded = process(cache, "-c", "import networkx, numpy, llmir; llmir.load('llama3.1-8b')")
        if only in (name := "import and load 8B, over the libraries"):
            # Taken in turns, so that a machine that slows down slows both.
            pairs = [(timed(libraries, 0, 3), timed(loaded, 0, 3)) for _ in range(4)]
            base = median(b for b, _ in pairs)
            yield Measurement(name, 0.1, median(full - b for b, full in pairs), base)
        if only in (name := "llmir --version"):
            yield Measurement(
                name, 0.2, timed(process(cache, "-m", "llmir", "--version"), 2), timed(libraries, 1)
            )
    if only in (name := "draw 126 layers in full, both phases"):
        with tempfile.TemporaryDirectory() as folder:
            yield Measurement(name, 2.0, timed(drawing(Path(folder)), 0, 3), timed(loop, 0.2))


def three(number: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{float(f'{number:.3g}'):,.12g}" if number >= 1e-4 else f"{number:.6f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast llmir itself is.")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    arguments = parser.parse_args()
    found = measure(arguments.only)
    if arguments.format == "json":
        rows = [asdict(m) | {"ratio": m.ratio, "met": m.met} for m in found]
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        print(json.dumps({**machine, "rows": rows}, indent=2))
        return
    print(f"{'median, ms':42}{'target':>9}{'measured':>10}{'ideal':>9}{'yardstick':>11}{'ratio':>9}")
    for m in found:
        ideal = three(1e3 * m.ideal_s) if m.ideal_s is not None else ""
        target, measured, yardstick = (three(1e3 * t) for t in (m.target_s, m.measured_s, m.yardstick_s))
        cells = f"{target:>9}{measured:>10}{ideal:>9}{yardstick:>11}{three(m.ratio):>9}"
        print(f"{m.name:42}{cells}{'' if m.met else '  over target'}", flush=True)


if __name__ == "__main__":
    main()
