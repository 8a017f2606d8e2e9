"""How an engine fills a step: which prompts it reads, and whom it preempts when blocks run short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from llmir.dataclass import dataclass
from llmir.plugins import Kind

if TYPE_CHECKING:
    from .capacity import Capacity
    from .load import Array
    from .server import Server

POLICIES: Kind[type[Policy]] = Kind("policy", "llmir.backends.simulation.policies")


@dataclass(frozen=True)
class Policy(ABC):
    """The policy of an engine, which reads prompts in chunks or whole, and beside decodes if it `mixes`.

    All take requests in the order in which they came. One that goes `ahead` fills a step while the one before
    it runs, so that a request that comes meanwhile is read in the step after it at the earliest.
    """

    name: ClassVar[str]
    chunked: bool = True
    mixes: bool = True
    ahead: bool = False

    @abstractmethod
    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether the first that waits may run: `new` tokens now, beside what this step reads already."""

    @abstractmethod
    def relieve(self, server: Server) -> None:
        """Preempt, so that all that still decode have the blocks of the next step."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """Tokens that are read at once at most, where prompts are read whole: after a preemption, all."""
        return written

    def spare(self, blocks: int) -> int:
        """Of so many blocks, those that no request may take when it is admitted."""
        return 0

    def roomy(self, capacity: Capacity) -> int | None:
        """Blocks beside those that all will have in the end, with which the first that waits is admitted for
        sure, if its chunk has tokens, and beside it whoever is read; None where that is not known.
        """
        return None

    def fill(self, server: Server, preempted: bool) -> None:
        """The next step reads as far as its tokens, sequences and blocks go.

        A prompt is read on one rank: the one that has least to read when it is admitted. One that lacks
        blocks takes those of the last that is read in part, so that the first goes on; or it goes itself.
        Nothing is admitted in a step for which one was `preempted`.
        """
        capacity, waiting, running = server.capacity, server.waiting, server.running
        decodes = capacity.rows * -(-server.decoding // server.lanes) if self.mixes else 0
        left = [capacity.tokens - decodes] * capacity.ranks
        for request, done in list(server.reading.items()) if server.reading else ():
            if request not in server.reading:  # it gave its blocks to one before it
                break
            rank = running[request]
            new = min(left[rank], server.to_read[request] - done)
            while server.tight and server.blocks.of(done + new) - server.blocks.of(done) > self.free(server):
                last = next(reversed(server.reading))
                server.preempt(last)
                waiting.appendleft(last)
                preempted = True
                if last == request:
                    break
            else:
                if new:
                    server.take(request, done, new)
                    left[rank] -= new
        while waiting and not preempted and len(running) < capacity.sequences:
            rank = server.emptiest(left) if len(left) > 1 else 0
            if not (most := left[rank]):
                return
            request = waiting[0]
            unread = server.unread(request)
            new = unread if unread < most else most
            if (new < unread and not self.chunked) or not self.admits(server, request, new):
                return
            server.admit(request, rank, new)
            left[rank] -= new

    def free(self, server: Server) -> int:
        """Blocks that nobody has, less those that decodes of the same step will take."""
        return server.blocks.free - (server.blocks.due(server.step) if self.mixes else 0)
