"""SGLang's scheduler: prompts run first and alone, and decodes wait for all admissible prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulate.server import POLICIES, Policy
from llmir.base.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulate.server import Capacity, Server

CLIP = (
    4096  # largest number of future tokens that count for a request: CLIP_MAX_NEW_TOKENS, schedule_policy.py
)
# The share of the future tokens of running requests that an admission keeps free: its value after 600 decode
# steps, 0.7 · 0.14 (SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR).
SHARE = 0.098
HEADROOM = 20  # decode steps that must fit after a preemption: retract_decode_steps


@POLICIES.register("sglang")
@dataclass(frozen=True)
class Sglang(Policy):
    """`PrefillAdder` of sglang/srt/managers/schedule_policy.py and `retract_decode` of schedule_batch.py.

    A request is admitted if the free blocks suffice for its prompt and its largest output, in addition to a
    share of the future tokens of running requests. If decodes run out of blocks, requests are preempted until
    some steps fit: first those with the fewest generated tokens, and the longest prompt among equals. They
    join the end of the queue.
    """

    name: ClassVar[str] = "sglang"
    mixes: bool = False

    def roomy(self, capacity: Capacity) -> int | None:
        """One step per running request, and two for the one that is admitted."""
        return capacity.sequences + 2

    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether its prompt and output fit by the estimate."""
        size, most = server.blocks.size, server.final[request] + 2
        if server.demand + len(server.running) + most + server.ahead <= server.blocks.total:
            return True
        to_come = server.to_come(CLIP)
        reserved = sum(
            server.to_read[one] - done + min(self._left(server, one), CLIP)
            for one, done in server.reading.items()
        )
        free = server.blocks.free * size - SHARE * to_come - reserved
        unread = server.to_read[request] - server.cached[request]
        own = (
            server.blocks_needed(request, unread) * size
        )  # other requests have some blocks of its cached tokens
        return own + min(self._left(server, request), CLIP) < free

    def _left(self, server: Server, request: int) -> int:
        """The remaining requested tokens of a request that is not prefilled yet."""
        return (
            server.generate[request]
            + server.cancelled[request]
            - (server.to_read[request] - server.prompt[request])
        )

    def relieve(self, server: Server) -> None:
        """Preempt at least one request, and leave at least one running."""
        first = True
        while server.decoding > 1 and (
            first or server.blocks.free * server.blocks.size < server.decoding * HEADROOM
        ):
            _, _, last = min(
                (server.made(request, end), -server.prompt[request], request) for end, request in server.ends
            )
            server.preempt(last)
            server.waiting.append(last)
            first = False
