"""A server with pipeline stages: its steps are micro-batches, m of which are in the pipeline at once.

Each stage runs micro-batches in their order. Micro-batch k begins when the first stage is free and k − m is
done. It leaves stage s at F(k, s) = max(F(k − 1, s), F(k, s − 1)) + t(k, s), as jobs in a flow shop do
(Johnson 1954). It reads its own prompts and decodes an equal share of the sequences, so that a round of m
micro-batches makes a token of each sequence.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from .capacity import by_rank
from .course import FOREVER
from .log import row
from .server import Server


class PipelinedServer(Server):
    """A server with pipeline stages; `now` is when the next micro-batch may begin.

    `turn` micro-batches of the round have begun. `passing` has the prompts whose last chunk is in the
    pipeline, each with the time when it is through; they cannot be preempted. Until `clear_s` there are
    micro-batches with prompts in the pipeline, and each micro-batch is simulated alone. After that all only
    decode, and whole rounds are alike.
    """

    def _reset(self) -> None:
        super()._reset()
        self.turn = 0
        self.free_s: list[float] = []  # when each stage is free
        self.done_s: deque[float] = deque()  # when the last m − 1 micro-batches are through
        self.passing: deque[tuple[float, int]] = deque()
        self.clear_s = 0.0
        self.waits = False  # for a prompt in the pipeline, with nothing else to run

    @property
    def begins_s(self) -> float:
        """When its next micro-batch begins, if it has one."""
        return self.passing[0][0] if self.waits and self.passing else self.now

    def come(self, request: int, time_s: float) -> None:
        """A request arrives; it may be read while the server waits for a prompt in the pipeline."""
        self.waits = False
        super().come(request, time_s)

    def advance(self, until: float = FOREVER) -> None:
        """All micro-batches that begin before that time."""
        policy, self.until = self.policy, until
        while self.now < self.until:
            before, self.waits = self.preempted, False
            self._take_arrived()
            if self.now >= self.until:  # a request was answered, and one that follows comes first
                return
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            late, self.late = self.late, []
            short = self.may_lack_blocks and self.lacks_blocks
            if short and policy.mixes and not self.passing:
                policy.relieve(self)
                short = False
            if (self.waiting or self.reading) and not (short and policy.mixes):
                policy.fill(self, self.preempted > before)
            else:
                self.hold_until = None
            if self.chunks:
                self._prefill_step()
            elif self.decoding and not (short and self.passing):
                self._decode_steps(bool(late) or self.preempted > before)
            elif self.passing and not late:  # they can be preempted once they are through
                self.now, self.waits = min(self.passing[0][0], self.until), True
            elif not late:
                return
            self.waiting.extend(late)

    @property
    def busy(self) -> bool:
        """Whether it has requests."""
        return super().busy or bool(self.passing)

    def to_come(self, most: int) -> int:
        """Tokens to come, of prompts in the pipeline too."""
        passing = [request for _, request in self.passing]
        ends = [self.prompt[one] + self.generate[one] + self.cancelled[one] for one in passing]
        rest = (end - self.to_read[one] for one, end in zip(passing, ends, strict=True))
        return super().to_come(most) + sum(min(tokens, most) for tokens in rest)

    def _take_arrived(self) -> None:
        """Prompts that are through the pipeline by now have their next token, since then."""
        now = self.now
        while self.passing and self.passing[0][0] <= now:
            self.now, request = self.passing.popleft()
            self.turn = self.turn if self.decoding else 0
            self._prefilled(request)
        self.now = now

    def _prefill_step(self) -> None:
        """The micro-batch that the policy has filled, with its share of the decodes."""
        chunks, self.chunks = self.chunks, {}
        ranks = by_rank(chunks, self.running, len(self.on_ranks))
        self._through(ranks, bool(self.policy.mixes and self.decoding))
        self.clear_s = done_s = self.free_s[-1]
        for request in chunks:
            if self.reading[request] == self.to_read[request]:
                del self.reading[request]
                self.passing.append((done_s, request))

    def _decode_steps(self, once: bool) -> None:
        """Micro-batches that only decode: whole rounds, and then a part of one.

        The micro-batches of a part of a round are taken as equally long; its tokens come at the round's end.
        """
        if self.may_lack_blocks and self.lacks_blocks:
            self.policy.relieve(self)
            return
        if self.now < self.clear_s:
            self._through([[]], True)
            return
        stop = min(self.until, self.deadlines[0][0]) if self.deadlines else self.until
        round_s, most = self._round_s(), self.capacity.micro_batches
        self.free_s, self.done_s = [], deque()
        if not self.turn and not once and stop - self.now > round_s:
            until, self.until = self.until, stop - round_s  # rounds that end by then
            super()._decode_steps(False)
            self.until = until if self.until == stop - round_s else min(self.until, until)
            return
        each = round_s / most
        count = 1 if once else min(most - self.turn, ceil(min((stop - self.now) / each, most)))
        self._count_micro_batches(count, count * each, [[]])

    def _round_s(self) -> float:
        """Seconds of a round of micro-batches that only decode."""
        sums = (self.kept,) if self.batch is None else self.batch.kept
        return float(self.prices.step(self.decoding, sums, ()))

    def _through(self, ranks: list[list[tuple[int, int]]], decodes: bool) -> None:
        """One micro-batch goes through the stages: `ranks` has the chunks that each rank reads."""
        parts = min(self.capacity.micro_batches, self.decoding) if decodes else 1
        sums = ((self.kept,) if self.batch is None else self.batch.kept) if decodes else (0,)
        count = self.decoding / parts if decodes else 0
        _, *stages = self.prices.micro_batch(count, [total / parts for total in sums], ranks)
        time_s, free_s = self.now, self.free_s or [self.now] * len(stages)
        for i, seconds in enumerate(stages):
            time_s = free_s[i] = max(time_s, free_s[i]) + seconds
        self.free_s = free_s
        self.done_s.append(time_s)
        full = len(self.done_s) == self.capacity.micro_batches
        begin = max(free_s[0], self.done_s.popleft()) if full else free_s[0]
        self._count_micro_batches(int(decodes), begin - self.now, ranks)

    def _count_micro_batches(self, count: int, seconds: float, ranks: list[list[tuple[int, int]]]) -> None:
        """Counts micro-batches that have begun; at the end of a round all that decode have a token."""
        self.turn += count
        whole = bool(self.decoding) and self.turn >= self.capacity.micro_batches
        decodes, kept = (self.decoding, self.kept) if whole else (0, 0)
        held = self.blocks.go(self.step, int(whole))
        news, waiting = [new for chunks in ranks for new, _ in chunks], len(self.waiting)
        self.log += row(self.now, seconds, 1, decodes, kept, sum(news), len(news), waiting, held)
        self.now += seconds
        if not whole:
            return
        self.turn, self.decoded_s = 0, self.now
        self.step += 1
        self.kept += decodes
        if self.batch is not None:
            self.batch.advance()
        if self.ends[0][0] == self.step:
            self._finish_due()

    def _drop(self, request: int) -> None:
        """A request runs no longer, whose prompt may be in the pipeline."""
        mine = next((one for one in self.passing if one[1] == request), None)
        if mine is not None:
            self.passing.remove(mine)
            self.reading[request] = self.to_read[request]
        super()._drop(request)
