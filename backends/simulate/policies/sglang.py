"""SGLang's scheduler: prompts run first and in separate steps, and decodes wait until all admissible prompts
have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmir.backends.simulate.server import POLICIES, Policy
from llmir.base.dataclass import dataclass

if TYPE_CHECKING:
    from llmir.backends.simulate.server import Capacity, Server

# The largest number of future tokens that counts for a request: CLIP_MAX_NEW_TOKENS, schedule_policy.py.
CLIP = 4096
# The share of the future tokens of running requests that an admission keeps free: its least value, reached
# after 600 decode steps, 0.7 · 0.14 (SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR), and its
# decrease in a step (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS).
SHARE = 0.098
DECAY = (0.7 - SHARE) / 600
HEADROOM = 20  # decode steps that must fit after a preemption: retract_decode_steps


@POLICIES.register("sglang")
@dataclass(frozen=True)
class Sglang(Policy):
    """`PrefillAdder` of sglang/srt/managers/schedule_policy.py and `retract_decode` of schedule_batch.py.

    A request is admitted if the free blocks suffice for its prompt and its largest output, in addition to a
    share of the future tokens of running requests. If decodes run out of blocks, requests are preempted until
    a few steps fit: first those with the fewest generated tokens; among equal ones, the one with the longest
    prompt. They join the end of the queue, and the share rises, so that they do not return at once.
    """

    name: ClassVar[str] = "sglang"
    mixes: bool = False

    def roomy(self, capacity: Capacity) -> int | None:
        """One step for each running request, and two for the request that is admitted."""
        return capacity.sequences + 2

    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether the prompt and the output of a request fit by this estimate."""
        size, most = server.blocks.size, server.final[request] + 2
        if server.demand + len(server.running) + most + server.ahead <= server.blocks.total:
            return True
        to_come = server.to_come(CLIP)
        reserved = sum(
            server.to_read[one] - done + min(self._left(server, one), CLIP)
            for one, done in server.reading.items()
        )
        step, share = server.retraction
        share = max(SHARE, share - DECAY * (server.step - step))
        server.hold_until = server.step + 1 if share > SHARE else None  # the next step may admit it
        free = server.blocks.free * size - share * to_come - reserved
        unread = server.to_read[request] - server.cached[request]
        own = (
            server.blocks_needed(request, unread) * size
        )  # other requests have some blocks of its cached tokens
        return own + min(self._left(server, request), CLIP) < free

    def _left(self, server: Server, request: int) -> int:
        """The remaining output tokens of a request whose prefill has not ended."""
        return (
            server.generate[request]
            + server.cancelled[request]
            - (server.to_read[request] - server.prompt[request])
        )

    def relieve(self, server: Server) -> None:
        """Preempt at least one request, and leave at least one running."""
        order = sorted((server.made(one, end), -server.prompt[one], one) for end, one in server.ends)
        for _, _, last in order[:-1]:
            server.preempt(last)
            server.waiting.append(last)
            if server.blocks.free * server.blocks.size >= server.decoding * HEADROOM:
                break
        made = sum(server.made(one, end) for end, one in server.ends)
        total = sum(server.generate[one] + server.cancelled[one] for _, one in server.ends)
        server.retraction = server.step, min(1.0, (made + HEADROOM * server.decoding) / (total + 1))
