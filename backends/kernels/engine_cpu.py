"""Engine CPU time: scheduling, sampling and launches that an engine adds to its kernels.

A step takes the longer of its kernels and of the CPU's launches, plus the time to schedule the step and to
sample each sequence. Kernels are measured one at a time; a CUDA graph hides the launch gap before each of
them. Ranks reach a collective at different times and wait for the last. With exponentially distributed
delays, the delay of the last of n ranks is the n-th harmonic number of mean delays (Rényi 1953, `rank_skew`).

`EngineCpu` schedules between steps, while the GPU waits. `OverlappedEngineCpu` schedules one step while the
GPU runs another. `AsyncEngineCpu` hides only the work that it does per sequence. `EagerEngineCpu` is eager
PyTorch, in which the CPU runs ahead of the GPU.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .base import Kernel, Shape, families, parameter


@dataclass(frozen=True)
class StepShape(Shape):
    """A step of `kernels` calls on one rank with `sequences` sequences, or the sum of `steps` steps.

    The kernels take `busy` seconds if each has its whole launch gap, and `waiting` seconds less without these
    gaps. `late` is the wait for other ranks in all collectives, in mean delays of one rank (`rank_skew`).
    """

    busy: Number
    waiting: Number
    kernels: Number
    sequences: Number
    late: Number = 0.0
    steps: Number = 1.0

    def times(self, count: Number) -> StepShape:
        """Multiply the step by a number or a share."""
        return StepShape(*(value * count for value in vars(self).values()))


def rank_skew(ranks: int) -> float:
    """Mean wait of a rank for the last of `ranks`, in mean delays of one rank: H(n) − 1 (Rényi 1953).

    >>> rank_skew(1), rank_skew(2), round(rank_skew(8), 3)
    (0.0, 0.5, 1.718)
    """
    return sum((1 / n for n in range(2, ranks + 1)), start=0.0)


@dataclass(frozen=True)
class RunShape(Shape):
    """A measured time as the sum of its steps: steps that only decode, and steps with prefill.

    `idle` is the time in seconds in which no step runs. It can also correct the difference between the steps
    of the run and the equal steps that represent them here.
    """

    decode: StepShape
    reads: StepShape
    idle: Number = 0.0


@families("host")
@dataclass(frozen=True)
class EngineCpu(Kernel):
    """The CPU time of an engine that schedules between steps, on any device."""

    # With six starting points, the fit for transformers missed the best one by 0.4 points of mean error.
    starts: ClassVar[int] = 24
    # Engines differ more than similar GPUs do: some launch kernels one by one, others launch graphs.
    prior: ClassVar[float] = 0.001

    # In a graph, a kernel still takes a few tenths of a µs to start.
    hidden: float = parameter(0.6, 0, 0.85, "", "share of the launch gap of each kernel that is hidden")
    step_us: float = parameter(1000, 1, 30000, "µs", "CPU time per step")
    sequence_us: float = parameter(20, 0.1, 2000, "µs", "CPU time added per sequence")
    kernel_us: float = parameter(
        20, 0.1, 300, "µs", "CPU time to launch a kernel, while the previous one runs"
    )
    skew_us: float = parameter(2, 0.05, 60, "µs", "mean delay of a rank at a collective")

    def kernel_time(self, busy: Number, kernels: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """Seconds of the kernels: at least as long as the CPU needs to launch them."""
        return xp.maximum(busy, kernels * self.kernel_us * 1e-6)

    def skew_time(self, late: Number) -> Number:
        """Seconds that a rank waits for others in collectives; `late` as in `StepShape`."""
        return self.skew_us * 1e-6 * late

    def cpu_time(self, sequences: Number, steps: Number = 1.0) -> Number:
        """Seconds of CPU work other than launches."""
        return (self.step_us * steps + self.sequence_us * sequences) * 1e-6

    def exposed_cpu_time(
        self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0
    ) -> Number:
        """Seconds for which the GPU waits for this work, in steps that otherwise take `seconds`."""
        return self.cpu_time(sequences, steps)

    @property
    def serial(self) -> EngineCpu:
        """The CPU time of an engine that starts a step only after the previous one ends."""
        return self

    @property
    def launch_text(self) -> str:
        """The time of `kernel_time`, as text."""
        return f"{self.kernel_us:g} µs a kernel"

    def cpu_text(self, sequences: Number) -> str:
        """The time of `cpu_time`, as text."""
        return f"{self.step_us:,.0f} µs + {sequences:,} × {self.sequence_us:.3g} µs a sequence"

    def step(self, shape: StepShape, xp: Namespace) -> Number:
        """Seconds of a step, or of several equal steps."""
        busy = self.kernel_time(shape.busy - self.hidden * shape.waiting, shape.kernels, xp, shape.steps)
        seconds = busy + self.skew_time(shape.late)
        return seconds + self.exposed_cpu_time(seconds, shape.sequences, xp, shape.steps)

    def seconds(self, device: Device, shape: RunShape, xp: Namespace = ARRAYS) -> Number:
        return self.step(shape.decode, xp) + self.step(shape.reads, xp) + shape.idle


@families("overlapped_host")
@dataclass(frozen=True)
class OverlappedEngineCpu(EngineCpu):
    """The CPU time of an engine that schedules and samples one step while the GPU runs another.

    A step takes the longer of both times.
    """

    def exposed_cpu_time(
        self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0
    ) -> Number:
        return xp.maximum(self.cpu_time(sequences, steps) - seconds, 0.0)

    @property
    def serial(self) -> EngineCpu:
        return EngineCpu(**vars(self))

    def cpu_text(self, sequences: Number) -> str:
        return f"{super().cpu_text(sequences)}, while another step runs"


@families("async_host")
@dataclass(frozen=True)
class AsyncEngineCpu(EngineCpu):
    """The CPU overhead of asynchronous scheduling, the default of vLLM: work on sequences overlaps the GPU.

    Work that occurs once per step (inputs, samplers, and copies outside the graph) delays the GPU.
    """

    def exposed_cpu_time(
        self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0
    ) -> Number:
        each = self.sequence_us * 1e-6 * sequences
        return self.step_us * 1e-6 * steps + xp.maximum(each - seconds, 0.0)

    @property
    def serial(self) -> EngineCpu:
        return EngineCpu(**vars(self))

    def cpu_text(self, sequences: Number) -> str:
        return f"{super().cpu_text(sequences)}, sequences while the step runs"


@families("eager_host")
@dataclass(frozen=True)
class EagerEngineCpu(EngineCpu):
    """The CPU time of eager PyTorch, in which the CPU runs ahead of the GPU.

    A step takes the longer of both times. Preparation delays a kernel only if the GPU has no kernels left.
    The CPU waits for the token of each sequence.
    """

    def kernel_time(self, busy: Number, kernels: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        return xp.maximum(busy, (steps * self.step_us + kernels * self.kernel_us) * 1e-6)

    def cpu_time(self, sequences: Number, steps: Number = 1.0) -> Number:
        return self.sequence_us * sequences * 1e-6

    @property
    def launch_text(self) -> str:
        return f"{self.step_us:,.0f} µs + {super().launch_text}"

    def cpu_text(self, sequences: Number) -> str:
        return f"{sequences:,} × {self.sequence_us:.3g} µs a sequence"
