"""What a pipeline adds to a plain server: an event a micro-batch, of which several are in its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .naive_server import DECAY, Request
from .naive_trtllm import Patient


class Pipeline(Patient):
    """A round of micro-batches is a token of all that decode; each has an equal share, and its own prompts.

    `flow` says what one takes on each stage, by contexts of decodes, how many parts they are in, and chunks.
    Blocks for tokens are kept free for them, and taken at the end of a round.
    """

    def __init__(self, flow: Callable[..., Sequence[float]], *engine: Any, **waits: Any) -> None:
        super().__init__(*engine, **waits)
        self.flow, self.turn = flow, 0
        self.clear, self.stalled = 0.0, float("inf")  # until when one reads; since when all are passing
        self.stages: list[float] = []  # when each is free
        self.out: list[float] = []  # when micro-batches come out
        self.passing: list[tuple[float, Request]] = []  # their last chunks are in the stages

    def come(self, r: Request, now: float) -> None:
        self.now, self.stalled = max(now, min(self.now, self.stalled)), float("inf")
        filled = self.ahead and (len(self.running) > len(self.passing) or self.late or self.now > now)
        (self.late if filled else self.waiting).append(r)

    def leave(self, r: Request) -> None:
        super().leave(r)
        self.passing = [each for each in self.passing if each[1] is not r]

    def go(self) -> list[Request]:
        self.done, now, self.stalled = [], self.now, float("inf")
        while self.passing and self.passing[0][0] <= now:
            self.now, r = self.passing.pop(0)
            self.turn = self.turn if any(q.decodes for q in self.running) else 0
            self.make([r])
        self.now = now
        return self.done or super().go()

    def fill(self) -> None:
        short = sum(self.more(r, 1) for r in self.running if r.decodes) > self.free()
        waits = short and bool(self.passing)  # they are not preempted
        preempted = self.mixes and not waits and self.relieve()
        decoding = [r for r in self.running if r.decodes]
        if chunks := [] if self.mixes and waits else self.beside(decoding if self.mixes else [], preempted):
            self.through(decoding if self.mixes else [], chunks)
            self.clear = self.out[-1]
        elif waits or not decoding:
            if self.passing and not self.late:
                self.now, self.stalled = self.passing[0][0], self.now
        elif self.mixes or not self.relieve():
            if self.now < self.clear:
                self.through(decoding, [])
            else:
                self.stages, self.out = [], []
                seconds = self.step([r.stored for r in decoding], [[]]) / self.room.micro_batches
                self.turned(decoding, self.now + seconds)

    def fits(self, r: Request, new: int) -> bool:
        for _, other in self.passing:  # what is read counts as what decodes
            other.decodes = True
        fits = super().fits(r, new)
        for _, other in self.passing:
            other.decodes = False
        return fits

    def beside(self, decoding: list[Request], preempted: bool) -> list[tuple[Request, int]]:
        """Chunks of prompts, which leave blocks for the tokens of a round."""
        for r in decoding:
            self.take(r, 1)
        chunks = self.read(len(decoding), preempted)
        for r in decoding:
            stored = -(-r.stored // self.room.block) + self.room.state
            self.unused += r.blocks[stored:]
            r.blocks = r.blocks[:stored]
        return chunks

    def through(self, decoding: list[Request], chunks: list[tuple[Request, int]]) -> None:
        """A micro-batch goes through the stages."""
        most, time = self.room.micro_batches, self.now
        ranks = [[(n, r.stored - n) for r, n in chunks if r.rank == k] for k in range(self.room.ranks)]
        times = self.flow([r.stored for r in decoding], min(most, len(decoding)) or 1, ranks)
        self.stages = self.stages or [self.now] * len(times)
        for i, seconds in enumerate(times):
            time = self.stages[i] = max(time, self.stages[i]) + seconds
        self.out.append(time)
        begin = max(self.stages[0], self.out[-most]) if len(self.out) >= most else self.stages[0]
        self.turned(decoding, begin)
        self.passing += [(time, r) for r, _ in chunks if not r.unread()]

    def turned(self, decoding: list[Request], until: float) -> None:
        """The next micro-batch may begin."""
        self.turn += bool(decoding)
        whole = self.turn == self.room.micro_batches
        for r in decoding if whole else ():
            self.take(r, 1)
        here = len(self.waiting + self.late + self.running)
        self.log.append((self.now, until - self.now, here, self.free()))
        self.now = until
        if whole:
            self.share_to_come -= DECAY
            self.turn = 0
            self.make(sorted(decoding, key=lambda r: r.number))
