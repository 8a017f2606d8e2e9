"""Where a model's step jumps or falls as sequences or tokens are added, over devices, engines and models.

    python benchmarks/smooth.py [--device NAME …] [--engine NAME …] [--model NAME …] [--jobs N] [--every N]

Of a decode step by sequences: t(n+1) ≤ t(n)·(1 + 1/n) + a launch and a wave of tiles of each op, and never
below t(n); of a step by new tokens of a sequence the same. Two new tokens cost at most 1.3 times one, or as
much more as rooflines of ops grow, by experts that one does not touch, and bytes of sums over links. Curves
that break a law are counted by the op that does most of it. What rises by more than a quarter from the fifth
on is counted as well, however large a wave is. Where a step runs at the next size that was captured, n grows
to that size, and no rise counts from the largest graph to what the engine launches kernel by kernel. What a
device or an engine does not do is skipped, and said with the reason.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing import Pool
from typing import Any, NamedTuple

import numpy as np

import llmir
from llmir.backends.cost.calibrated import KernelTime
from llmir.backends.kernels.gemm import GemmKernel
from llmir.backends.work.rows import Row
from llmir.hw import library
from llmir.hw.device import Device
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import B

Array = np.ndarray[Any, np.dtype[Any]]

SEQUENCES = np.unique([*range(1, 66), *(2**k + d for k in range(7, 11) for d in (-1, 0, 1))])
TOKENS = np.arange(1, 66)
CONTEXTS = (512, 32768)
ENGINES = ("vllm", "sglang", "trtllm", "hf-transformers")
MODELS = (
    *("llama3.1-8b", "llama3.1-70b", "gemma-3-27b", "qwen3-30b-a3b", "glm-4.5-air", "gpt-oss-120b"),
    *("deepseek-v3", "qwen3-next-80b-a3b"),
)
PRECISIONS = ("", "quantize{weights=fp8, kv=fp8}")
SHARDS = (1, 8)
TILE = 128  # rows and columns of other tiles; a wave is one on each multiprocessor
EQUAL = 1e-9
TWO = 1.3  # of the time of one new token, two at most
SENT = 2.0  # of what ranks send for one new token, two send


@dataclass(frozen=True)
class Jump:
    """A step that is more than it may be: by how much of itself, after which size, by which op mostly."""

    law: str
    share: float
    size: int
    op: str


@cache
def program(model: str, engine: str, precision: str, tp: int) -> llmir.Program:
    """The model as the engine runs it."""
    passes = [llmir.pipeline_of(engine), precision, f"shard{{tp={tp}}}" if tp > 1 else ""]
    return llmir.run(llmir.load(model), ",".join(filter(None, passes)))


def wave(row: Row, price: Any, device: Device, at: Binding) -> Any:
    """Seconds in which each multiprocessor multiplies a tile of each product, all of k deep.

    Products have the largest tile of their kernel, at the share of the peak that it reaches for long.
    """
    if not row.work.gemms or not device.multiprocessors:
        return 0.0
    deep = sum((g.k for g in row.work.gemms[:1]), start=0)
    if row.kind == "attention":
        deep = sum((g.n for g in row.work.gemms), start=0)
    kernel = price.fit.kernel if isinstance(price, KernelTime) else None
    (tall, wide), rate = (TILE, TILE), device.matrix_peak(row.work.dtype.name)[0]
    if isinstance(kernel, GemmKernel):
        (tall, wide), rate = kernel.tiles[-1], rate * kernel.rate * kernel.sustained
    return 2 * tall * wide * at(deep) * device.multiprocessors / rate


def launch(price: Any) -> float:
    """Seconds of an empty call, of the slowest of an op's kernels."""
    return max((p.launch_s for p in getattr(price, "prices", (price,)) if hasattr(p, "launch_s")), default=0)


def allowed(report: llmir.Report, count: int) -> Array:
    """Seconds of a launch and of a wave of tiles of each op, by op."""
    plan = report.plan
    prices = [plan.model.price(row) for row in plan.rows]
    slack = [
        launch(price) + wave(row, price, plan.model.device, report.at)
        for row, price in zip(plan.rows, prices, strict=True)
    ]
    return np.array([np.broadcast_to(s, count) * r.repeat for s, r in zip(slack, plan.rows, strict=True)])


def times(report: llmir.Report, count: int) -> tuple[Array, list[str]]:
    """Seconds of each op, all repeats together, and its kind and opcode."""
    kinds = {row.name: f"{row.kind} {row.node.op.opcode}" for row in report.plan.rows}
    ops = [op for op in report.ops if op.name in kinds]
    return np.array([np.broadcast_to(op.total_s, count) for op in ops]), [kinds[op.name] for op in ops]


def curve(law: str, report: llmir.Report, sizes: Array) -> Iterator[Jump]:
    """Where it rises by more than one part of what it does and a launch and a wave, or falls."""
    whole = np.broadcast_to(report.time_s, sizes.shape)
    ops, kinds = times(report, len(sizes))
    slack = allowed(report, len(sizes))
    steps = np.flatnonzero(np.diff(sizes) == 1)
    run = np.broadcast_to(sizes * report.plan.runs(report.at)(B) / report.at(B), sizes.shape)
    grows = np.maximum(1 + 1 / sizes[steps], run[steps + 1] / run[steps])  # of what was captured
    most = whole[steps] * grows + slack.sum(0)[steps]
    graph = np.broadcast_to(report.plan.captured(report.at), sizes.shape)
    same = graph[steps] == graph[steps + 1]
    for fault, over, by in (
        (
            "jumps",
            (whole[steps + 1] - most) * same,
            ops[:, steps + 1] - ops[:, steps] * grows - slack[:, steps],
        ),
        ("falls", whole[steps] - whole[steps + 1], ops[:, steps] - ops[:, steps + 1]),
    ):
        worst = int(np.argmax(over / whole[steps]))
        if over[worst] > EQUAL * whole[steps][worst]:
            share = float(over[worst] / whole[steps][worst])
            yield Jump(f"{law} {fault}", share, int(sizes[steps][worst]), kinds[int(by[:, worst].argmax())])
    rise = whole[steps + 1] / whole[steps] - 1
    late = sizes[steps] > 4  # before, one more is a quarter more
    late &= same & (run[steps + 1] <= run[steps] + 1)
    if late.any() and rise[late].max() > 0.25:
        worst = int(np.argmax(np.where(late, rise, 0)))
        by = ops[:, steps + 1] - ops[:, steps]
        where = int(sizes[steps][worst])
        yield Jump(f"{law} rises by a quarter", float(rise[worst]), where, kinds[int(by[:, worst].argmax())])


def pair(one: llmir.Report, two: llmir.Report, context: int) -> Iterator[Jump]:
    """Where two new tokens cost too much; an op may grow as its roofline does, as experts and links do."""
    before = {op.name: op for op in one.ops}
    most = TWO * float(one.time_s)
    for op in two.ops:
        if (old := before.get(op.name)) and old.ideal_time_s:
            grows = SENT if op.kind == "collective" else float(op.ideal_time_s / old.ideal_time_s)
            most += float(old.total_s) * max(0.0, grows - TWO)
    first, second = float(one.time_s), float(two.time_s)
    if second > most:
        ops, kinds = times(two, 1)
        worst = max(range(len(kinds)), key=lambda i: float(ops[i, 0]))
        yield Jump("two tokens", second / first - 1, context, kinds[worst])


class Found(NamedTuple):
    """How many curves of each law there are, all that is wrong with them, and why there are no more."""

    curves: int
    faults: list[tuple[Jump, tuple[Any, ...]]]
    skipped: list[tuple[str, tuple[Any, ...]]]


def jumps(device: str, engine: str, model: str) -> Found:
    """What is found of one model."""
    found = Found(0, [], [])
    curves = 0
    for precision, tp, context in product(PRECISIONS, SHARDS, CONTEXTS):
        of = (device, engine, model, precision, tp, context)

        try:
            base = program(model, engine, precision, tp)

            def step(
                new: Any, batch: Any, phase: str | None = None, base: Any = base, c: int = context
            ) -> Any:
                return llmir.analyze(
                    base,
                    device,
                    batch=batch,
                    new=new,
                    context=c,
                    phase=phase,
                    estimation=llmir.Estimation(engine=engine),
                )

            some = [*curve("sequences", step(1, SEQUENCES), SEQUENCES)]
        except llmir.LlmirError as error:
            found.skipped.append((str(error), of))
            continue
        for batch in (1, 8):
            some += pair(step(1, batch), step(2, batch), context)
            some += curve(f"tokens of {batch}", step(TOKENS, batch, "decode"), TOKENS)
        curves += 1
        found.faults.extend((jump, of) for jump in some)
    return found._replace(curves=curves)


def _job(of: tuple[str, str, str]) -> Found:
    return jumps(*of)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints violations by law and op, and the worst of each; returns how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", nargs="+", default=[n for n in library.names() if n != "cpu"])
    parser.add_argument("--engine", nargs="+", default=list(ENGINES))
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="of the grid each such one alone")
    options = parser.parse_args(arguments)
    grid = list(product(options.device, options.engine, options.model))[:: options.every]
    if options.jobs > 1:
        with Pool(options.jobs) as pool:
            return table(pool.imap_unordered(_job, grid, chunksize=4))
    return table(map(_job, grid))


def table(every: Iterable[Found]) -> int:
    """A line for each law and op: how many curves break it, and the worst, and for each reason to skip."""
    curves = 0
    counts: Counter[tuple[str, str]] = Counter()
    worst: dict[tuple[str, str], tuple[float, str]] = defaultdict(lambda: (0.0, ""))
    skipped: dict[str, list[str]] = defaultdict(list)
    for found in every:
        curves += found.curves
        for reason, of in found.skipped:
            skipped[reason].append(_named(of))
        for jump, of in found.faults:
            key = jump.law, jump.op
            counts[key] += 1
            text = f"{jump.share:.0%} after {jump.size}: {_named(of)}"
            worst[key] = max(worst[key], (jump.share, text))
    print(f"{curves} curves of each law, {sum(map(len, skipped.values()))} skipped")
    for reason, which in sorted(skipped.items(), key=lambda item: -len(item[1])):
        print(f"skipped {len(which):6}  {reason}: {which[0]}")
    for (law, op), many in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"{law:34}{op:40}{many:6}  {worst[law, op][1]}")
    return sum(counts.values())


def _named(of: tuple[Any, ...]) -> str:
    return ", ".join(map(str, filter(None, of)))


if __name__ == "__main__":
    raise SystemExit(bool(main()))
