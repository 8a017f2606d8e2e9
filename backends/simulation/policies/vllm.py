"""vLLM: a token for each request that decodes first, then chunks of prompts as far as the budget goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulation.policy import POLICIES, Policy
from llmir.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulation.capacity import Capacity
    from llmir.backends.simulation.server import Server


@POLICIES.register("vllm")
@dataclass(frozen=True)
class Vllm(Policy):
    """`Scheduler.schedule` of vllm/v1/core/sched/scheduler.py; before 0.8 whole prompts go alone, and first.

    A prompt runs as soon as its first chunk has blocks. Where decodes find none, what was admitted last is
    preempted and goes before all that wait; in such a step nothing is admitted. Before 0.8 a share of all
    blocks, the `watermark` of vllm/core/block_manager.py, stays free of what is admitted.
    """

    name: ClassVar[str] = "vllm"
    watermark: float = 0.0

    def spare(self, blocks: int) -> int:
        """The watermark."""
        return int(self.watermark * blocks)

    def roomy(self, capacity: Capacity) -> int | None:
        """The watermark."""
        return self.spare(capacity.blocks)

    def admits(self, server: Server, request: int, new: int) -> bool:
        """If there are blocks for the chunk."""
        total = server.blocks.total
        spare = self.spare(total) if self.watermark else 0
        if server.demand + server.final[request] + spare <= total:
            return True
        return server.needs(request, new) + spare <= self.free(server)

    def relieve(self, server: Server) -> None:
        """The last that was admitted goes, then the one before it …"""
        while server.short:
            last = next(reversed(server.running))
            server.preempt(last)
            server.waiting.appendleft(last)
