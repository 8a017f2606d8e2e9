"""vLLM's scheduler: one token per decoding request, then chunks of prompts within the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulate.server import POLICIES, Policy
from llmir.base.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulate.server import Capacity, Server


@POLICIES.register("vllm")
@dataclass(frozen=True)
class Vllm(Policy):
    """`Scheduler.schedule` of vllm/v1/core/sched/scheduler.py; before 0.8, whole prompts in separate steps,
    first.

    A request is admitted as soon as there are blocks for its first chunk, or, if it is `cautious`, for all of
    its prompt (`scheduler_reserve_full_isl`, github.com/vllm-project/vllm/pull/37307). If decodes run out of
    blocks, the request that was admitted last is preempted and moves to the front of the queue; this step
    then admits no request. Before 0.8 an admission leaves a share of all blocks free, the `watermark` of
    vllm/core/block_manager.py.
    """

    name: ClassVar[str] = "vllm"
    watermark: float = 0.0

    def spare(self, blocks: int) -> int:
        """The watermark."""
        return int(self.watermark * blocks)

    def roomy(self, capacity: Capacity) -> int | None:
        """The watermark; with this many spare blocks, a chunk always gets its blocks."""
        return self.spare(capacity.blocks)

    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether there are blocks for the chunk, and the watermark stays free."""
        total = server.blocks.total
        spare = self.spare(total) if self.watermark else 0
        if server.demand + server.final[request] + spare + server.ahead <= total:
            return True
        return server.blocks_needed(request, new) + spare <= self.free(server)

    def relieve(self, server: Server) -> None:
        """Preempt requests in reverse order of admission until blocks suffice."""
        while server.lacks_blocks:
            last = next(reversed(server.running))
            server.preempt(last)
            server.waiting.appendleft(last)
