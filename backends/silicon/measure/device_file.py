"""Write the YAML file of a device from its best measured rates, for a machine that is not bundled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from llmir.ir.core.dtype import parse_dtype

from .machine import PEAKS, MachineFacts, MeasurePoint

WIRE = {"all_reduce": 2}  # sent bytes in units of (n − 1)/n of the payload; 1 for other collectives
Timed = Sequence[tuple[MeasurePoint, float]]


def device_text(
    name: str, facts: MachineFacts, processors: int, timed: Timed, *, gpu: bool, host: float | None = None
) -> str:
    """The YAML of a device with the best rates among `timed`, which has to include fp32 products.

    `host` is the rate of copies to and from host memory in bytes per second, if measured. fp32 products run
    on the vector units of a CPU, and of a GPU without tf32.
    """
    rates = {
        parse_dtype(d).name: _peak(p.flops / s for p, s in timed if _product(p, d)) for d in facts.dtypes
    }
    rates = {unit: rate for unit, rate in rates.items() if rate}
    fp32 = rates.pop("fp32")
    matrix = ", ".join(f"{unit}: {_up(rate / 1e12)}" for unit, rate in rates.items())
    measured = ["vector_tflops", "memory_GBps", *(["matrix_tflops"] if matrix else [])]
    lines = [f'name: "{name}"']
    if matrix:
        lines.append(f"matrix_tflops: {{{matrix}}}")
    lines += [
        f"vector_tflops: {{fp32: {_up(fp32 / 1e12)}}}",
        f"memory_GiB: {facts.memory_bytes / 2**30:.4g}",
        f"memory_GBps: {_up(_peak(map(_streamed, timed)) / 1e9)}",
        f"{'multiprocessors' if gpu else 'cores'}: {processors}",
        f"l2_MiB: {facts.cache_bytes / 2**20:.4g}  # its largest cache",
    ]
    links = []
    if bus := _peak(map(_sent, timed)):
        links.append(f"measured: {{GBps: {_up(bus / 1e9)}, direct: true}}")
    if host:
        rate = _up(host / 1e9)
        links.append(f"host: {{GBps: {rate}, ranks: 1, host_GBps: {rate}}}")
    if links:
        lines.append(f"links: {{{', '.join(links)}}}")
        measured.append("links")
    source = f"measured by llmir calibrate --run, the best of {len(timed)} calls"
    return "\n".join([*lines, "sources:", f"  {', '.join(measured)}: {source}"]) + "\n"


def _peak(rates: Iterable[float]) -> float:
    return max(rates, default=0.0)


def _up(value: float) -> str:
    """A rate with four digits, rounded up, so that no row exceeds the peak that was derived from it."""
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10**digits) / 10**digits:.{max(digits, 0)}f}"


def _product(point: MeasurePoint, dtype: str) -> bool:
    return point.file == "gemm" and point.cells["dtype"] == dtype


def _streamed(timed: tuple[MeasurePoint, float]) -> float:
    """Bandwidth in bytes per second of operands that are not in a cache: weights in rotation, and large
    copies.
    """
    point, seconds = timed
    if point.file == "gemm":
        return point["n"] * point["k"] * point.size / seconds
    return point.bytes / seconds if point.cells.get("op") in PEAKS else 0.0


def _sent(timed: tuple[MeasurePoint, float]) -> float:
    """Bytes per second that each rank sends."""
    point, seconds = timed
    if point.file != "collective":
        return 0.0
    ranks = point["num_gpus"]
    return WIRE.get(str(point.cells["op"]), 1) * point["bytes"] * (ranks - 1) / ranks / seconds
