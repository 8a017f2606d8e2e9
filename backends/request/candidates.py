"""Several programs evaluated at the same points: steps, and requests from prefill to last token.

`Candidates` contains programs on one device, each with a number of pipeline stages. `step` and `requests`
return arrays with one row per candidate (`StepBatch`, `RequestBatch`), NaN for rejected candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import policy
from llmir.backends.step.evaluate import StepEvaluator
from llmir.backends.step.program_batch import Array, BatchMemory, BatchPoints, PlanStages, stage_evaluator
from llmir.backends.step.sizes import batch_program, binding, check_sizes, grid_shape
from llmir.base.arguments import counts, integer
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError
from llmir.base.gc_pause import pause_gc
from llmir.base.values import Figures, FrozenDict, Immutable
from llmir.ir.core.program import Program

from .workload import LONGEST

_CONTEXTS = 1 << 14  # number of decode steps that are evaluated at once, for all candidates


@dataclass(frozen=True)
class StepBatch(Figures):
    """A step of each candidate, with the fields of `Report`: arrays with one row per candidate, NaN if
    rejected.
    """

    time_s: Array
    period_s: Array
    interval_s: Array
    peak_memory_bytes: Array


@dataclass(frozen=True)
class RequestBatch(Figures):
    """Batches of requests, with the fields of a `Workload` with `chunk` "all": one row per candidate.

    `peak_memory_bytes` is the larger of the peaks of prefill and of the last decode step.
    """

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    peak_memory_bytes: Array


class Candidates(Immutable):
    """Programs on one device, each split into stages with given numbers of layers.

    `refused` contains the reason for each program that does not fit the nodes, by its index; InputError if no
    program fits.
    """

    programs: tuple[tuple[Program, tuple[int, ...]], ...]
    model: DeviceCostModel
    cache_policy: str
    refused: Mapping[int, str]
    _plans: dict[tuple[Program, tuple[int, ...]], StepEvaluator]
    _stages: dict[tuple[int, ...], PlanStages]
    _rooms: dict[tuple[int, ...], BatchMemory]

    @pause_gc()
    def __init__(
        self,
        programs: Sequence[tuple[Program, tuple[int, ...]]],
        model: DeviceCostModel,
        cache_policy: str = "exact",
    ) -> None:
        policy_name, refused = policy(cache_policy).name, dict[int, str]()
        vars(self).update(programs=tuple(programs), model=model, cache_policy=policy_name)
        vars(self).update(_plans={}, _stages={}, _rooms={})
        for i, (program, sizes) in enumerate(self.programs):
            try:
                self._plan(program, sizes)
            except HardwareError as error:
                refused[i] = str(error)
        vars(self).update(refused=FrozenDict(refused))
        if len(self.refused) == len(self.programs):
            raise InputError(
                f"candidates: {next(iter(self.refused.values()), 'expected programs, got none')}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Candidates, (self.programs, self.model, self.cache_policy)

    def __len__(self) -> int:
        return len(self.programs)

    def __repr__(self) -> str:
        return f"<Candidates: {len(self)} programs on {self.model.device.name}>"

    @pause_gc()
    def step(self, batch: Any = 1, new: Any = 1, context: Any = 0) -> StepBatch:
        """One step at points given as numbers or arrays that broadcast together.

        InputError as in `analyze`.
        """
        asked = check_sizes(batch, new, context)
        points, plans = self._at(asked)
        whole, slowest = points.timing()
        interval = points.parts * slowest
        peaks = self._room(plans).peaks(points)
        figures = whole + interval - slowest, np.maximum(whole, interval), interval, peaks
        return StepBatch(*(self._all(each).reshape(len(self), *grid_shape([asked])) for each in figures))

    @pause_gc()
    def seconds(self, batch: Any = 1, new: Any = 1, context: Any = 0) -> tuple[Array, Array]:
        """Only `period_s` and `interval_s` of a step, without its memory."""
        asked = check_sizes(batch, new, context)
        points, _ = self._at(asked)
        whole, slowest = points.timing()
        interval = points.parts * slowest
        period, busy = (self._all(each) for each in (np.maximum(whole, interval), interval))
        sizes = len(self), *grid_shape([asked])
        return period.reshape(sizes), busy.reshape(sizes)

    @pause_gc()
    def requests(self, batch: Any, prompt: int, generate: int) -> RequestBatch:
        """Batches of requests with `prompt` and `generate` tokens; each prompt is prefilled in one step.

        InputError for models with image inputs, whose requests have more steps.
        """
        prompt, generate = integer("prompt", prompt, 1, LONGEST), integer("generate", generate, 1, LONGEST)
        batch = np.atleast_1d(np.asarray(counts("batch", batch, 1)))
        if batch.ndim > 1:
            raise InputError(f"batch: expected numbers in a row, got an array of {batch.ndim} dimensions")
        for program, _ in self.programs:
            if program.patches or program.image_tokens:
                raise InputError(
                    f"requests: those of {program.name} have images; estimate them with workload"
                )
        read = self.step(batch, prompt)
        peak, decoding = read.peak_memory_bytes, np.zeros(read.time_s.shape)
        if generate > 1:
            last = prompt + generate - 2
            points, plans = self._at((batch, 1, last))
            peak = np.maximum(peak, self._all(self._room(plans).peaks(points)))
            decoding = self._decoding(batch, range(prompt, last + 1))
        tpot = decoding / (generate - 1) if generate > 1 else np.full(decoding.shape, np.nan)
        return RequestBatch(read.time_s, tpot, read.time_s + decoding, peak)

    def _decoding(self, batch: Array, contexts: range) -> Array:
        """Seconds of the decode steps at these contexts."""
        total: Any = 0.0
        for i in range(0, len(contexts), _CONTEXTS):
            some = np.array(contexts[i : i + _CONTEXTS])
            points, _ = self._at((batch[:, None], 1, some[None]))
            if np.all(points.parts == 1):  # the next step begins when the last stage is done
                total = total + points.whole()
                continue
            whole, slowest = points.timing()
            total = total + np.maximum(whole, points.parts * slowest).sum(axis=-1)
        return self._all(total)

    def _plan(self, program: Program, sizes: tuple[int, ...]) -> StepEvaluator:
        key = program, sizes
        if key not in self._plans:
            self._plans[key] = stage_evaluator(program, self.model, sizes, self.cache_policy)
        return self._plans[key]

    def _at(self, step: tuple[Any, Any, Any]) -> tuple[BatchPoints, tuple[StepEvaluator, ...]]:
        """The points, with at least one axis, and the programs that run at these points."""
        grid_shape([step])
        batch, new, context = step
        step = np.atleast_1d(batch), new, context
        plans = tuple(self._running(step))
        key = tuple(map(id, plans))
        if key not in self._stages:
            self._stages[key] = PlanStages(plans)
        parts = {of.program.micro_batches: None for of in plans}
        return BatchPoints(self._stages[key], {m: binding(m, *step) for m in parts}), plans

    def _room(self, plans: tuple[StepEvaluator, ...]) -> BatchMemory:
        """The memory of the programs that run at these points."""
        key = tuple(map(id, plans))
        if key not in self._rooms:
            self._rooms[key] = BatchMemory(plans)
        return self._rooms[key]

    def _running(self, step: tuple[Any, Any, Any]) -> Iterator[StepEvaluator]:
        for i, (program, sizes) in enumerate(self.programs):
            if i not in self.refused:
                plain = not (program.patches or program.splits or "prompt" in program.facts)
                runs = program if plain else batch_program(program, [step], "")[0]
                yield self._plan(runs, sizes)

    def _all(self, figures: Array) -> Array:
        """Rejected programs have rows of NaN."""
        if not self.refused:
            return figures
        found = np.full((len(self), *figures.shape[1:]), np.nan)
        found[[i for i in range(len(self)) if i not in self.refused]] = figures
        return found
