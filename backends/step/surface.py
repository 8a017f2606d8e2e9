"""A step of any composition: what decodes, what that keeps in its caches, and chunks of prompts beside it.

What each price reads says what must be known of the sequences that decode (`keeps`): how many there are, and
for each mask and kind of state the sum of what they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NoReturn

from llmir.backends.cost.op_time import Model
from llmir.backends.kernels.base import DRAFTS
from llmir.base.arguments import MOST, integer, items, number, shown
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Dim

from .batch import Batch
from .composition import Steps
from .evaluate import Plan, plan
from .keeps import Asked, Keeps, Kept, Step, symbols
from .sizes import binding, phase_of, unpadded, verified
from .timing import Timing
from .together import together

Chunk = tuple[int, int]  # new tokens of a prompt, and those that are cached before them
_NUMBERS = (int, float)
_COUNTS = {"B", "T"}
PAIRS = "pairs of new and cached tokens"


class Surface:
    """Seconds of a step by what it is made of; sums of functions of contexts, `keeps`, are what it is told.

    `step` is the sum over sequences of what each does after its own context, in one call of each kernel for
    all that decode: what `analyze` says of them, given one by one as `beside`.
    """

    def __init__(self, program: Program, model: Model) -> None:
        if program.patches or program.image_tokens or "prompt" in program.facts:
            read = "prompts that layers see in part" if "prompt" in program.facts else "images"
            raise InputError(f"surface: {program.name} reads {read}; steps of tokens alone have one")
        unpadded(model.runs, "surface")
        self.program, self.model = program, model
        self._splits, self._parts = program.splits, program.micro_batches
        self._codes: dict[tuple[bool, bool], Steps] = {}

    def __repr__(self) -> str:
        return f"<Surface {self.program.name} on {self.model.device.name}>"

    @cached_property
    def _asked(self) -> Asked:
        asked = Asked(self.model.symbolic)
        plans = [self._plan(True, False), *([self._plan(True, True)] if self.program.splits else [])]
        whole: dict[str, None] = {}
        mixed = Step([asked, Binding(B=1, T=DRAFTS + 1, C=1)], ("decode", "prefill"))
        for of in plans:
            # What reads one product of counts, such as tokens, asks for no function of contexts.
            counted = {
                price
                for (size, _), each in of._timed.items()
                if size and symbols(size) <= _COUNTS
                for price in each
            }
            for row, price in zip(of.rows, of.prices, strict=True):
                if price in counted:
                    continue
                before = len(asked.joint)
                for at in (asked, mixed):
                    price.in_graph(at, of.host.hidden if of.host else 0.0)
                if len(asked.joint) > before:
                    whole[row.name] = None
        vars(asked)["whole"] = tuple(whole)
        return asked

    @cached_property
    def _keeps(self) -> Keeps:
        mean = (C,) if self._asked.joint else ()
        return Keeps((*self._asked.functions, *mean))

    @cached_property
    def keeps(self) -> tuple[Dim, ...]:
        """The functions of a sequence's context, `C`, whose sums over the decoding sequences it is given."""
        return self._keeps.functions

    @property
    def whole(self) -> tuple[str, ...]:
        """Ops whose price reads more of sequences than such sums: they are priced at the mean context."""
        return tuple(vars(self._asked)["whole"])

    def kept(self, contexts: Iterable[int]) -> tuple[int, ...]:
        """What sequences of these contexts keep together: the sum of each of `keeps`."""
        each = items("contexts", contexts, "numbers of cached tokens")
        return self._keeps.sums(integer("contexts", c) for c in each)

    def batch(self, contexts: Iterable[int] = ()) -> Batch:
        """Sequences of these contexts that decode together, whose `kept` follows from step to step."""
        return Batch(self.keeps, items("contexts", contexts, "numbers of cached tokens"))

    def step(self, decodes: int, kept: Sequence[float] = (), chunks: Iterable[Chunk] = ()) -> float:
        """Seconds of a step in which so many sequences decode, which keep such sums, beside these chunks.

        Sequences are of all data-parallel ranks, which share them evenly. A chunk is its new tokens and those
        cached before them. InputError for an empty step, or other sums than of `keeps`.
        """
        return self._seconds(decodes, kept, chunks)[0]

    def stages(
        self, decodes: int, kept: Sequence[float] = (), chunks: Iterable[Chunk] = ()
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch of such a step on each pipeline stage."""
        return self._seconds(decodes, kept, chunks)[1:]

    def _seconds(self, decodes: int, kept: Sequence[float], chunks: Iterable[Chunk]) -> tuple[float, ...]:
        """Seconds of the step, and of one micro-batch on each stage."""
        if type(decodes) is not int or not 0 <= decodes <= MOST:
            decodes = integer("decodes", decodes)
        # What a simulation asks for millions of times is looked at as little as can be.
        if not (type(kept) in (tuple, list) and _sums(kept)):
            kept = [number("kept", total) for total in items("kept", kept, "sums")]
        if len(kept) != (len(self.keeps) if decodes else 0):
            self._refuse(decodes, kept)
        times: dict[Chunk, int] = {}
        single: set[Chunk] = set()  # which go on by a token as well
        for one in chunks if type(chunks) in (tuple, list) else items("chunks", chunks, PAIRS):
            chunk = _chunk(one)
            times[chunk] = times.get(chunk, 0) + 1
            if chunk[0] == 1:
                single.add(chunk)
        for chunk in single:
            more = self._keeps.sums([chunk[1]] * times[chunk])
            kept = [a + b for a, b in zip(kept or (0,) * len(more), more, strict=True)]
            decodes += times.pop(chunk)
        if not decodes and not times:
            raise InputError("surface: a step of no sequences; give decodes or chunks")
        parts = self._parts
        if parts > 1 and decodes:
            decodes, kept = binding(parts, decodes, 1, 0).symbols["B"], [total / parts for total in kept]
        each = [(n, *chunk) for chunk, n in times.items()]
        if parts > 1:
            each = [(binding(parts, n, new, 0).symbols["B"], new, cached) for n, new, cached in each]
        return self.micro_batch(decodes, kept, each)

    def micro_batch(
        self, decodes: float, kept: Sequence[float], each: Sequence[tuple[float, int, int]]
    ) -> tuple[float, ...]:
        """Seconds of a step whose micro-batches have each so much, and of one of them on each stage.

        Chunks are of several new tokens, and say how many there are of each kind; all that is taken as given.
        """
        few = self._splits and any(self._phase(new, cached) == "decode" for _, new, cached in each)
        if few or not self.model.symbolic:
            timing = self._timing(decodes, kept, each)
            return (float(timing.step), *map(float, timing.stages))
        if not each:
            return self._steps(True, False).decode(decodes, kept)
        return self._steps(bool(decodes), True).mixed(decodes, kept, each)

    def on_rank(
        self,
        decodes: float,
        kept: Sequence[float],
        each: Sequence[tuple[float, int, int]],
        others: Sequence[tuple[float, int, int]],
    ) -> tuple[float, ...]:
        """The same where one data-parallel rank reads `each`, and other ranks read others beside it.

        Ranks go abreast, and what decodes is on all of them evenly. Experts see what all ranks read, and the
        rest of a rank only its own: a step lasts as long as the rank that takes longest.
        """
        few = self._splits and any(self._phase(new, cached) == "decode" for _, new, cached in each)
        if few or self.program.parallelism.dp == 1 or not self.model.symbolic:
            return self.micro_batch(decodes, kept, [*each, *others])
        return self._steps(bool(decodes), True).on_rank(decodes, kept, each, others)

    def _refuse(self, decodes: int, kept: Sequence[float]) -> NoReturn:
        wanted = f"the sums of {', '.join(map(str, self.keeps)) or 'nothing'}" if decodes else "none"
        raise InputError(f"kept: {decodes:,} sequences decode, expected {wanted}, got {shown(tuple(kept))}")

    def _timing(
        self, decodes: float, kept: Sequence[float], chunks: Sequence[tuple[float, int, int]]
    ) -> Timing:
        """By the prices themselves, of what one micro-batch has."""
        parts: list[tuple[str, Binding]] = []
        if decodes:
            parts.append(("decode", Kept(self._keeps, decodes, kept)))
        for times, new, cached in chunks:
            parts.append((self._phase(new, cached), Binding(B=times, T=new, C=cached)))
        phases = [phase for phase, _ in parts]
        each = [part for _, part in parts]
        at = Step(each, phases if self.program.splits else ()) if len(each) > 1 else each[0]
        return self._plan("decode" in phases, "prefill" in phases).timing(at)

    def _phase(self, new: int, cached: int) -> str:
        return phase_of(verified(self.program, new, cached))

    def _steps(self, decodes: bool, reads: bool) -> Steps:
        key = (decodes, reads) if self._splits else (True, False)
        if key not in self._codes:
            self._codes[key] = Steps(self._plan(*key), self._keeps)
        return self._codes[key]

    def _plan(self, decodes: bool, reads: bool) -> Plan:
        """That of what runs."""
        program = self.program.phase("prefill" if reads else "decode")
        if decodes and reads and program.splits:
            return together(program, self.model)
        return plan(program, self.model)


def _sums(values: Sequence[Any]) -> bool:
    """Whether all are numbers that a sum may be."""
    for value in values:  # noqa: SIM110 (a third of what `all` takes)
        if type(value) not in _NUMBERS or not value >= 0:
            return False
    return True


def _chunk(value: Any) -> Chunk:
    if type(value) is tuple and len(value) == 2:
        new, cached = value
        if type(new) is type(cached) is int and 0 < new <= MOST and 0 <= cached <= MOST:
            return value
    if not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"chunks: expected {PAIRS}, got {shown(value)}")
    return integer("chunks: new", value[0], 1), integer("chunks: cached", value[1])
