"""What an engine adds to its kernels: its host, which prepares each step.

A step takes the longer of its kernels and of the host's launching them one by one, after a time to schedule
it and to sample from each sequence. Kernels were measured one at a time; a graph of them (CUDA graphs) hides
the time that each waits to begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmir.dim import Number, maximum
from llmir.hw import Device

from .base import Kernel, Shape, families, parameter


@dataclass(frozen=True)
class StepShape(Shape):
    """A step of `kernels` calls on one rank, and so many `sequences`.

    They take `busy` seconds if each waits to begin, less `waiting` if none does.
    """

    busy: Number
    waiting: Number
    kernels: Number
    sequences: Number


@dataclass(frozen=True)
class RunShape(Shape):
    """A figure of a whole run, by the steps that it is made of: some that decode, some that read prompts."""

    decode: StepShape
    prefill: StepShape
    decodes: Number
    prefills: Number


@families("host")
@dataclass(frozen=True)
class Host(Kernel):
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

    def launched(self, busy: Number, kernels: Number) -> Number:
        """Seconds of so many kernels: as long as the host needs to launch them, at least."""
        return maximum(busy, kernels * self.kernel_us * 1e-6)

    def beside(self, sequences: Number) -> Number:
        """Seconds in which the host does what is not launching."""
        return (self.step_us + self.sequence_us * sequences) * 1e-6

    def step(self, shape: StepShape) -> Number:
        """Seconds of a step."""
        busy = shape.busy - self.hidden * shape.waiting
        return self.launched(busy, shape.kernels) + self.beside(shape.sequences)

    def seconds(self, device: Device, shape: RunShape) -> Number:
        """What is measured of a run."""
        return shape.decodes * self.step(shape.decode) + shape.prefills * self.step(shape.prefill)
