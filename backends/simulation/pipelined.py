"""A server whose steps are micro-batches, several of which are in a pipeline of stages at once.

Micro-batch k begins when the first stage is free and micro-batch k − m is done, where m are in flight; each
stage takes them in their order. So it leaves stage s at F(k, s) = max(F(k − 1, s), F(k, s − 1)) + t(k, s), as
jobs do in a flow shop (Johnson 1954). Each has prompts of its own, and an equal share of what decodes: a
round of m micro-batches is a token for each sequence.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from .capacity import placed
from .course import FOREVER
from .server import Server, row


class PipelinedServer(Server):
    """Such an engine: `now` is when the next micro-batch may begin.

    `turn` of a round's micro-batches have begun. `passing` are prompts whose last chunk is on its way through
    the stages, and until when; they are not preempted. While any micro-batch is that reads prompts, until
    `clear_s`, each is an event of its own; later ones only decode, and all are alike.
    """

    def _idle(self) -> None:
        super()._idle()
        self.turn = 0
        self.free_s: list[float] = []  # when each stage is
        self.done_s: deque[float] = deque()  # when those in flight are that have to be waited for
        self.passing: deque[tuple[float, int]] = deque()
        self.clear_s = 0.0
        self.waits = False  # for what is on its way, with nothing to begin before

    @property
    def begins_s(self) -> float:
        """When it goes on: when the first that it waits for is there."""
        return self.passing[0][0] if self.waits and self.passing else self.now

    def come(self, request: int, time_s: float) -> None:
        """A request comes, which may be read before that."""
        self.waits = False
        super().come(request, time_s)

    def advance(self, until: float = FOREVER) -> None:
        """All micro-batches that begin before that time."""
        policy, self.until = self.policy, until
        while self.now < self.until:
            before, self.waits = self.preempted, False
            self._arrive()
            if self.now >= self.until:  # one was answered, and what follows comes first
                return
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            late, self.late = self.late, []
            short = self.tight and self.short
            if short and policy.mixes and not self.passing:
                policy.relieve(self)
                short = False
            if (self.waiting or self.reading) and not (short and policy.mixes):
                policy.fill(self, self.preempted > before)
            else:
                self.held = None
            if self.chunks:
                self._read()
            elif self.decoding and not (short and self.passing):
                self._decode(bool(late) or self.preempted > before)
            elif self.passing and not late:  # whose blocks may be taken only when they are there
                self.now, self.waits = min(self.passing[0][0], self.until), True
            elif not late:
                return
            self.waiting.extend(late)

    @property
    def busy(self) -> bool:
        """Whether it has requests."""
        return super().busy or bool(self.passing)

    def to_come(self, most: int) -> int:
        """Tokens that those have which decode, and prompts that are on their way."""
        passing = [request for _, request in self.passing]
        ends = [self.prompt[one] + self.generate[one] + self.more[one] for one in passing]
        rest = (end - self.to_read[one] for one, end in zip(passing, ends, strict=True))
        return super().to_come(most) + sum(min(tokens, most) for tokens in rest)

    def _arrive(self) -> None:
        """Prompts that are read by now have their next token, from when their micro-batch was done."""
        now = self.now
        while self.passing and self.passing[0][0] <= now:
            self.now, request = self.passing.popleft()
            self.turn = self.turn if self.decoding else 0
            self._join(request)
        self.now = now

    def _read(self) -> None:
        """The micro-batch that a policy has filled, beside its share of what decodes."""
        chunks, self.chunks = self.chunks, {}
        ranks = placed(chunks, self.running, len(self.on_ranks))
        self._through(ranks, bool(self.policy.mixes and self.decoding))
        self.clear_s = done_s = self.free_s[-1]
        for request in chunks:
            if self.reading[request] == self.to_read[request]:
                del self.reading[request]
                self.passing.append((done_s, request))

    def _decode(self, once: bool) -> None:
        """Micro-batches that only decode: whole rounds, as far as they go, and then a part of one.

        A part of a round is as if all its micro-batches took as long, and its tokens are there at its end.
        """
        if self.tight and self.short:
            self.policy.relieve(self)
            return
        if self.now < self.clear_s:
            self._through([[]], True)
            return
        stop = min(self.until, self.deadlines[0][0]) if self.deadlines else self.until
        round_s, most = self._round_s(), self.capacity.micro_batches
        self.free_s, self.done_s = [], deque()
        if not self.turn and not once and stop - self.now > round_s:
            until, self.until = self.until, stop - round_s  # those that end by then
            super()._decode(False)
            self.until = until if self.until == stop - round_s else min(self.until, until)
            return
        each = round_s / most
        count = 1 if once else min(most - self.turn, ceil(min((stop - self.now) / each, most)))
        self._turn(count, count * each, [[]])

    def _round_s(self) -> float:
        """Seconds of a round that only decodes."""
        sums = (self.kept,) if self.batch is None else self.batch.kept
        return float(self.prices.step(self.decoding, sums, ()))

    def _through(self, ranks: list[list[tuple[int, int]]], decodes: bool) -> None:
        """One micro-batch goes through the stages, which reads such chunks on each rank."""
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
        self._turn(int(decodes), begin - self.now, ranks)

    def _turn(self, count: int, seconds: float, ranks: list[list[tuple[int, int]]]) -> None:
        """So many micro-batches of a round have begun; those that end it make the tokens of all."""
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
            self._end()

    def _stop(self, request: int) -> None:
        """One that runs is no longer, which may be on its way."""
        mine = next((one for one in self.passing if one[1] == request), None)
        if mine is not None:
            self.passing.remove(mine)
            self.reading[request] = self.to_read[request]
        super()._stop(request)
