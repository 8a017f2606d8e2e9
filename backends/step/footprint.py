"""The memory of a report: what the rank holds that is fullest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llmir.backends.memory.liveness import Memory, Peak
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.base.values import figure, sealed
from llmir.ir.sizes.binding import Binding

from .evaluate import Plan
from .points import Points
from .sweeps import sweep


class Footprint(Points):
    """Figures of memory, each of the stage where it is fullest."""

    plan: Plan
    shape: tuple[int, ...]

    @figure
    def weight_bytes(self) -> Number:
        """Resident bytes of weights."""
        return self._held(lambda memory, at: at(memory.weights))

    @figure
    def kv_cache_bytes(self) -> Number:
        """Resident bytes of the caches, once this step has written to them, as the policy reserves them."""
        return self._held(lambda memory, at: at(memory.caches))

    @figure
    def activation_peak_bytes(self) -> Number:
        """Transient bytes at the fullest moment, logits included."""
        return self._held(Memory.transient)

    @figure
    def peak_memory_bytes(self) -> Number:
        """Weights, caches and activations at the fullest moment."""
        return self._held(Memory.peak)

    def _held(self, figure: Callable[[Memory, Binding], Number]) -> Number:
        """A figure of the stage whose memory is fullest."""
        return sweep(lambda at: self.plan.fullest(lambda memory: figure(memory, at), at), self._points)

    @figure
    def peak(self) -> Peak:
        """The fullest moment of a single point: its op, and the tensors alive. `InputError` on a grid."""
        if self.shape:
            raise InputError(
                f"the tensors alive at the peak are those of one point, not of a grid {self.shape}"
            )
        return max(self.plan.memories, key=lambda memory: memory.peak(self.at)).fullest(self.at)

    @property
    def peak_at(self) -> Any:
        """The op at which memory is fullest; an array of names on a grid."""
        if not self.shape:
            return self.peak.op
        names: list[str] = []
        first: dict[int, int] = {}  # where the names of a stage begin
        for memory in self.plan.memories:
            first[id(memory)] = len(names)
            names += [m.op for m in memory.distinct]
        index = self._held(lambda memory, at: memory.fullest_index(at) + first[id(memory)])
        return sealed(np.array(names)[np.asarray(index).astype(int)])
