"""Where a step of a model takes less than it may, or more than it need, over devices, engines and models.

    python benchmarks/laws.py [--device NAME …] [--engine NAME …] [--model NAME …] [--every N] [--raise X]

Calibrated, it takes no less than by the roofline; with the engine's fusions no more than without; with one
rate of the device raised no more than before; on ranks of two nodes no less than on those of one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import llmir
from benchmarks.smooth import ENGINES, EQUAL, MODELS, PRECISIONS, SHARDS
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.link import Link, MachineNode

Array = np.ndarray[Any, np.dtype[Any]]

BATCH, CONTEXT = np.array([1, 9, 64])[:, None], np.array([512, 32768])[:, None, None]
STEPS: tuple[dict[str, Any], ...] = (
    {"batch": BATCH, "new": np.array([1, 2, 8]), "context": CONTEXT, "phase": "decode"},
    {"batch": BATCH, "new": np.array([9, 100, 900]), "context": CONTEXT, "phase": "prefill"},
)
FUSIONS = ("fuse", "rotate")  # what the names of passes that fuse begin with
RAISED = 1.2
NETWORK = Link(50e9, 2.7e-6, direct=True)  # of a node: an InfiniBand NDR port a device, as a DGX H100 has


@cache
def program(model: str, engine: str, precision: str, tp: int, fusions: bool = True) -> llmir.Program:
    """The model as the engine runs it, or without what the engine fuses."""
    passes = [p for p in _passes(engine) if fusions or not p.startswith(FUSIONS)]
    shard = f"shard{{tp={tp}}}" if tp > 1 else ""
    return llmir.run(llmir.load(model), ",".join(filter(None, [*passes, precision, shard])))


def _passes(engine: str) -> list[str]:
    return llmir.pipeline_of(engine).split(",")


def faster(device: Device, by: float) -> Iterator[tuple[str, Device]]:
    """The device with one rate raised, each in turn, and with so many more multiprocessors of the same."""
    yield "memory", replace(device, memory_Bps=by * device.memory_Bps)
    if device.l2_bytes:
        yield "L2", replace(device, l2_bytes=int(by * device.l2_bytes))
    for name, link in device.links.items():
        yield name, replace(device, links={**device.links, name: replace(link, Bps=by * link.Bps)})
    for name in ("matrix_flops", "vector_flops"):
        rates = getattr(device, name)
        for dtype in rates:
            yield f"{name} {dtype}", replace(device, **{name: {**rates, dtype: by * rates[dtype]}})
    rates = {n: {k: by * v for k, v in getattr(device, n).items()} for n in ("matrix_flops", "vector_flops")}
    many = int(by * (device.multiprocessors or 0))
    yield (
        "multiprocessors",
        replace(device, multiprocessors=many, memory_Bps=by * device.memory_Bps, **rates),
    )


def _in_nodes(device: Device, devices: int) -> Device:
    return replace(device, node=MachineNode(f"box of {devices}", devices, NETWORK))


def faults(device: str, engine: str, model: str, by: float = RAISED) -> Iterator[tuple[str, float, str]]:
    """Each law that is broken: its name, the worst share of the time, and where."""
    known = library.load(device)
    for precision, tp, step in product(PRECISIONS, SHARDS, STEPS):
        fused, eager = (program(model, engine, precision, tp, fusions) for fusions in (True, False))
        own = llmir.Estimation(engine=engine)

        def times(
            base: llmir.Program,
            of: Device,
            by: llmir.Estimation = own,
            at: dict[str, Any] = step,
        ) -> Array:
            return np.asarray(llmir.analyze(base, of, **at, estimation=by).time_s)

        name = f"{device}, {engine}, {model}, {precision or 'bf16'}, tp {tp}"

        def broken(law: str, less: Array, more: Array, at: dict[str, Any] = step, of: str = name) -> Any:
            share = less / more - 1
            where = np.unravel_index(np.argmax(share), share.shape)
            if share[where] > EQUAL:
                sizes = {n: np.broadcast_to(at[n], share.shape)[where] for n in ("batch", "new", "context")}
                said = ", ".join(f"{n} {size}" for n, size in sizes.items())
                yield law, float(share[where]), f"{of}: {said}"

        time = times(fused, known)
        yield from broken("below the roofline", times(fused, known, llmir.Estimation(cost="ideal")), time)
        yield from broken("fusions cost", time, times(eager, known))
        for rate, other in faster(known, by):
            yield from broken(f"slower by a faster {rate}", times(fused, other), time)
        if tp > 1:
            one, two, each = (times(fused, _in_nodes(known, n)) for n in (tp, tp // 2, 1))
            yield from broken("cheaper over two nodes", one, two)
            yield from broken("cheaper over as many nodes as ranks", one, each)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints how many programs break a law, and the worst of each; returns how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", nargs="+", default=[n for n in library.names() if n != "cpu"])
    parser.add_argument("--engine", nargs="+", default=list(ENGINES))
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--every", type=int, default=1, help="of the grid each such one alone")
    parser.add_argument("--raise", type=float, default=RAISED, help="of a rate, this many times it")
    options = parser.parse_args(arguments)
    grid = list(product(options.device, options.engine, options.model))[:: options.every]
    counts: Counter[str] = Counter()
    worst: dict[str, tuple[float, str]] = {}
    skipped: Counter[str] = Counter()
    for of in grid:
        try:
            for law, share, where in faults(*of, by=vars(options)["raise"]):
                counts[law] += 1
                worst[law] = max(worst.get(law, (0.0, "")), (share, where))
        except llmir.LlmirError as error:
            skipped[str(error)] += 1
    print(f"{len(grid)} of device, engine and model, {skipped.total()} skipped")
    for reason, many in skipped.most_common():
        print(f"skipped {many:6}  {reason}")
    for law, many in counts.most_common():
        share, where = worst[law]
        print(f"{law:40}{many:6}  {share:.1%} {where}")
    return counts.total()


if __name__ == "__main__":
    raise SystemExit(bool(main()))
