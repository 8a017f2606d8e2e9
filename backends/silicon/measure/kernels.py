"""Time PyTorch's kernels on this machine: single ops, collectives, and host copies.

Order of the file: `EagerMachine` calls kernels one by one like a model in eager mode. `collectives` runs
torch.distributed with one process per device. `copy_rate` measures the link to the host.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from llmir.base.errors import HardwareError, InputError
from llmir.hw.device import Device

from .machine import FRAMEWORK, LARGE, MachineFacts, MeasurePoint, operand_count

# Single ops

WARM = 2  # warm-up calls, which load code and allocate memory
LEAST, MOST = 5, 1000  # number of calls, or of batches of calls
# From this size on, glibc maps new memory for each allocation: M_MMAP_THRESHOLD in mallopt(3).
FRESH_BYTES = 32 * 2**20
RMS_EPSILON = 1e-6
DRAWN = 1 << 16  # number of different random numbers
CACHE_BYTES = 32 * 2**20  # if the operating system does not state it


class EagerMachine:
    """The first GPU of this machine (CUDA or ROCm), or its CPU with the threads of PyTorch.

    `each_s` is the time in seconds that is spent on each point. InputError without PyTorch.
    """

    def __init__(self, each_s: float = 0.1) -> None:
        try:
            import torch
        except ImportError:
            raise InputError("--run needs PyTorch: pip install 'llmir[run]'") from None
        self.torch: Any = torch
        self.each_s = each_s
        self.gpu = bool(torch.cuda.is_available())
        self.place = "cuda" if self.gpu else "cpu"
        self.framework = f"{FRAMEWORK}-{torch.__version__}"

    @property
    def name(self) -> str:
        """The name that the driver reports; `cpu` for a CPU."""
        return str(self.torch.cuda.get_device_name(0)) if self.gpu else "cpu"

    @property
    def description(self) -> str:
        """The name in a device file."""
        return (
            self.name
            if self.gpu
            else f"{_processor()}, {self.processors} thread{'s' * (self.processors > 1)}"
        )

    @property
    def devices(self) -> int:
        """Number of GPUs."""
        return int(self.torch.cuda.device_count()) if self.gpu else 1

    @property
    def processors(self) -> int:
        """Number of multiprocessors, or of CPU threads."""
        if self.gpu:
            return int(self.torch.cuda.get_device_properties(0).multi_processor_count)
        return int(self.torch.get_num_threads())

    @cached_property
    def facts(self) -> MachineFacts:
        """Rates for the measurement plan, from one product and one copy."""
        if self.gpu:
            about = self.torch.cuda.get_device_properties(0)
            memory, cache = int(about.total_memory), int(about.L2_cache_size)
            half = "bfloat16" if self.torch.cuda.is_bf16_supported() else "float16"
            dtypes = (half, "float32")
        else:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            cache, dtypes = _cache_bytes(), ("float32", "bfloat16")
        ones = [self.torch.ones(1024, 1024, device=self.place) for _ in range(2)]
        flops = 2 * 1024**3 / self.median(lambda: ones[0] @ ones[1])
        large = self.torch.ones(LARGE * cache // 8, device=self.place)
        bandwidth = large.nbytes / self.median(large.clone)
        return MachineFacts(dtypes, flops, bandwidth, cache, memory, math.inf if self.gpu else FRESH_BYTES)

    def seconds(self, point: MeasurePoint) -> float | None:
        """Median seconds of several calls; None if memory is too small or the dtype is not supported."""
        make = getattr(self, f"_{point.file}")
        try:
            with self.torch.inference_mode():
                return self.median(make(point))
        except RuntimeError:  # OutOfMemoryError is one
            return None

    def median(self, call: Callable[[], object]) -> float:
        """Seconds of a call, after warm-up calls."""
        for _ in range(WARM):
            call()
        measure = self._on_gpu if self.gpu else _on_cpu
        taken = [measure(call)]
        while len(taken) < LEAST or (sum(taken) < self.each_s and len(taken) < MOST):
            taken.append(measure(call))
        return median(taken)

    def _on_gpu(self, call: Callable[[], object], calls: int = 20) -> float:
        """Median seconds of consecutive calls, each measured with the clock of the GPU."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    def _random(self, point: MeasurePoint, *shape: int, copies: int = 1) -> Any:
        """Random numbers, in as many `copies` at different places in memory."""
        dtype = getattr(self.torch, str(point.cells["dtype"]))
        some = self.torch.randn(DRAWN, device=self.place).to(dtype)  # repeated to fill the tensor
        found = some.repeat(-(-math.prod(shape) // DRAWN))[: math.prod(shape)].view(shape)
        return found.expand(copies, *shape).contiguous() if copies > 1 else found

    def _in_turn(self, operands: Iterable[Any], call: Callable[[Any], object]) -> Callable[[], object]:
        """A function that calls `call` with the operands in rotation."""
        turn = cycle(list(operands))
        return lambda: call(next(turn))

    def _gemm(self, point: MeasurePoint) -> Callable[[], object]:
        x = self._random(point, point["m"], point["k"])
        weights = self._random(point, point["n"], point["k"], copies=point["turns"])
        linear = self.torch.nn.functional.linear
        return self._in_turn(weights, lambda w: linear(x, w))

    def _attention_prefill(self, point: MeasurePoint) -> Callable[[], object]:
        batch, heads, kv_heads, head = (point[c] for c in ("batch", "num_heads", "num_kv_heads", "head_dim"))
        q = self._random(point, batch, heads, point["q_len"], head)
        alone = point["q_len"] == 1  # decode reads a cache that is not in the L2
        cache = 2, batch, kv_heads, point["context"], head
        copies = operand_count(self.facts, 2 * batch * kv_heads * point["context"] * head * point.size)
        caches = self._random(point, *cache, copies=copies if alone else 2)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": not alone, "enable_gqa": heads != kv_heads}
        return self._in_turn(caches, lambda kv: attend(q, kv[0], kv[1], **options))

    _attention_decode = _attention_prefill

    def _elementwise(self, point: MeasurePoint) -> Callable[[], object]:
        """The ops as models of transformers write them: one PyTorch call after another."""
        torch = self.torch
        held = 2 * point["rows"] * point["cols"] * point.size
        pairs = self._random(
            point, 2, point["rows"], point["cols"], copies=operand_count(self.facts, held, MOST)
        )
        row = self._random(point, point["cols"])

        def rms_norm(x: Any) -> object:
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + RMS_EPSILON)
            return row * wide.to(x.dtype)

        def rope(x: Any) -> object:
            half = x.shape[-1] // 2
            turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
            return x * row + turned * row

        ops: dict[str, Callable[[Any], object]] = {
            "add": lambda xy: xy[0] + xy[1],
            "mlp_act": lambda xy: torch.nn.functional.silu(xy[0]) * xy[1],
            "rms_norm": lambda xy: rms_norm(xy[0]),
            "softmax": lambda xy: torch.softmax(xy[0], -1),
            "attn_rope": lambda xy: rope(xy[0]),
            "copy": lambda xy: xy[1].copy_(xy[0]),
            "read": lambda xy: xy[0].sum(),
        }
        return self._in_turn(pairs, ops[str(point.cells["op"])])


def _on_cpu(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _processor() -> str:
    """The name of the CPU from Linux, otherwise from Python."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or "CPU"


def _cache_bytes() -> int:
    """Size of the largest cache of the first core from Linux, otherwise a typical size."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [p.read_text().strip() for p in folder.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=CACHE_BYTES)


# Collectives

DTYPE = "bfloat16"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
SIZES = tuple(4096 * 4**n for n in range(10))  # bytes, to 1 GiB
CALLS = 20


def collectives(
    ranks: int, backend: str = "nccl", *, sizes: Sequence[int] = SIZES, ops: Sequence[str] = OPS
) -> list[tuple[MeasurePoint, float]]:
    """Time each collective with each size among 2, 4, … and all devices; the result is the median in
    seconds.
    """
    from torch.multiprocessing import spawn

    found = []
    for many in sorted({*(2**n for n in range(1, ranks.bit_length()) if 2**n < ranks), ranks}):
        with tempfile.TemporaryDirectory() as folder:
            spawn(_rank, (many, backend, folder, tuple(sizes), tuple(ops)), nprocs=many)
            timed = json.loads((Path(folder) / "seconds.json").read_text())
        cells = {"dtype": DTYPE, "num_gpus": many}
        found += [
            (MeasurePoint("collective", {"op": op, **cells, "bytes": size}), s) for op, size, s in timed
        ]
    return found


def _rank(rank: int, ranks: int, backend: str, folder: str, sizes: Sequence[int], ops: Sequence[str]) -> None:
    """Run one process; the first writes the results."""
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
    """Median of a few batches of calls; all ranks start together."""
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


# Copies between host and device

BYTES = 256 * 2**20  # of a copy: larger than any cache, and long compared to its start

ABOUT = f"measured by llmir calibrate --run, copies of {BYTES // 2**20} MiB of pinned memory, the slower way"


def copy_rate(machine: EagerMachine) -> float | None:
    """Rate of copies of pinned memory in bytes per second, in the slower direction; None on a CPU."""
    if not machine.gpu:
        return None
    torch = machine.torch
    there = torch.empty(BYTES, dtype=torch.uint8, device=machine.place)
    here = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    ways = (lambda: there.copy_(here, non_blocking=True), lambda: here.copy_(there, non_blocking=True))
    return BYTES / max(map(machine.median, ways))


def copy_rate_text(rate: float, device: Device) -> str:
    """YAML lines of a file that extends a device, with this rate of its host link, if it has one."""
    try:
        name = device.host_link[0]
    except HardwareError:
        return ""
    said = f"links: {{{name}: {{host_GBps: {rate / 1e9:.4g}}}}}"
    return f"{said}\nsources:\n  links.{name}.host_GBps: {ABOUT}\n"
