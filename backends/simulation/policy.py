"""How an engine fills a step: which prompts it reads, and whom it preempts when blocks run short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from llmir.dataclass import dataclass
from llmir.plugins import Kind

if TYPE_CHECKING:
    from .load import Array
    from .server import Server

POLICIES: Kind[type[Policy]] = Kind("policy", "llmir.backends.simulation.policies")


class Reading:
    """A request of whose `tokens` so many are `done`: in the cache."""

    __slots__ = ("done", "request", "tokens")

    def __init__(self, request: int, done: int, tokens: int) -> None:
        self.request, self.done, self.tokens = request, done, tokens


Chunk = tuple[Reading, int]  # so many new tokens of it


@dataclass(frozen=True)
class Policy(ABC):
    """The policy of an engine, which reads prompts in chunks or whole, and beside decodes if it `mixes`.

    All take requests in the order in which they came.
    """

    name: ClassVar[str]
    chunked: bool = True
    mixes: bool = True

    @abstractmethod
    def admits(self, server: Server, request: int, new: int, beside: list[Chunk]) -> bool:
        """Whether the first that waits may run: `new` tokens now, beside those chunks."""

    @abstractmethod
    def relieve(self, server: Server) -> None:
        """Preempt, so that all that still decode have the blocks of the next step."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """Tokens that are read at once at most, where prompts are read whole: after a preemption, all."""
        return written

    def spare(self, blocks: int) -> int:
        """Of so many blocks, those that no request may take when it is admitted."""
        return 0

    def chunks(self, server: Server, preempted: bool) -> list[Chunk]:
        """What the next step reads, as far as its tokens, sequences and blocks go.

        Nothing is admitted in a step for which one was `preempted`.
        """
        left = server.capacity.tokens - (server.decoding if self.mixes else 0)
        found: list[Chunk] = []
        for one in list(server.reading):
            new = min(left, one.tokens - one.done)
            if server.tight and server.taken([(one, new)]) > self.free(server, found):
                server.preempt(one.request)
                server.waiting.appendleft(one.request)
                preempted = True
            elif new:
                found.append((one, new))
                left -= new
        while left and server.waiting and not preempted and len(server.running) < server.capacity.sequences:
            request = server.waiting[0]
            unread = server.unread(request)
            new = min(left, unread)
            if (new < unread and not self.chunked) or not self.admits(server, request, new, found):
                break
            found.append((server.admit(request), new))
            left -= new
        return found

    def free(self, server: Server, beside: list[Chunk]) -> int:
        """Blocks that nobody has, less those of such chunks, and of the decodes of the same step."""
        decodes = server.blocks.due(server.step) if self.mixes else 0
        return server.free - decodes - server.taken(beside)
