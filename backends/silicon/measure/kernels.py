"""PyTorch's own kernels, called one by one as a model in eager mode calls them."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from llmir.base.errors import InputError

from .machine import FRAMEWORK, Point
from .plan import LARGE, Facts, turns

WARM = 2  # calls that load code and fill pools
LEAST, MOST = 5, 1000  # calls or batches of them
# Where glibc maps memory anew for each allocation, at most: M_MMAP_THRESHOLD in mallopt(3).
FRESH_BYTES = 32 * 2**20
RMS_EPSILON = 1e-6
DRAWN = 1 << 16  # random numbers
CACHE_BYTES = 32 * 2**20  # of a CPU that does not say


class Eager:
    """This machine's first GPU (CUDA or ROCm), or its CPU with as many threads as PyTorch uses.

    InputError without PyTorch. `each_s` is how long a point is repeated.
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
        """As the driver reports it, `cpu` for a CPU."""
        return str(self.torch.cuda.get_device_name(0)) if self.gpu else "cpu"

    @property
    def description(self) -> str:
        """What a device file calls it."""
        return (
            self.name
            if self.gpu
            else f"{_processor()}, {self.processors} thread{'s' * (self.processors > 1)}"
        )

    @property
    def devices(self) -> int:
        """How many GPUs there are."""
        return int(self.torch.cuda.device_count()) if self.gpu else 1

    @property
    def processors(self) -> int:
        """Multiprocessors, or threads of a CPU."""
        if self.gpu:
            return int(self.torch.cuda.get_device_properties(0).multi_processor_count)
        return int(self.torch.get_num_threads())

    @cached_property
    def facts(self) -> Facts:
        """What the plan needs; rates by one product and one copy."""
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
        return Facts(dtypes, flops, bandwidth, cache, memory, math.inf if self.gpu else FRESH_BYTES)

    def seconds(self, point: Point) -> float | None:
        """The median of several calls; None where memory does not suffice or a dtype is not supported."""
        make = getattr(self, f"_{point.file}")
        try:
            with self.torch.inference_mode():
                return self.median(make(point))
        except RuntimeError:  # OutOfMemoryError is one
            return None

    def median(self, call: Callable[[], object]) -> float:
        """Seconds of a call, after a few to warm up."""
        for _ in range(WARM):
            call()
        measure = self._on_gpu if self.gpu else _on_cpu
        taken = [measure(call)]
        while len(taken) < LEAST or (sum(taken) < self.each_s and len(taken) < MOST):
            taken.append(measure(call))
        return median(taken)

    def _on_gpu(self, call: Callable[[], object], calls: int = 20) -> float:
        """Of so many calls in a row, each by the GPU's own clock."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    def _random(self, point: Point, *shape: int, copies: int = 1) -> Any:
        """Random numbers, or the same in several places of the memory."""
        dtype = getattr(self.torch, str(point.cells["dtype"]))
        some = self.torch.randn(DRAWN, device=self.place).to(dtype)  # the rest repeats them
        found = some.repeat(-(-math.prod(shape) // DRAWN))[: math.prod(shape)].view(shape)
        return found.expand(copies, *shape).contiguous() if copies > 1 else found

    def _in_turn(self, operands: Iterable[Any], call: Callable[[Any], object]) -> Callable[[], object]:
        """`call` of one operand after another."""
        turn = cycle(list(operands))
        return lambda: call(next(turn))

    def _gemm(self, point: Point) -> Callable[[], object]:
        x = self._random(point, point["m"], point["k"])
        weights = self._random(point, point["n"], point["k"], copies=point["turns"])
        linear = self.torch.nn.functional.linear
        return self._in_turn(weights, lambda w: linear(x, w))

    def _attention_prefill(self, point: Point) -> Callable[[], object]:
        batch, heads, kv_heads, head = (point[c] for c in ("batch", "num_heads", "num_kv_heads", "head_dim"))
        q = self._random(point, batch, heads, point["q_len"], head)
        alone = point["q_len"] == 1  # then a cache is read, as cold as weights are
        cache = 2, batch, kv_heads, point["context"], head
        copies = turns(self.facts, 2 * batch * kv_heads * point["context"] * head * point.size)
        caches = self._random(point, *cache, copies=copies if alone else 2)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": not alone, "enable_gqa": heads != kv_heads}
        return self._in_turn(caches, lambda kv: attend(q, kv[0], kv[1], **options))

    _attention_decode = _attention_prefill

    def _elementwise(self, point: Point) -> Callable[[], object]:
        """As transformers' models write them, step by step."""
        torch = self.torch
        held = 2 * point["rows"] * point["cols"] * point.size
        pairs = self._random(point, 2, point["rows"], point["cols"], copies=turns(self.facts, held, MOST))
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
    """The CPU's name, by Linux or else by Python."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or "CPU"


def _cache_bytes() -> int:
    """The largest cache that the first core sees, by Linux; elsewhere what servers have for a few cores."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [p.read_text().strip() for p in folder.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=CACHE_BYTES)
