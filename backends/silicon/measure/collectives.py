"""Collectives among this machine's devices, by torch.distributed: a process for each."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .machine import Point

DTYPE = "bfloat16"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
SIZES = tuple(4096 * 4**n for n in range(10))  # bytes, to 1 GiB
CALLS = 20


def collectives(
    ranks: int, backend: str = "nccl", *, sizes: Sequence[int] = SIZES, ops: Sequence[str] = OPS
) -> list[tuple[Point, float]]:
    """Each collective of each size, among 2, 4, … and all devices, with its median seconds."""
    from torch.multiprocessing import spawn

    found = []
    for many in sorted({*(2**n for n in range(1, ranks.bit_length()) if 2**n < ranks), ranks}):
        with tempfile.TemporaryDirectory() as folder:
            spawn(_rank, (many, backend, folder, tuple(sizes), tuple(ops)), nprocs=many)
            timed = json.loads((Path(folder) / "seconds.json").read_text())
        cells = {"dtype": DTYPE, "num_gpus": many}
        found += [(Point("collective", {"op": op, **cells, "bytes": size}), s) for op, size, s in timed]
    return found


def _rank(rank: int, ranks: int, backend: str, folder: str, sizes: Sequence[int], ops: Sequence[str]) -> None:
    """One process; the first writes what it measured."""
    import torch
    import torch.distributed as dist

    place = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    timed, gpu = [], torch.cuda if backend == "nccl" else None
    for size in sizes:
        whole = torch.ones(size // 2 // ranks * ranks, dtype=torch.bfloat16, device=place)
        piece = whole[: len(whole) // ranks].clone()
        other = torch.empty_like(whole)
        for op in ops:
            call = _call(dist, op, whole, piece, other)
            timed.append((op, 2 * len(whole), _seconds(call, dist, gpu)))
    if rank == 0:
        (Path(folder) / "seconds.json").write_text(json.dumps(timed))
    dist.destroy_process_group()


def _call(dist: Any, op: str, whole: Any, piece: Any, other: Any) -> Callable[[], object]:
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(other, piece),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
        "alltoall": lambda: dist.all_to_all_single(other, whole),
    }[op]


def _seconds(call: Callable[[], object], dist: Any, gpu: Any) -> float:
    """Median of a few batches of calls, all ranks starting together."""
    taken = []
    for _ in range(5):
        dist.barrier()
        if gpu:
            gpu.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        if gpu:
            gpu.synchronize()
        taken.append((time.perf_counter() - begin) / CALLS)
    return median(taken[1:])
