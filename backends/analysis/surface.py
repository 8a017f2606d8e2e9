"""A step of any composition: what decodes, what that keeps in its caches, and chunks of prompts beside it.

What each price reads says what must be known of the sequences that decode (`keeps`): how many there are, and
for each mask and kind of state the sum of what they keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from llmir.backends.analysis.asked import binding, phase_of, verified
from llmir.backends.analysis.keeps import Asked, Keeps, Kept, Step
from llmir.backends.analysis.plan import Plan, plan
from llmir.backends.analysis.timing import Timing
from llmir.backends.analysis.together import together
from llmir.backends.cost import Model
from llmir.backends.cost.kernels.base import DRAFTS
from llmir.convert import integer, items, number, shown
from llmir.dim import Binding, C, Dim
from llmir.errors import InputError
from llmir.graph import Program

Chunk = tuple[int, int]  # new tokens of a prompt, and those that are cached before them
Phased = tuple[str, Binding]


class Surface:
    """Seconds of a step by what it is made of; sums of functions of contexts, `keeps`, are what it is told.

    `step` is the sum over sequences of what each does after its own context, in one call of each kernel for
    all that decode: what `analyze` says of them, given one by one as `beside`.
    """

    def __init__(self, program: Program, model: Model) -> None:
        if program.patches or program.image_tokens or "prompt" in program.facts:
            read = "prompts that layers see in part" if "prompt" in program.facts else "images"
            raise InputError(f"surface: {program.name} reads {read}; steps of tokens alone have one")
        self.program, self.model = program, model

    def __repr__(self) -> str:
        return f"<Surface {self.program.name} on {self.model.device.name}>"

    @cached_property
    def _asked(self) -> Asked:
        asked = Asked(self.model.symbolic)
        plans = [self._plan(True, False), *([self._plan(True, True)] if self.program.splits else [])]
        whole: dict[str, None] = {}
        mixed = Step([asked, Binding(B=1, T=DRAFTS + 1, C=1)], ("decode", "prefill"))
        for of in plans:
            for row, price in zip(of.rows, of.prices, strict=True):
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

    @property
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

    def step(self, decodes: int, kept: Sequence[float] = (), chunks: Iterable[Chunk] = ()) -> float:
        """Seconds of a step in which so many sequences decode, which keep such sums, beside these chunks.

        Sequences are of all data-parallel ranks, which share them evenly. A chunk is its new tokens and those
        cached before them. InputError for an empty step, or other sums than of `keeps`.
        """
        count = integer("decodes", decodes)
        sums = [number("kept", total) for total in items("kept", kept, "sums")]
        found = items("chunks", chunks, "pairs of new and cached tokens")
        return float(self._timing(count, sums, [_chunk(one) for one in found]).step)

    def _timing(self, count: int, kept: Sequence[float], chunks: Sequence[Chunk]) -> Timing:
        if len(kept) != len(self.keeps) * bool(count):
            wanted = f"the sums of {', '.join(map(str, self.keeps)) or 'nothing'}" if count else "none"
            raise InputError(f"kept: {count:,} sequences decode, expected {wanted}, got {shown(tuple(kept))}")
        if single := [cached for new, cached in chunks if new == 1]:  # they go on by a token as well
            before = kept or (0,) * len(self.keeps)
            kept = [a + b for a, b in zip(before, self._keeps.sums(single), strict=True)]
            count += len(single)
        parts = self._parts(count, kept, Counter(one for one in chunks if one[0] > 1))
        if not parts:
            raise InputError("surface: a step of no sequences; give decodes or chunks")
        phases = [phase for phase, _ in parts]
        splits = self.program.splits
        at = parts[0][1] if len(parts) == 1 else Step([part for _, part in parts], phases if splits else ())
        return self._plan("decode" in phases, "prefill" in phases).timing(at)

    def _parts(self, count: int, kept: Sequence[float], chunks: Mapping[Chunk, int]) -> list[Phased]:
        """The kinds of sequences of one micro-batch, with their phases."""
        parallel = self.program.micro_batches
        found: list[Phased] = []
        if count:
            sequences = binding(parallel, count, 1, 0).symbols["B"]
            found.append(("decode", Kept(self._keeps, sequences, [total / parallel for total in kept])))
        for (new, cached), times in chunks.items():
            phase = phase_of(verified(self.program, new, cached))
            found.append((phase, binding(parallel, times, new, cached)))
        return found

    def _plan(self, decodes: bool, reads: bool) -> Plan:
        """That of what runs."""
        program = self.program.phase("prefill" if reads else "decode")
        if decodes and reads and program.splits:
            return together(program, self.model)
        return plan(program, self.model)


def _chunk(value: object) -> Chunk:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"chunks: expected pairs of new and cached tokens, got {shown(value)}")
    new, cached = value
    return integer("chunks: new", new, 1), integer("chunks: cached", cached)
