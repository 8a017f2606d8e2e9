"""How fast llmir itself is: medians of CPU time on one core, against targets and a yardstick of the same run.

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
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmir.ir.core.program import Program

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
for variable in ONE_CORE:  # read when numpy is first imported
    os.environ[variable] = "1"

MODEL, SMALL, EXPERTS, DEVICE = "Llama-3.1-405B", "Llama-3.1-8B", "Qwen3-235B-A22B", "h100-sxm"


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
    clock: Callable[[], float] = time.process_time,
) -> float:
    """The median CPU time of `run`, after two warm runs; what is done `before` each is not timed."""
    times: list[float] = []
    while len(times) < least + 2 or (sum(times) < budget_s and len(times) < 2000):
        if before:
            before()
        if len(times) == 2:
            gc.collect()
        start = clock()
        run()
        times.append(clock() - start)
    return median(times[2:])


def of_children() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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

    config = find_config(MODEL)

    def report(cost: Cost) -> object:
        program = llmir.run(llmir.load(config), llmir.pipeline_of())
        return llmir.workload(
            program, DEVICE, batch=8, prompt=2048, generate=256, estimation=llmir.Estimation(cost=cost)
        ).to_dict()

    yield "config to full report, 405B", 5e-3, report

    program = llmir.run(llmir.load(MODEL), llmir.pipeline_of())
    context = iter(range(1, 1 << 30))

    def whole(cost: Cost) -> object:
        at: dict[str, Any] = {"batch": 8, "prompt": 2048 + next(context), "generate": 256}
        return llmir.workload(program, DEVICE, **at, estimation=llmir.Estimation(cost=cost)).to_dict()

    yield "a built 405B to the same, 255 decode steps", 2e-3, whole

    def point(cost: Cost) -> object:
        step = llmir.analyze(
            program, DEVICE, batch=8, new=1, context=next(context), estimation=llmir.Estimation(cost=cost)
        )
        return step.time_s, step.peak_memory_bytes

    yield "a built program at its next context", 1e-5, point

    small = llmir.run(llmir.load(SMALL), llmir.pipeline_of())
    experts = llmir.run(llmir.load(EXPERTS), f"{llmir.pipeline_of()},shard{{tp=8, ep=8}}")
    yield "a new point, 8B", 25e-6, Anew(small)
    yield "the same with all rows", 1e-4, Anew(small, rows=True)
    yield "a new point, 235B, tp 8 ep 8", 40e-6, Anew(experts)

    layers = {**find_config(SMALL), "num_hidden_layers": 800}
    flat = llmir.run(llmir.load(layers), f"{llmir.pipeline_of()},unroll")
    yield "rows of 800 unrolled layers", 60e-3, Anew(flat, rows=True)

    batches, contexts = np.arange(1, 1001)[:, None], np.arange(1, 1001)[None, :] * 128

    def grid(cost: Cost) -> object:
        step = llmir.analyze(
            program, DEVICE, batch=batches, new=1, context=contexts, estimation=llmir.Estimation(cost=cost)
        )
        return step.time_s, step.peak_memory_bytes

    yield "1000 × 1000 batches × contexts", 200e-3, grid

    random, million = np.random.default_rng(0), 1_000_000
    some = {
        "batch": random.integers(1, 512, million),
        "new": random.integers(1, 4096, million),
        "context": random.integers(0, 131072, million),
    }
    few = {
        "batch": random.integers(1, 1001, million),
        "new": 1,
        "context": random.integers(0, 131072, million),
    }
    every = few | {"batch": random.permutation(million) + 1}

    def points(cost: Cost, at: dict[str, Any]) -> object:
        step = llmir.analyze(program, DEVICE, **at, estimation=llmir.Estimation(cost=cost))
        return step.time_s, step.peak_memory_bytes

    yield "a million unrelated points", 0.2, partial(points, at=some)
    yield "a million decodes, 1,000 batches", 0.12, partial(points, at=few)
    yield "a million decodes, all batches different", 2.5, partial(points, at=every)

    def swept(cost: Cost) -> object:
        axes = {"hw": DEVICE, "cost": cost, "batch": "1:1000", "context": "64:64000:64"}
        return llmir.sweep(program, axes, pipeline="").columns["time_s"]

    yield "a sweep of a million rows", 0.2, swept

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
    plan = llmir.analyze(
        lower, "h200", batch=32, new=1, context=2048, estimation=llmir.Estimation(cost=cost)
    ).plan
    return plan.prices, [memory.lifetimes.sizes for memory in plan.memories]


def told(program: Any, how: str, cost: Cost) -> object:
    """Time and peak memory of a program after these passes, in several numbers of stages."""
    import llmir

    lower = llmir.run(program, how)
    return llmir.stages(
        lower, "h200", (1, 2, 4, 8), batch=32, new=1, context=2048, estimation=llmir.Estimation(cost=cost)
    )


def lowered(program: Any, how: str, cost: Cost) -> object:
    """The same by the pass that cuts a program."""
    import llmir

    steps = []
    for pp in (1, 2, 4, 8):
        lower = llmir.run(program, f"stages{{pp={pp}}},{how}")
        steps.append(
            llmir.analyze(
                lower, "h200", batch=32, new=1, context=2048, estimation=llmir.Estimation(cost=cost)
            )
        )
    return [(step.time_s, step.peak_memory_bytes) for step in steps]


def find_config(model: str) -> dict[str, Any]:
    """The bundled config of a model."""
    from llmir.frontends.models.presets import find

    preset = find(model)
    assert preset is not None
    return dict(preset.config)


class Anew:
    """Prices a step of decoding at a batch and a context that were not priced before; with all its rows."""

    def __init__(self, program: Program, *, rows: bool = False) -> None:
        self.program, self.rows, self.points = program, rows, 0

    def __call__(self, cost: Cost) -> object:
        import llmir

        self.points += 1
        at = {"batch": 16 + self.points, "new": 1, "context": 1000 + self.points}
        step = llmir.analyze(self.program, DEVICE, **at, estimation=llmir.Estimation(cost=cost))
        return step.time_s, step.peak_memory_bytes, step.ops if self.rows else None


class Fresh:
    """A run on a program of another hidden size each time, so that nothing is known of it."""

    def __init__(self, model: str, how: str, run: Callable[..., object] = sharded) -> None:
        self.model, self.how, self.run, self.programs = model, how, run, 0

    def before(self) -> None:
        """The next program, which is not timed."""
        import llmir

        self.programs += 1
        config = find_config(self.model)
        config["hidden_size"] += 128 * self.programs
        self.program = llmir.run(llmir.load(config), llmir.pipeline_of())

    def __call__(self, cost: Cost) -> object:
        return self.run(self.program, self.how, cost)


OVER = ", over the libraries"
FIRST = f"""
import llmir
program = llmir.run(llmir.load({SMALL!r}), llmir.pipeline_of())
print(llmir.analyze(program, {DEVICE!r}, batch=8, context=1024).time_s)
"""
ANALYZE = (
    "-m",
    "llmir",
    "analyze",
    SMALL,
    "--hw",
    DEVICE,
    "--batch",
    "8",
    "--prompt",
    "2048",
    "--generate",
    "256",
)
PROCESSES = (  # name, target, arguments of Python
    (f"import and load 8B{OVER}", 0.1, ("-c", f"import networkx, numpy, llmir; llmir.load({SMALL!r})")),
    ("a process to its first price", 0.37, ("-c", FIRST)),
    ("llmir analyze", 0.47, ANALYZE),
    ("llmir --version", 0.2, ("-m", "llmir", "--version")),
)


def drawing(folder: Path) -> Callable[[], object]:
    import llmir

    program = llmir.run(llmir.load(MODEL), llmir.pipeline_of())
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
        started = partial(timed, budget_s=0, least=3, clock=of_children)
        libraries = process(cache, "-c", "import networkx, numpy")
        for name, target, arguments in PROCESSES:
            if only in name:
                # Taken in turns, so that a machine that slows down slows both.
                pairs = [(started(libraries), started(process(cache, *arguments))) for _ in range(4)]
                base, took = (median(each) for each in zip(*pairs, strict=True))
                yield Measurement(name, target, took - base * (OVER in name), base)
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
