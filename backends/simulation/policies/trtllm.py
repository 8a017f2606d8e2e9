"""TensorRT-LLM: whole prompts beside decodes, of requests that have blocks until their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulation.policy import POLICIES, Chunk, Policy
from llmir.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulation.load import Array
    from llmir.backends.simulation.server import Server


@POLICIES.register("trtllm")
@dataclass(frozen=True)
class Trtllm(Policy):
    """In-flight batching by `GUARANTEED_NO_EVICT`, with `enable_chunked_prefill` off, as by default.

    Nobody is preempted, as a request runs only if all blocks that it may need are free of others' needs.
    """

    name: ClassVar[str] = "trtllm"
    chunked: bool = False

    def admits(self, server: Server, request: int, new: int, beside: list[Chunk]) -> bool:
        """If nobody that runs will need its blocks."""
        return server.demand + server.final[request] <= server.blocks.total

    def relieve(self, server: Server) -> None:
        """There is room always."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """The prompt: nothing is read again."""
        return prompt
