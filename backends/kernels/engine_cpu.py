"""Engine CPU time: scheduling, sampling and launches that an engine adds to its kernels.

A step takes the longer of its kernels and of their launches by the CPU, after the time to schedule the step
and to sample each sequence. Kernels are measured one at a time; a CUDA graph hides the launch gap of each.
Ranks reach a collective at different times and wait for the last: with exponentially distributed delays the
last of n ranks is late by the n-th harmonic number of mean delays (Rényi 1953, `rank_skew`).

`EngineCpu` schedules between steps, while the GPU waits; `OverlappedEngineCpu` schedules one step while the
GPU runs another; `AsyncEngineCpu` hides only its work on sequences; `EagerEngineCpu` is eager PyTorch, whose
CPU runs ahead of the GPU.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .base import Kernel, Shape, families, parameter


@dataclass(frozen=True)
class StepShape(Shape):
    """A step of `kernels` calls on one rank, and so many `sequences`; or the sum of so many `steps`.

    They take `busy` seconds if each waits to begin, less `waiting` if none does. `late` is what a rank waits
    for others in all its collectives, in mean times that one is late (`lateness` of each).
    """

    busy: Number
    waiting: Number
    kernels: Number
    sequences: Number
    late: Number = 0.0
    steps: Number = 1.0

    def times(self, count: Number) -> StepShape:
        """So many of them, or a share of one."""
        return StepShape(*(value * count for value in vars(self).values()))


def rank_skew(ranks: int) -> float:
    """How long a rank waits for the last of so many, on average, in mean times that one is late: H(n) − 1.

    >>> rank_skew(1), rank_skew(2), round(rank_skew(8), 3)
    (0.0, 0.5, 1.718)
    """
    return sum((1 / n for n in range(2, ranks + 1)), start=0.0)


@dataclass(frozen=True)
class RunShape(Shape):
    """A measured time as the steps that it is of: those that decode alone, and those that read prompts.

    `idle` seconds no step runs, or steps differ from those that stand for them.
    """

    decode: StepShape
    reads: StepShape
    idle: Number = 0.0


@families("host")
@dataclass(frozen=True)
class EngineCpu(Kernel):
    """An engine around its kernels, on whatever device."""

    # From six starts transformers' ended beside the best, by 0.4 points of the mean error.
    starts: ClassVar[int] = 24
    # Engines differ by more than siblings of a GPU do: some launch kernels one by one, some graphs of them.
    prior: ClassVar[float] = 0.001

    # In a graph a kernel still takes a few tenths of a µs to begin.
    hidden: float = parameter(0.6, 0, 0.85, "", "share of the time before each kernel begins that is hidden")
    step_us: float = parameter(1000, 1, 30000, "µs", "of the host for each step")
    sequence_us: float = parameter(20, 0.1, 2000, "µs", "more for each sequence in it")
    kernel_us: float = parameter(
        20, 0.1, 300, "µs", "of the host to launch a kernel, while the last one runs"
    )
    skew_us: float = parameter(2, 0.05, 60, "µs", "by which a rank is late to a collective, on average")

    def launched(self, busy: Number, kernels: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """Seconds of so many kernels: as long as the host needs to launch them, at least."""
        return xp.maximum(busy, kernels * self.kernel_us * 1e-6)

    def waited(self, late: Number) -> Number:
        """Seconds of a rank's waiting for others in collectives of so much lateness."""
        return self.skew_us * 1e-6 * late

    def beside(self, sequences: Number, steps: Number = 1.0) -> Number:
        """Seconds in which the host does what is not launching."""
        return (self.step_us * steps + self.sequence_us * sequences) * 1e-6

    def exposed(self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """Seconds that the GPU waits for what the host does beside, in steps that take so many else."""
        return self.beside(sequences, steps)

    @property
    def serial(self) -> EngineCpu:
        """The host of an engine that begins no step before the one before it has ended."""
        return self

    @property
    def launching(self) -> str:
        """What `launched` takes, in words."""
        return f"{self.kernel_us:g} µs a kernel"

    def scheduling(self, sequences: Number) -> str:
        """What `beside` takes, in words."""
        return f"{self.step_us:,.0f} µs + {sequences:,} × {self.sequence_us:.3g} µs a sequence"

    def step(self, shape: StepShape, xp: Namespace) -> Number:
        """Seconds of a step, or of some that are alike."""
        busy = self.launched(shape.busy - self.hidden * shape.waiting, shape.kernels, xp, shape.steps)
        seconds = busy + self.waited(shape.late)
        return seconds + self.exposed(seconds, shape.sequences, xp, shape.steps)

    def seconds(self, device: Device, shape: RunShape, xp: Namespace = ARRAYS) -> Number:
        """What is measured of a run."""
        return self.step(shape.decode, xp) + self.step(shape.reads, xp) + shape.idle


@families("overlapped_host")
@dataclass(frozen=True)
class OverlappedEngineCpu(EngineCpu):
    """A host that schedules a step, and samples of it, while the GPU runs another: the longer of the two."""

    def exposed(self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """Seconds by which what the host does beside takes longer than the steps."""
        return xp.maximum(self.beside(sequences, steps) - seconds, 0.0)

    @property
    def serial(self) -> EngineCpu:
        """With as much to do, one after the other."""
        return EngineCpu(**vars(self))

    def scheduling(self, sequences: Number) -> str:
        """What `beside` takes, in words."""
        return f"{super().scheduling(sequences)}, while another step runs"


@families("async_host")
@dataclass(frozen=True)
class AsyncEngineCpu(EngineCpu):
    """The CPU overhead of asynchronous scheduling, the default of vLLM: work on sequences overlaps the GPU.

    Work that occurs once per step (inputs, samplers, and copies outside the graph) delays the GPU.
    """

    def exposed(self, seconds: Number, sequences: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """The seconds per step, plus the time by which work on sequences exceeds the GPU time."""
        each = self.sequence_us * 1e-6 * sequences
        return self.step_us * 1e-6 * steps + xp.maximum(each - seconds, 0.0)

    @property
    def serial(self) -> EngineCpu:
        """With as much to do, one after the other."""
        return EngineCpu(**vars(self))

    def scheduling(self, sequences: Number) -> str:
        """What `beside` takes, in words."""
        return f"{super().scheduling(sequences)}, sequences while the step runs"


@families("eager_host")
@dataclass(frozen=True)
class EagerEngineCpu(EngineCpu):
    """A host that runs ahead of the GPU, as eager PyTorch's does: a step takes the longer of the two.

    What it prepares delays a kernel only where the GPU has none left; each sequence's token is waited for.
    """

    def launched(self, busy: Number, kernels: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        """Seconds of so many kernels: as long as the host needs for steps of them, at least."""
        return xp.maximum(busy, (steps * self.step_us + kernels * self.kernel_us) * 1e-6)

    def beside(self, sequences: Number, steps: Number = 1.0) -> Number:
        """Seconds in which the host does what waits for the GPU."""
        return self.sequence_us * sequences * 1e-6

    @property
    def launching(self) -> str:
        """What `launched` takes, in words."""
        return f"{self.step_us:,.0f} µs + {super().launching}"

    def scheduling(self, sequences: Number) -> str:
        """What `beside` takes, in words."""
        return f"{sequences:,} × {self.sequence_us:.3g} µs a sequence"
