"""TensorRT-LLM: whole prompts beside decodes, of requests that have blocks until their end."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulation.policy import POLICIES, Policy
from llmir.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulation.capacity import Capacity
    from llmir.backends.simulation.load import Array
    from llmir.backends.simulation.server import Server


@POLICIES.register("trtllm")
@dataclass(frozen=True)
class Trtllm(Policy):
    """In-flight batching by `GUARANTEED_NO_EVICT`, with `enable_chunked_prefill` off, as by default.

    Nobody is preempted, as a request runs only if all blocks that it may need are free of others' needs.
    Beside decodes prompts wait `patience` steps (`batch_wait_timeout_iters`), or until a step has a share
    `enough` of its tokens (`batch_wait_max_tokens_ratio`); both are 0 by default.
    """

    name: ClassVar[str] = "trtllm"
    chunked: bool = False
    patience: int = 0
    enough: float = 0.0

    def fill(self, server: Server, preempted: bool) -> None:
        """Nothing for some steps, or all that may run."""
        if self.patience and server.decoding:
            tokens = self._ready(server)
            rows = server.capacity.rows * server.decoding
            if tokens and rows + tokens < self.enough * server.capacity.tokens * server.lanes:
                server.held = server.step + self.patience if server.held is None else server.held
                if server.step < server.held:
                    return
        server.held = None
        super().fill(server, preempted)

    def _ready(self, server: Server) -> int:
        """Tokens of prompts that have begun to be read, or may begin."""
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
        """None; where prompts wait for steps, it is not known."""
        return None if self.patience else 0

    def admits(self, server: Server, request: int, new: int) -> bool:
        """If nobody that runs will need its blocks."""
        return server.demand + server.final[request] <= server.blocks.total

    def relieve(self, server: Server) -> None:
        """There is room always."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """The prompt: nothing is read again."""
        return prompt
