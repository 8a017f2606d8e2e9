"""What a program's steps take, as functions that other languages can run: recorded once, of three sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from llmir.backends.cost import models
from llmir.backends.cost.op_time import Model, Price
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.memory.caches import policy
from llmir.backends.memory.liveness import Memory
from llmir.backends.step.costs import named
from llmir.backends.step.evaluate import Plan, plan
from llmir.backends.step.functions import SIZES, recorded
from llmir.backends.step.sizes import checked, running
from llmir.backends.tape.record import Function
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

STEP = (
    *("time_s", "ideal_time_s"),
    *("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes"),
)
PRICED = "time_s", "bound", "ideal_time_s", "basis"  # as `Priced` has them


class Op(NamedTuple):
    """A row of a report: what is fixed of it, and where its figures begin among those of `Steps`.

    `bases` are what its times may be made of, and the error that is known of such, by `basis`.
    """

    fixed: dict[str, Any]
    priced: int
    amounts: int
    bases: list[tuple[str, float | None]]


class Steps:
    """Steps of one program as functions of `B`, `T` and `C`: the whole, and of ops the times and amounts."""

    def __init__(self, steps: Plan, ideal: Plan) -> None:
        tape, at = recorded()
        self.plan, values = steps, steps.figures(at)
        amounts = chain.from_iterable(values[kind.amounts] for kind in steps.kinds)
        times = chain.from_iterable(values[start] for start in self._starts)
        whole = steps.timing(at).step, ideal.timing(at).step, *self._memory(at)
        self.step, self.times, self.amounts = (
            Function.of(tape, SIZES, found) for found in (whole, times, amounts)
        )

    @property
    def _starts(self) -> list[slice]:
        return list({kind.priced.start: kind.priced for kind in self.plan.kinds}.values())

    def _memory(self, at: Binding) -> Iterator[Number]:
        figures: tuple[Callable[[Memory], Number], ...] = (
            lambda memory: at(memory.weights),
            lambda memory: at(memory.caches),
            lambda memory: memory.transient(at),
            lambda memory: memory.peak(at),
        )
        return (self.plan.fullest(figure, at) for figure in figures)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The rows, in schedule order."""
        found: dict[int, Op] = {}
        starts = {place.start: i * len(PRICED) for i, place in enumerate(self._starts)}
        amounts = 0
        for kind in self.plan.kinds:
            repeat = kind.row.repeat * self.plan.program.micro_batches
            for number, called in ((kind.first, named(kind.row)), *kind.others):
                fixed = dict(called, repeat=repeat)
                found[number] = Op(fixed, starts[kind.priced.start], amounts, _bases(kind.price))
            amounts += len(kind.row.amounts)
        return tuple(found[number] for number in sorted(found))


def _bases(price: Price) -> list[tuple[str, float | None]]:
    """What times of a price are made of, by the place of the kernel that holds."""
    each = (price.held(i) for i in range(len(getattr(price, "prices", (price,)))))
    return [(str(one.basis), one.error) for one in each]


class Emission:
    """A program on a device, for those who run it elsewhere: its `steps` by phase.

    A program that does not tell decode from prefill has one kind of them. `InputError` for what is no
    function of three sizes, and for a cost model whose prices symbols do not go through.
    """

    def __init__(self, program: Program, model: Model, phase: str = "", cache_policy: str = "exact") -> None:
        if not model.symbolic:
            raise InputError(f"cost: {model.name} is a model of numbers; code is made of llmir's own")
        if "prompt" in program.facts:
            raise InputError(f"emit: layers of {program.name} see fewer tokens of one prompt alone")
        self.program, self.model, self.cache_policy = program, model, policy(cache_policy).name
        self.phase = phase or ("encode" if program.patches else "")
        # So many new tokens after others decode, as what verifies drafts does.
        self.drafts = DRAFTS if program.splits and not phase else 1

    @cached_property
    def steps(self) -> dict[str, Steps]:
        """The steps of each phase: that of all, or of `decode` and `prefill`."""
        phases = (self.phase,) if self.phase or not self.program.splits else ("decode", "prefill")
        return {phase or "step": self._steps(phase) for phase in phases}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, as a report has it."""
        plans = (of.plan for of in self.steps.values())
        return tuple(dict.fromkeys((*self.program.notes, *(note for p in plans for note in p.notes))))

    def _steps(self, phase: str) -> Steps:
        program, _, _ = running(self.program, [checked(self.program.micro_batches)], phase)
        ideal = models.model(self.model.device, "ideal")
        return Steps(*(plan(program, model, self.cache_policy) for model in (self.model, ideal)))
