"""How an engine fills a step: which prompts it reads, and whom it preempts when blocks run short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.registry import Kind

if TYPE_CHECKING:
    from .capacity import Capacity
    from .load import Array
    from .server import Server

POLICIES: Kind[type[Policy]] = Kind("policy", "llmir.backends.simulate.policies")


@dataclass(frozen=True)
class Policy(ABC):
    """The scheduling policy of an engine.

    It reads prompts in chunks if it is `chunked`, else whole; and in the same steps as decodes if it `mixes`,
    else in steps of their own. With `ahead` it fills a step while the one before it runs: a request that
    arrives meanwhile is read one step later. All policies admit requests in the order of arrival.
    """

    name: ClassVar[str]
    chunked: bool = True
    mixes: bool = True
    ahead: bool = False

    @abstractmethod
    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether the first request that waits is admitted, to read `new` tokens in this step."""

    @abstractmethod
    def relieve(self, server: Server) -> None:
        """Preempts requests until all others that decode have blocks for the next step."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """Tokens that a request reads in a step at most, if not in chunks: after a preemption, all it had."""
        return written

    def spare(self, blocks: int) -> int:
        """Of so many blocks, how many an admission leaves free."""
        return 0

    def roomy(self, capacity: Capacity) -> int | None:
        """Spare blocks with which an admission never fails for lack of blocks; None where that is not known.

        Spare are those beyond the final blocks of all that run, the one to be admitted among them.
        """
        return None

    def fill(self, server: Server, preempted: bool) -> None:
        """Fills the next step with prompts, as far as its tokens, sequences and blocks go.

        Prompts that are read in part come first. Where one lacks blocks, the last of them is preempted, which
        may be itself. Then requests are admitted, unless one was `preempted` for this step. A request runs on
        one rank: the one with least to read when it is admitted.
        """
        capacity, waiting, running = server.capacity, server.waiting, server.running
        decodes = capacity.rows * -(-server.decoding // server.lanes) if self.mixes else 0
        left, of = [capacity.tokens - decodes] * capacity.ranks, server.blocks.of
        for request, done in list(server.reading.items()) if server.reading else ():
            if request not in server.reading:  # it was preempted for one before it
                break
            rank = running[request]
            new = min(left[rank], server.to_read[request] - done)
            while server.may_lack_blocks and of(done + new) - of(done) > self.free(server):
                last = next(reversed(server.reading))
                server.preempt(last)
                waiting.appendleft(last)
                preempted = True
                if last == request:
                    break
            else:
                if new:
                    server.schedule_chunk(request, done, new)
                    left[rank] -= new
        while waiting and not preempted and len(running) < capacity.sequences:
            rank = server.least_loaded_rank(left) if len(left) > 1 else 0
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
        """Free blocks, less those that decodes of the same step will take."""
        return server.blocks.free - (server.blocks.due(server.step) if self.mixes else 0)
