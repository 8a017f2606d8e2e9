"""Steps and requests of a program as functions that other languages can run.

`PortableRequests` records the steps of all phases, memory and limits as functions of B, T and C. The rates of
the device are external inputs. Pages (`export/page`) use it. `PortableProgram` records the steps of one
program, for `llmir emit` (`export/source_code.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from llmir.backends.cost import models
from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.cost.transfer import CalibrationSource, symbolic_device, transfer_source
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.memory.caches import policy
from llmir.backends.memory.kv_capacity import KvPool
from llmir.backends.memory.liveness import RankMemory, reserved_bytes
from llmir.backends.step.evaluate import (
    StepEvaluator,
    TimeEstimate,
    move_model,
    op_labels,
    place_on_nodes,
    step_evaluator,
)
from llmir.backends.step.facts import program_notes
from llmir.backends.step.functions import SIZES, record_tape
from llmir.backends.step.sizes import batch_program, check_sizes
from llmir.backends.step.timing import OVERHEAD_ROWS, Overhead, StepSeconds
from llmir.backends.tape.record import Function
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import may_decrease

from .workload import Workload

# Requests, for pages

TYPICAL_LENGTHS = (
    2048,
    128,
)  # prompt and output tokens for a lookup of the engine's memory, which is equal for all lengths
_MANY = 1 << 20  # number of sequences from which a sampler needs more memory than a forward pass


class TimeBasis(NamedTuple):
    """One possible basis of a time, with its known errors as in `OpTime`."""

    basis: str
    error: float | None
    lent: float
    beyond: float


class PhaseOp(NamedTuple):
    """A row: its fixed fields, the positions of its times and amounts, and whether its ranks communicate.

    `moment` is the index in `Phase.moments` of the activations while the row runs.
    """

    fixed: dict[str, Any]
    priced: int
    amounts: int
    moment: int
    sends: bool


class PhaseFunctions:
    """The steps of one phase as functions of B, T and C.

    For each stage: seconds of a micro-batch (`early` is computed from B and T, `late` from C and the results
    of `early`), and bytes of weights, caches and activations (`memory`). `figures` computes all results of a
    step in one function with shared subexpressions, and `counts` contains their numbers. For each stage,
    these are `parts` (as in `StepSeconds`), roofline seconds (`ideal`) and `memory`. For ops, they are
    `times` as in `Priced`, `amounts`, and activations at the `moments` of the step. `steps` and `ideal` may
    take the rates of the device as arguments (`with_rates` of `cost/transfer.py`); `plan` is for the device
    itself.
    """

    def __init__(self, steps: StepEvaluator, ideal: StepEvaluator, of: StepEvaluator, name: str = "") -> None:
        tape, at = record_tape()
        self.plan, self.name, self._steps = of, name, steps
        values, seconds = steps.figures(at), steps.seconds(at)
        stage = Function.of(tape, SIZES, seconds.whole)
        self.early, self.late = stage.parted(("C",))
        moments = chain.from_iterable(m.lifetimes.moments for m in steps.memories)
        self._moments = {moment.op: i for i, moment in enumerate(moments)}
        sizes = (at(m.bytes) for memory in steps.memories for m in memory.lifetimes.moments)
        found: dict[str, Iterable[Number]] = {
            "parts": chain(*seconds),
            "ideal": ideal.timing(at).stages,
            "memory": chain.from_iterable(
                (at(m.weights), at(m.caches), m.transient(at)) for m in steps.memories
            ),
            "times": chain.from_iterable(values[start] for start in self._starts),
            "amounts": chain.from_iterable(values[kind.amounts] for kind in steps.kinds),
            "moments": sizes,
        }
        outputs = {name: tuple(of) for name, of in found.items()}
        self.counts = {name: len(of) for name, of in outputs.items()}
        self.figures = Function.of(tape, SIZES, chain.from_iterable(outputs.values()))
        self.memory = Function.of(tape, SIZES, outputs["memory"])

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions."""
        return self.early, self.late, self.figures, self.memory

    @property
    def added(self) -> tuple[tuple[str, int, int], ...]:
        """The rows that an engine adds: the name, the stage, and the position of its seconds in `parts`."""
        first, depth = StepSeconds._fields.index("engine_cpu"), self.plan.depth
        return tuple(
            (OVERHEAD_ROWS[part], stage, (first + Overhead._fields.index(part)) * depth + stage)
            for stage, part in self.plan.overhead_rows
        )

    @property
    def _starts(self) -> list[slice]:
        return list({kind.priced.start: kind.priced for kind in self._steps.kinds}.values())

    @cached_property
    def ops(self) -> tuple[PhaseOp, ...]:
        """The rows, in schedule order."""
        found: dict[int, PhaseOp] = {}
        starts = {place.start: i * len(TimeEstimate._fields) for i, place in enumerate(self._starts)}
        amounts = 0
        for kind in self._steps.kinds:
            repeat, sends = kind.row.repeat * self.plan.program.micro_batches, bool(kind.row.work.wire)
            for number, called in ((kind.first, op_labels(kind.row)), *kind.others):
                fixed = dict(called, repeat=repeat)
                moment = self._moments.get(str(called["name"]), -1)
                found[number] = PhaseOp(fixed, starts[kind.priced.start], amounts, moment, sends)
            amounts += len(kind.row.amounts)
        return tuple(found[number] for number in sorted(found))

    def bases(self, plan: StepEvaluator | None = None) -> tuple[tuple[TimeBasis, ...], ...]:
        """The possible bases of each row's time, one per kernel that may be the fastest; optionally for
        another plan.
        """
        prices = (plan or self.plan).prices
        found = {id(price): _phase_bases(price) for price in {id(price): price for price in prices}.values()}
        return tuple(found[id(price)] for price in prices)


def _phase_bases(price: OpTime) -> tuple[TimeBasis, ...]:
    held = (price.held(i) for i in range(len(getattr(price, "prices", (price,)))))
    lent = "lent", "beyond"
    return tuple(
        TimeBasis(str(one.basis), one.error, *(float(getattr(one, of, 0.0)) for of in lent)) for one in held
    )


class PortableRequests:
    """A program on a device, so that another language can evaluate requests: `phases` by name, caches,
    limits.

    A program without separate decode and prefill has one phase, `step`. The functions take the `rates` of the
    device, by key (`rates` of `cost/transfer.py`). InputError if the step is not a function of three sizes
    (images, prompts that layers see in part), for cost models without symbolic evaluation, and for engines
    whose memory depends on the longest request.
    """

    def __init__(
        self,
        program: Program,
        model: DeviceCostModel,
        cache_policy: str = "exact",
        memory_utilization: float | None = None,
    ) -> None:
        if not model.symbolic:
            raise InputError(
                f"cost: {model.name} is a custom cost model; only cost models of llmir can be compiled"
            )
        if program.patches or program.image_tokens:
            raise InputError(f"{program.name} reads images, and a page supports only tokens")
        if "prompt" in program.facts:
            raise InputError(f"some layers of {program.name} process only some tokens of a prompt")
        self.program, self.model = program, place_on_nodes(program, model)
        self.cache_policy = policy(cache_policy).name
        self.drafts = DRAFTS if program.splits else 1
        prompt, generate = TYPICAL_LENGTHS
        sizes: dict[str, Any] = {"batch": program.micro_batches, "prompt": prompt, "generate": generate}
        sizes["memory_utilization"] = memory_utilization
        self.job = Workload(program, model.device, **sizes, model=model)
        self.pool: KvPool | None = self.job.pool
        if self.pool and self.pool.whole:
            runs = f"{model.runs} reads prompts whole"
            raise InputError(f"{runs}, so that its memory depends on them; choose another engine")

    @cached_property
    def phases(self) -> dict[str, PhaseFunctions]:
        """The steps of each phase: `step` for all, or `decode` and `prefill`."""
        names = ("decode", "prefill") if self.program.splits else ("",)
        return {name or "step": self._phase(name) for name in names}

    def _phase(self, name: str) -> PhaseFunctions:
        program, _, _ = batch_program(self.program, [check_sizes(self.program.micro_batches)], name)
        ideal = models.model(self.told.device, "ideal")
        steps, least, own = (
            step_evaluator(program, of, self.cache_policy) for of in (self.told, ideal, self.model)
        )
        return PhaseFunctions(steps, least, own, name)

    @cached_property
    def told(self) -> DeviceCostModel:
        """The model on the device with symbolic rates."""
        return move_model(self.model, symbolic_device(self.model.device))

    @cached_property
    def kin(self) -> CalibrationSource | None:
        """The device whose calibration is transferred, if other rates change the error of the transfer."""
        return transfer_source(self.model.device) if isinstance(self.model, CalibratedModel) else None

    def doubted(self, phase: PhaseFunctions) -> tuple[tuple[tuple[TimeBasis, ...], ...], ...]:
        """The possible bases of times at other rates: as on the die of the calibrated device, and as on
        another die.
        """
        models = (move_model(self.model, device) for device in (self.kin.others if self.kin else ()))
        return tuple(
            phase.bases(step_evaluator(phase.plan.program, model, self.cache_policy)) for model in models
        )

    @cached_property
    def held(self) -> Function:
        """Bytes of the caches of each stage as the policy or the engine reserves them, for prompts of T
        tokens.
        """
        tape, at = record_tape()
        if self.pool:
            sequences, prompt, context = (at.symbols[size] for size in SIZES)
            return Function.of(tape, SIZES, self.pool.needed(sequences, context + 1, prompt))
        sizes = reserved_bytes(self.program.phase("decode"), policy(self.cache_policy))
        return Function.of(tape, SIZES, [at(size) for size in sizes])

    @cached_property
    def counted(self) -> Function | None:
        """The bytes with which an engine counts the tokens of each stage; None if all stages have equal
        memory.

        With another memory size, another stage may be full first; then the share of that stage counts.
        """
        pool = self.pool
        if pool is None or pool.rule.rule != "free" or len(self.program.entries) == 1:
            return None
        tape, at = record_tape(1)
        sizes = reserved_bytes(self.program.phase("decode"), policy("unified", pool.rule.block))
        return Function.of(tape, SIZES, [at(size) for size in sizes])

    @cached_property
    def falls(self) -> bool:
        """Whether caches may become smaller with one more token; the caches of an engine never do."""
        sizes = reserved_bytes(self.program.phase("decode"), policy(self.cache_policy))
        return not self.pool and any(map(may_decrease, sizes))

    @cached_property
    def limits(self) -> dict[str, Any]:
        """The usable memory: with an engine, the cache memory of each stage and the memory that sampling
        adds; otherwise bytes.
        """
        if self.pool is None:
            return {"physical": self.model.device.capacity_bytes, "share": self.job.share}
        pool, program = self.pool, self.program
        rooms = pool.rooms()
        more, most = ([room.activations for room in pool.rooms(n)] for n in (_MANY, _MANY + 1))
        each = [b - a for a, b in zip(more, most, strict=True)]
        held = "weights", "activations", "overhead"
        return {
            "rule": pool.rule.rule,
            "share": pool.share,
            "aside": pool.aside,
            "physical": pool.device.capacity_bytes,
            "tightest": pool.tightest,
            "sequences": pool.sequences,
            "stages": [{of: getattr(room, of) for of in held} for room in rooms],
            "reserve": pool.reserve_bytes,
            "grows": {"each": each, "fixed": [a - _MANY * n for a, n in zip(more, each, strict=True)]},
            "dp": program.parallelism.dp,
            "block": pool.rule.block,
        }

    @cached_property
    def sizes(self) -> tuple[int, int | None]:
        """The range of memory sizes in bytes within which the engine's behavior is unchanged."""
        pool = self.pool
        if pool is None:
            return 1, None
        options = (*pool.rule.budgets, *pool.rule.aside, *(pool.graphs.largest if pool.graphs else ()))
        ends = [1, *(option.memory_bytes for option in options)]
        capacity = pool.device.capacity_bytes
        return max(n for n in ends if n <= capacity), min((n for n in ends if n > capacity), default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user, as in a report."""
        plans = (phase.plan for phase in self.phases.values())
        return tuple(
            dict.fromkeys((*program_notes(self.program), *(note for p in plans for note in p.notes)))
        )


# Steps, for other languages

STEP = (
    *("time_s", "ideal_time_s"),
    *("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes"),
)
TIME_FIELDS = "time_s", "bound", "ideal_time_s", "basis"  # the fields of `Priced`


class PortableOp(NamedTuple):
    """A row of a report: its fixed fields, and the positions of its values in the results of `Steps`.

    `bases` contains the possible bases of its time with their known errors, as in `basis`.
    """

    fixed: dict[str, Any]
    priced: int
    amounts: int
    bases: list[tuple[str, float | None]]


class PortableSteps:
    """Steps of one program as functions of `B`, `T` and `C`: totals of the step, and times and amounts of
    each op.
    """

    def __init__(self, steps: StepEvaluator, ideal: StepEvaluator) -> None:
        tape, at = record_tape()
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
        figures: tuple[Callable[[RankMemory], Number], ...] = (
            lambda memory: at(memory.weights),
            lambda memory: at(memory.caches),
            lambda memory: memory.transient(at),
            lambda memory: memory.peak(at),
        )
        return (self.plan.fullest(figure, at) for figure in figures)

    @cached_property
    def ops(self) -> tuple[PortableOp, ...]:
        """The rows, in schedule order."""
        found: dict[int, PortableOp] = {}
        starts = {place.start: i * len(TIME_FIELDS) for i, place in enumerate(self._starts)}
        amounts = 0
        for kind in self.plan.kinds:
            repeat = kind.row.repeat * self.plan.program.micro_batches
            for number, called in ((kind.first, op_labels(kind.row)), *kind.others):
                fixed = dict(called, repeat=repeat)
                found[number] = PortableOp(fixed, starts[kind.priced.start], amounts, _op_bases(kind.price))
            amounts += len(kind.row.amounts)
        return tuple(found[number] for number in sorted(found))


def _op_bases(price: OpTime) -> list[tuple[str, float | None]]:
    """The possible bases of an op time, by the index of the fastest kernel."""
    each = (price.held(i) for i in range(len(getattr(price, "prices", (price,)))))
    return [(str(one.basis), one.error) for one in each]


class PortableProgram:
    """A program on a device, so that another language can evaluate it: its `steps` by phase.

    A program without separate decode and prefill has one kind of steps. InputError if the step is not a
    function of three sizes, or for a cost model without symbolic evaluation.
    """

    def __init__(
        self, program: Program, model: DeviceCostModel, phase: str = "", cache_policy: str = "exact"
    ) -> None:
        if not model.symbolic:
            raise InputError(
                f"cost: {model.name} is a custom cost model; only cost models of llmir can be compiled"
            )
        if "prompt" in program.facts:
            raise InputError(f"emit: some layers of {program.name} process only some tokens of a prompt")
        self.program, self.model, self.cache_policy = program, model, policy(cache_policy).name
        self.phase = phase or ("encode" if program.patches else "")
        # A few new tokens after cached ones count as decode, as in the verification of drafts.
        self.drafts = DRAFTS if program.splits and not phase else 1

    @cached_property
    def steps(self) -> dict[str, PortableSteps]:
        """The steps of each phase: of all, or of `decode` and `prefill`."""
        phases = (self.phase,) if self.phase or not self.program.splits else ("decode", "prefill")
        return {phase or "step": self._steps(phase) for phase in phases}

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user, as in a report."""
        plans = (of.plan for of in self.steps.values())
        return tuple(
            dict.fromkeys((*program_notes(self.program), *(note for p in plans for note in p.notes)))
        )

    def _steps(self, phase: str) -> PortableSteps:
        program, _, _ = batch_program(self.program, [check_sizes(self.program.micro_batches)], phase)
        ideal = models.model(self.model.device, "ideal")
        return PortableSteps(
            *(step_evaluator(program, model, self.cache_policy) for model in (self.model, ideal))
        )
