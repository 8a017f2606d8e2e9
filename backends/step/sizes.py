"""Sizes of a step: sequences, new tokens and cached tokens, as numbers or arrays.

`check_sizes` checks them, `binding` turns them into the binding of one micro-batch, and `batch_program`
selects the phase. `Points` contains the sizes of a report. `sweep` and `sweeps` evaluate results on large
grids in blocks that fit in the CPU's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from llmir.backends.kernels.base import DRAFTS
from llmir.base.arguments import counts, show_value
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.base.values import Immutable, figure
from llmir.hw.engine import Engine
from llmir.hw.engine_sections import Scheduler
from llmir.ir.core.program import APART, Program
from llmir.ir.sizes.binding import Binding, MixedBinding, PackedBinding, UnevenBinding, is_packed, pack
from llmir.ir.sizes.polynomial import Dim

# Checks and bindings

Step = tuple[Number, Number, Number]  # sequences, new tokens, cached tokens


def check_sizes(batch: Any = 1, new: Any = 1, context: Any = 0) -> tuple[Number, Number, Number]:
    """Validate the sizes of a step: sequences, new tokens and cached tokens; InputError if invalid."""
    return counts("batch", batch, 1), counts("new", new, 1), counts("context", context)


def check_packed(batch: Any, new: Any, context: Any) -> tuple[Number, Number, Number]:
    """Check and pack very many sizes, one array at a time, so that little memory is needed."""
    return (
        pack(counts("batch", batch, 1)),
        pack(counts("new", new, 1)),
        pack(counts("context", context)),
    )


def context_sizes(part: Mapping[str, Any]) -> tuple[Number, Number, Number]:
    """Validate the sizes of other sequences in a step, from a mapping."""
    known = ("batch", "new", "context")
    if not isinstance(part, Mapping) or not set(part) <= set(known):
        raise InputError(f"beside: expected {', '.join(known)} of other sequences, got {show_value(part)}")
    return check_sizes(**part)


def refuse_padding(engine: Engine | None, what: str, steps: Sequence[Step] = ()) -> None:
    """Raise InputError if the engine pads sequences and a step has several lengths."""
    if len(steps) == 1:
        return
    scheduler = engine and engine.section(Scheduler)
    if (
        scheduler
        and scheduler.pads
        and len({(show_value(new), show_value(old)) for _, new, old in steps}) != 1
    ):
        told = "price one batch, with new and context of the longest"
        raise InputError(f"{what}: {engine} pads the sequences of a step to the longest; {told}")


def binding(micro_batches: int, batch: Number, new: Number, context: Number) -> Binding:
    """The binding of one micro-batch."""
    if micro_batches > 1 and np.any(np.mod(batch, micro_batches)):
        raise InputError(
            f"batch: expected a multiple of the {micro_batches} micro-batches, got {show_value(batch)}"
        )
    each = batch if micro_batches == 1 else batch // micro_batches
    # `counts` has already copied these arrays.
    make = PackedBinding if any(map(is_packed, (batch, new, context))) else Binding.keeping
    return make(B=each, T=new, C=context)


def micro_batch_binding(parts: int, steps: Sequence[tuple[Step, str]], splits: bool) -> Binding:
    """The binding of one micro-batch with several kinds of sequences, each in its phase.

    Each kernel runs once for each kind of sequences, and once for all decodes, whatever their contexts.
    """
    if len(steps) == 1:
        return binding(parts, *steps[0][0])
    if any(np.shape(value) for step, _ in steps for value in step):
        kinds = [binding(parts, *step) for step, _ in steps]
        return MixedBinding(kinds, [phase for _, phase in steps] if splits else ())
    found: dict[tuple[Number, Number | None, str], list[tuple[Number, Number]]] = {}
    for (batch, new, context), phase in steps:
        kind = new, context if new != 1 else None, phase
        found.setdefault(kind, []).append((batch, context))
    kinds = [_alike(parts, new, each) for (new, _, _), each in found.items()]
    phases = [phase for _, _, phase in found] if splits else ()
    return MixedBinding(kinds, phases) if len(kinds) > 1 else kinds[0]


def _alike(parts: int, new: Number, each: Sequence[tuple[Number, Number]]) -> Binding:
    """The binding of sequences with the same number of new tokens; counts are given for each context."""
    batch, (_, first) = sum(count for count, _ in each), each[0]
    at = binding(parts, batch, new, first)
    if all(context == first for _, context in each):
        return at
    contexts = np.repeat([context for _, context in each], [int(count) for count, _ in each])
    return UnevenBinding(contexts, at.symbols["B"])


def idle_ranks_note(program: Program, at: Binding | MixedBinding) -> tuple[str, ...]:
    """A note if a step, at one point, has fewer sequences than ranks that share them."""
    if at.shape:
        return ()
    ranks, sequences = program.parallelism.dp, at(Dim.symbol("B"))
    if sequences >= ranks:
        return ()
    each = "a batch" if program.micro_batches == 1 else f"each of the {program.micro_batches} micro-batches"
    return (f"{each} of {sequences:g} leaves {ranks - sequences:g} of {ranks} data-parallel ranks idle",)


def phase_of(new: Number) -> str:
    """The phase of sequences with `new` new tokens; `mixed` for a grid with both one and more new tokens."""
    if isinstance(new, int):
        return "decode" if new == 1 else "prefill"
    ones = np.asarray(new) == 1
    return "decode" if ones.all() else "mixed" if ones.any() else "prefill"


def step_phase(program: Program, new: Sequence[Number]) -> str:
    """The phase of a step: decode for one new token per sequence, and otherwise prefill.

    InputError for a grid with both, if they have different programs.
    """
    phases = {phase_of(n) for n in new}
    if phases == {"decode"}:
        return "decode"
    if program.splits and "mixed" in phases:
        fact = "one and of several new tokens mixes two phases"
        raise InputError(f"new: a grid of {fact}; analyze each alone, or set phase=")
    return "prefill"


def verified_tokens(program: Program, new: Number, context: Number) -> Number:
    """`new`; or 1 if there are a few new tokens after cached ones, because the decode program verifies
    drafts.
    """
    if not program.splits:
        return new
    few = (np.asarray(new) <= DRAFTS) & (np.asarray(context) > 0)
    return np.where(few, 1, new)


def _encodes(program: Program, steps: Sequence[tuple[Number, Number, Number]], phase: str) -> str:
    """The phase of steps with images only; `InputError` for tokens, which these models do not have."""
    facts = f"{program.name} reads {program.patches} patches of each image"
    for _, new, context in steps:
        for name, value, none in (("new", new, 1), ("context", context, 0)):
            if np.any(np.asarray(value) != none):
                raise InputError(f"{name}: {facts}, and no tokens; only the batch can be set")
    if phase not in ("", "encode"):
        raise InputError(f"phase: {facts}, and has no {phase}")
    return "encode"


def _whole_prompts(program: Program, prompt: int, steps: Sequence[tuple[Number, Number, Number]]) -> None:
    """Raise InputError for a step that is neither a whole prompt nor one token after it."""
    for _, new, context in steps:
        first = (np.asarray(new) == prompt) & (np.asarray(context) == 0)
        if not np.all(first | ((np.asarray(new) == 1) & (np.asarray(context) >= prompt))):
            takes = f"expected new {prompt:,} and context 0, or new 1 after {prompt:,} tokens"
            got = f"got new {show_value(new)}, context {show_value(context)}"
            why = f"some layers of {program.name} process only some tokens of a prompt"
            raise InputError(f"new: {why}: {takes}; {got}")


def grid_shape(steps: Sequence[tuple[Number, Number, Number]]) -> tuple[int, ...]:
    """The shape to which all sizes broadcast; `InputError` if they do not."""
    shapes = [value.shape for step in steps for value in step if isinstance(value, np.ndarray)]
    if not shapes:
        return ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        said = ", ".join(str(np.shape(value)) for step in steps for value in step)
        raise InputError(f"batch, new and context do not broadcast together: shapes {said}") from None


def batch_program(
    program: Program, steps: Sequence[tuple[Number, Number, Number]], phase: str
) -> tuple[Program, str, Binding]:
    """Select the program for sequences of one or several kinds, its phase, and their sizes."""
    grid_shape(steps)
    if program.patches:
        phase = _encodes(program, steps, phase)
    elif phase != "encode" and isinstance(prompt := program.facts.get("prompt"), int):
        _whole_prompts(program, prompt, steps)
    numbers = [verified_tokens(program, new, context) for _, new, context in steps]
    phases = [phase or phase_of(new) for new in numbers]
    if phase in APART and not (program.patches or phase in program.phases):
        why = {"encode": "the step of images", "draft": "the step of a layer that predicts further tokens"}
        raise InputError(f"phase: {program.name} has no {phase}, {why[phase]}")
    phase = phase or step_phase(program, numbers)
    runs = program.phase(phase)
    return (
        runs,
        phase,
        micro_batch_binding(program.micro_batches, list(zip(steps, phases, strict=True)), runs.splits),
    )


# Points of a report


class Points(Immutable):
    """`batch` sequences with `new` tokens each and `context` cached.

    Very many points are stored in packed form, and expanded when they are accessed.
    """

    program: Program
    _points: Binding

    @cached_property
    def at(self) -> Binding:
        """The sizes of a micro-batch."""
        return Binding.keeping(**self._points.symbols)

    @figure
    def batch(self) -> Number:
        """Sequences."""
        return self.at.symbols["B"] * self.program.micro_batches

    @figure
    def new(self) -> Number:
        """New tokens of each sequence."""
        return self.at.symbols["T"]

    @figure
    def context(self) -> Number:
        """Cached tokens of each sequence."""
        return self.at.symbols["C"]


# Large grids in blocks

# Elements per block of arrays, so that they stay in a core's cache.
BLOCK = 1 << 16
# Number of points whose stage times are in memory at once, 8 bytes each.
WHOLE = 1 << 20


def sweep(figure: Callable[[Binding], Number], at: Binding, block: int = BLOCK) -> Number:
    """`figure(at)`; if `at` contains large arrays, it is evaluated in blocks."""
    (found,) = sweeps(lambda at: (figure(at),), at, block)
    return found


def sweeps(
    figures: Callable[[Binding], Sequence[Number]], at: Binding, block: int = BLOCK
) -> Sequence[Number]:
    """Like `sweep`, for several results."""
    shape = at.shape
    if not shape:
        return figures(at)
    points = math.prod(shape)
    if points <= 2 * block:
        return [np.broadcast_to(figure, shape).astype(np.float64) for figure in figures(at)]
    step = max(1, block * shape[0] // points)
    results: list[Any] = []
    for start in range(0, shape[0], step):
        part = slice(start, start + step)
        found = figures(at.block(part))
        results = results or [np.empty(shape) for _ in found]
        for result, values in zip(results, found, strict=True):
            result[part] = values
    return results
