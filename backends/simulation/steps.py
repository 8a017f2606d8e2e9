"""Seconds of a step as an engine's kernels and host take them."""

from __future__ import annotations

from collections import Counter

from llmir.backends.analysis.asked import phase_of
from llmir.backends.analysis.plan import Plan, plan
from llmir.backends.analysis.together import together
from llmir.backends.cost import Model
from llmir.dim import Binding, Mixed, Number
from llmir.errors import InputError
from llmir.graph import Program

from .prices import Chunks
from .tables import Tables, tabled


class PricedStep:
    """Steps of a program by a cost model: `Step`. Those that decode have all as much cached, on average.

    Steps of up to so many `tokens` that read prompts are from tables where prices allow that.
    """

    def __init__(self, program: Program, model: Model, tokens: int = 0) -> None:
        parallel = program.parallelism
        if program.patches or program.image_tokens or "prompt" in program.facts:
            read = "images" if "prompt" not in program.facts else "prompts that layers see in part"
            raise InputError(f"simulate: requests over {read} of {program.name} are not modelled")
        for name, ranks in (("pp", len(program.entries)), ("dp", parallel.dp)):
            if ranks > 1:
                raise InputError(f"simulate: {name} is {ranks}; it can be 1 only, tp may be any")
        self.program, self.model = program, model
        own = None if program.splits else plan(program, model)
        self._tables = Tables(own, tokens) if tokens and own and tabled(own) else None

    def __call__(self, decodes: int, kept: Number, chunks: Chunks) -> Number:
        """Seconds from this step to the next."""
        if chunks and self._tables and (seconds := self._tables(decodes, kept, chunks)) is not None:
            return seconds
        parts = [Binding(B=decodes, T=1, C=kept / decodes)] if decodes else []
        parts += [Binding(B=n, T=new, C=cached) for (new, cached), n in Counter(chunks).items()]
        phases = [phase_of(part.symbols["T"]) for part in parts]
        at = parts[0] if len(parts) == 1 else Mixed(parts, phases if self.program.splits else ())
        return self._plan(set(phases)).timing(at).period

    def _plan(self, phases: set[str]) -> Plan:
        program = self.program.phase("prefill" if "prefill" in phases else "decode")
        both = len(phases) > 1 and program.splits
        return (together if both else plan)(program, self.model)
