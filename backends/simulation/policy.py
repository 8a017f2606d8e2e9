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
    """A request on a rank, of whose `tokens` so many are `done`: in the cache."""

    __slots__ = ("done", "rank", "request", "tokens")

    def __init__(self, request: int, rank: int, done: int, tokens: int) -> None:
        self.request, self.rank, self.done, self.tokens = request, rank, done, tokens


Chunk = tuple[Reading, int]  # so many new tokens of it


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

    def chunks(self, server: Server, preempted: bool) -> list[Chunk]:
        """What the next step reads, as far as its tokens, sequences and blocks go.

        A prompt is read on one rank: the one that has least to read when it is admitted. Nothing is admitted
        in a step for which one was `preempted`.
        """
        room = server.room(self.mixes)
        of = server.blocks.of
        found: list[Chunk] = []
        for one in list(server.reading):
            new = min(room[one.rank], one.tokens - one.done)
            if server.tight and of(one.done + new) - of(one.done) > self.free(server):
                server.preempt(one.request)
                server.waiting.appendleft(one.request)
                preempted = True
            elif new:
                server.take(one, new)
                found.append((one, new))
                room[one.rank] -= new
        while server.waiting and not preempted and len(server.running) < server.capacity.sequences:
            rank = server.emptiest(room) if len(room) > 1 else 0
            if not (left := room[rank]):
                break
            request = server.waiting[0]
            unread = server.unread(request)
            new = min(left, unread)
            if (new < unread and not self.chunked) or not self.admits(server, request, new):
                break
            one = server.admit(request, rank)
            server.take(one, new)
            found.append((one, new))
            room[rank] -= new
        return found

    def free(self, server: Server) -> int:
        """Blocks that nobody has, less those that decodes of the same step will take."""
        return server.blocks.free - (server.blocks.due(server.step) if self.mixes else 0)
