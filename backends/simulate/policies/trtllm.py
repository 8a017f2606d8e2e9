"""TensorRT-LLM's scheduler: whole prompts with decodes, and all blocks of a request reserved."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulate.server import POLICIES, Policy
from llmir.base.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulate.load import Array
    from llmir.backends.simulate.server import Capacity, Server


@POLICIES.register("trtllm")
@dataclass(frozen=True)
class Trtllm(Policy):
    """In-flight batching by `GUARANTEED_NO_EVICT`, with `enable_chunked_prefill` off, the default.

    A request is admitted if enough blocks remain for all of its tokens, besides those that running requests
    will need. So no request is preempted. While others decode, prompts wait up to `patience` steps
    (`batch_wait_timeout_iters`) until they fill the share `enough` of a step's tokens
    (`batch_wait_max_tokens_ratio`); both are 0 by default.
    """

    name: ClassVar[str] = "trtllm"
    chunked: bool = False
    patience: int = 0
    enough: float = 0.0

    def fill(self, server: Server, preempted: bool) -> None:
        """No prompts if too few of them wait and there are steps of patience left; otherwise all prompts that
        may run.
        """
        if self.patience and server.decoding:
            tokens = self._ready(server)
            rows = server.capacity.rows * server.decoding
            if tokens and rows + tokens < self.enough * server.capacity.tokens * server.lanes:
                if server.hold_until is None:
                    server.hold_until = server.step + self.patience
                if server.step < server.hold_until:
                    return
        server.hold_until = None
        super().fill(server, preempted)

    def _ready(self, server: Server) -> int:
        """The prefill tokens of prompts that are partly prefilled, and of prompts that could be admitted
        now.
        """
        tokens = sum(server.to_read[one] - done for one, done in server.reading.items())
        rows = server.capacity.rows * server.decoding
        left, demand = server.capacity.tokens * server.lanes - rows, server.demand
        for request in islice(server.waiting, server.capacity.sequences - len(server.running)):
            demand += server.final[request]
            unread = server.unread(request)
            if demand > server.blocks.total or (tokens + unread > left and not self.chunked):
                break
            tokens += unread
        return tokens

    def roomy(self, capacity: Capacity) -> int | None:
        """An admission needs no spare blocks; None if prompts may wait for others."""
        return None if self.patience else 0

    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether enough blocks remain free for all its tokens, besides those that running requests will
        need.
        """
        if server.demand + server.final[request] > server.blocks.total:
            return False
        return not server.ahead or server.blocks_needed(request, new) <= self.free(server)

    def relieve(self, server: Server) -> None:
        """This is never needed, because all blocks are reserved."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """The number of prompt tokens: no request is preempted, so no token is processed again."""
        return prompt
