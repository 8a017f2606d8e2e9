"""What code saves: each figure by a step's code and by its prices, in one run on one core.

    python benchmarks/code.py [--model NAME] [--pipeline PASSES] [--device NAME]

CPU time, the median of several runs. `prices` are the functions themselves, which report and tests fall back
on; `code` is what `llmir.compile` makes of them, and what making it takes stands below. Where numba is
installed, grids run by it too, with what compiling their loop takes, and reading it from its folder.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
for variable in ONE_CORE:  # read when numpy is first imported
    os.environ[variable] = "1"


def timed(run: Callable[[], object], times: int) -> float:
    """The median of the CPU's milliseconds, after one warm run."""
    run()
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(1e3 * (time.process_time() - start))
    return median(found)


def many(run: Callable[[], object], count: int) -> Callable[[], object]:
    return lambda: [run() for _ in range(count)]


def report(code: Any, prices: Any, what: str, points: dict[str, tuple[Callable[[], Any], int]]) -> None:
    for name, (at, count) in points.items():
        slow = timed(many(lambda at=at: prices(at()), count), 3) / count
        fast = timed(many(lambda at=at: code(at()), count), 5) / count
        print(f"{what + ', ' + name:48}{slow:10.3f}{fast:10.3f}{fast / slow:8.3f}", flush=True)


def making(figures: Any, new: int | None, what: str) -> None:
    from llmir.backends.step.functions import FunctionParts, StepFunction

    def compiled(kind: str, parts: tuple[str, ...], printer: str) -> None:
        made: FunctionParts = getattr(StepFunction(figures, new), kind)
        for part in parts:
            made.run(part, printer)

    two, four = ("early", "late"), ("of_new", "of_batch", "of_context", "last")
    print(f"{what + ', recorded':58}{timed(lambda: StepFunction(figures, new), 3):10.1f}")
    for kind, parts, printer in (
        ("called", two, "python"),
        ("short", two, "python"),
        ("short", four, "numpy"),
    ):
        took = timed(lambda how=(kind, parts, printer): compiled(*how), 3)
        print(f"{what + f', recorded, {kind}, compiled as {printer}':58}{took:10.1f}", flush=True)


def loops(figures: Any, new: int | None, what: str, grid: Any) -> None:
    """A grid by numba, and what a process waits for its loop: where no folder has it, and where one does."""
    from llmir.backends.step.functions import StepFunction
    from llmir.backends.tape import numba

    if not numba.available():
        print("numba is not installed: no loops")
        return
    import numba  # takes as long once, whatever is compiled

    waited = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLMIR_CACHE"] = folder
        for _ in range(2):
            numba._machine.cache_clear()
            code = StepFunction(figures, new, by="numba")
            start = time.process_time()
            code(grid)
            waited.append(time.process_time() - start)
        report(code, figures, what, {"1000 × 1000 grid by numba": (lambda: grid, 1)})
    for name, seconds in zip(("compiled", "read from its folder"), waited, strict=True):
        print(f"{what + ', its loop ' + name:58}{1e3 * seconds:10.1f}")


def step(plan: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Time and peak memory by a plan's prices."""
    from llmir.backends.step.sizes import sweeps

    def peak(at: Any) -> tuple[Any, ...]:
        return (plan.fullest(lambda memory: memory.peak(at), at),)

    return lambda at: (plan.timing(at, plan.busy(at)).step, *sweeps(peak, at))


def surfaces(program: Any, device: str) -> None:
    """Steps of a server: as many sequences go on, each with its own context, alone and beside a prompt."""
    import llmir
    from llmir.backends.step.composition import Surface

    surface: Surface = llmir.surface(program, device)
    kept = itertools.cycle([surface.kept(range(n, n + 64 * 50, 50)) for n in range(1000, 3000)])
    batch = surface.batch(range(1000, 1000 + 64 * 50, 50))
    lines: dict[str, Callable[[], object]] = {
        "64 sequences decode": lambda: surface.step(64, next(kept)),
        "beside a prompt of 512 tokens": lambda: surface.step(64, next(kept), ((512, 0),)),
        "beside a chunk after more of them": lambda: surface.step(64, next(kept), ((512, 1024),)),
        "what they keep a step later": batch.advance,
    }
    for name, run in lines.items():
        print(f"{'a surface, ' + name:58}{1e3 * timed(many(run, 2000), 7) / 2000:8.2f} µs", flush=True)


def fits(device: str) -> None:
    """Times of 35,000 products, as a fit asks for them at each step."""
    import numpy as np

    from llmir.backends.kernels.base import Call
    from llmir.backends.kernels.gemm import GemmKernel, GemmShape, SmallTileGemm
    from llmir.backends.silicon.calibrate.cases import CompiledRowTimes, RowTimes, RowTimeTerm
    from llmir.hw import library

    random, count = np.random.default_rng(0), 35_000
    sizes = (np.floor(2 ** random.uniform(*ends, count)) for ends in ((0, 14), (9, 15), (9, 15)))
    call = Call(("gemm",), GemmShape(*sizes).spread(count))
    term = RowTimeTerm("gemm", call, np.zeros(count), np.arange(count))
    clock = RowTimes(library.load(device), (term,), count)
    for kind in (GemmKernel, SmallTileGemm):
        name = f"a fit's 35,000 rows, {kind.__name__}"
        points: dict[str, tuple[Callable[[], Any], int]] = {name: (lambda kind=kind: {"gemm": kind()}, 1)}
        report(CompiledRowTimes(clock), clock.seconds, "kernels", points)


def main() -> None:
    import numpy as np

    import llmir
    from llmir.backends.step.functions import StepFunction
    from llmir.ir.sizes.binding import Binding

    parser = argparse.ArgumentParser(description="What code saves.")
    parser.add_argument("--model", default="Llama-3.1-8B")
    parser.add_argument("--pipeline", default="")
    parser.add_argument("--device", default="h100-sxm")
    asked = parser.parse_args()
    program = llmir.run(llmir.load(asked.model), llmir.pipeline_of())
    program = llmir.run(program, asked.pipeline) if asked.pipeline else program
    random = np.random.default_rng(0)
    ranges = {"B": (1, 1001), "T": (2, 4096), "C": (0, 131_072)}
    million = {name: random.integers(*ends, 1_000_000).astype(float) for name, ends in ranges.items()}
    batches, contexts = np.arange(1, 1001)[:, None], np.arange(1, 1001)[None] * 128
    print(f"{'CPU ms':48}{'prices':>10}{'code':>10}{'ratio':>8}")
    for new, length, what in ((1, 1, "one new token"), (None, 64, "any new tokens")):
        figures = step(llmir.analyze(program, asked.device, batch=8, new=length).plan)
        more, others = itertools.count(1000), itertools.cycle(range(1, 5000))
        grid = Binding(B=batches, T=length, C=contexts)
        flat = Binding(B=million["B"], T=length, C=million["C"])
        points: dict[str, tuple[Callable[[], Any], int]] = {
            "next context": (lambda n=length, more=more: Binding(B=8, T=n, C=next(more)), 100),
            "new point": (lambda n=length, others=others: Binding(B=next(others), T=n, C=1000), 100),
            "1000 × 1000 grid": (lambda grid=grid: grid, 1),
            "a million points, 1,000 batches": (lambda flat=flat: flat, 1),
        }
        if new is None:
            points["a million points, all different"] = lambda: Binding(**million), 1
        report(StepFunction(figures, new), figures, what, points)
        loops(figures, new, what, grid)
        making(figures, new, what)
    surfaces(program, asked.device)
    fits(asked.device)


if __name__ == "__main__":
    main()
