"""Structures of a plan: splits of a model, their capacity, and their rates in closed form.

Order of the file: `Split`, `Structure` and its capacity, closed forms of many plans as arrays
(`structure_times`, `plan_points`), reasons for rejections (`Rejection`), and `feasible_structures`.

Closed form: each of B requests in flight waits for the decode steps of its own tokens, and for the prefill of
all other requests. One request therefore completes every cycle / B, where the cycle is (G − 1) · d(B) + B ·
r. In a step, k = B / (G − 1) requests end, so k prompts are prefilled together: at least one, and at most as
many as the token budget allows. r is 1/k of their time. A step with prefill and decodes reads weights and
launches kernels once, which saves a decode step of one sequence.

Data-parallel ranks run in lockstep, and micro-batches pass through the stages one after another. So all wait
for a whole prompt, but only once for all prompts that arrive in the same step. With λ = B / (G − 1) arrivals
on average (Poisson), each costs (1 − exp(−λ)) / λ of the prompt's time. It costs at least the time for which
it occupies its rank and the slowest stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.kv_capacity import UNLIMITED
from llmir.backends.request.candidates import Candidates
from llmir.backends.request.speculation import draft_program
from llmir.backends.request.workload import Workload
from llmir.backends.simulate.drafts import Drafts
from llmir.backends.simulate.engine import engine_capacity, engine_policy, max_request_tokens
from llmir.backends.simulate.server import Policy
from llmir.base.budget import Pace
from llmir.base.errors import LlmirError
from llmir.base.gc_pause import pause_gc
from llmir.base.values import Array
from llmir.hw.device import Device
from llmir.hw.engine_sections import Scheduler
from llmir.ir.core.program import Program

from .traffic import Traffic

# Splits


class Split(NamedTuple):
    """The ranks of one replica: tensor, pipeline, data and expert parallel; and whether sequence parallelism
    is on.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    sp: bool = False

    @property
    def devices(self) -> int:
        """The number of devices per replica."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        """The degrees above 1, such as `tp 4, pp 2`."""
        named = zip(("tp", "pp", "dp", "ep"), self[:4], strict=True)
        words = [f"{name} {n}" for name, n in named if n > 1 or (name == "tp" and self.dp == self.pp == 1)]
        return ", ".join((*words, *(["sp"] if self.sp else [])))


def splits(most: int, tensor: Sequence[int], stages: int, *, experts: bool) -> Iterator[Split]:
    """The splits over up to `most` devices, given possible degrees of tp and the largest number of stages.

    Pipeline stages and data-parallel ranks are powers of two. Ranks of `dp` share the experts; either all
    ranks split them, or each rank of a group has whole experts. Without experts, data-parallel ranks would be
    replicas, which are counted separately.

    >>> [str(split) for split in splits(4, (1, 2), 2, experts=False)]
    ['tp 1', 'pp 2', 'tp 2', 'tp 2, sp', 'tp 2, pp 2', 'tp 2, pp 2, sp']
    """
    powers = [1 << n for n in range(most.bit_length())]
    for tp in tensor:
        for dp in powers if experts else (1,):
            for pp in powers:
                if tp * dp * pp > most or pp > stages:
                    break
                for ep in dict.fromkeys((1, tp * dp)) if experts else (1,):
                    for sp in (False, True) if tp > 1 else (False,):
                        yield Split(tp, pp, dp, ep, sp)


# Structures and their capacity


class ElementTypes(NamedTuple):
    """The dtypes of a structure as its engine runs them; "" means the dtype of the checkpoint.

    `activations` are fp8 if the engine multiplies fp8 weights with fp8 activations, even if you did not
    request this.
    """

    weights: str = ""
    activations: str = ""
    kv: str = ""

    def __str__(self) -> str:
        """The dtypes as text, such as `fp8 kv fp8`; activations are omitted if they equal the weights."""
        own = f"activations {self.activations}" if self.activations not in ("", self.weights) else ""
        return " ".join(filter(None, (self.weights, own, self.kv and f"kv {self.kv}")))


def structure_name(device: Device, types: ElementTypes, split: Split) -> str:
    """The name of a possible or impossible structure, such as `H100-SXM fp8 tp 2`."""
    return " ".join(filter(None, (device.name, str(types), str(split))))


class Structure(NamedTuple):
    """One replica of a program, with the dtypes `types`.

    If there are `drafts`, a decode step verifies them. `chunked` sets chunked prefill, `utilization` the
    usable memory share, and `sequences` the requests at once on each data-parallel rank; None means the
    engine's default. `reserve` bytes of memory stay free.
    """

    program: Program
    model: DeviceCostModel
    types: ElementTypes
    split: Split
    drafts: Drafts | None = None
    chunked: bool | None = None
    utilization: float | None = None
    sequences: int | None = None
    reserve: int = 0

    @property
    def weights(self) -> str:
        """The dtype of quantized weights; "" for the checkpoint's."""
        return self.types.weights

    @property
    def device(self) -> Device:
        """The device."""
        return self.model.device

    @property
    def name(self) -> str:
        """The name, unique among structures of the model."""
        words = [structure_name(self.device, self.types, self.split)]
        if self.chunked is not None:
            words.append("chunked prefill" if self.chunked else "whole prompts")
        if self.utilization is not None:
            words.append(f"memory utilization {self.utilization:g}")
        return ", ".join(words)

    def job(
        self, prompt: int, generate: int, longest: int | None, chunk: int | None, batch: int | None
    ) -> Workload:
        """A workload of one request, with limits of a step in tokens and sequences; None for the engine's.

        `batch` is ignored if `sequences` are set.
        """
        # The limit of one data-parallel rank, as in the engines' flags.
        each = self.sequences or (batch and -(-batch // self.split.dp))
        step: Any = {"max_num_seqs": each, "max_batched_tokens": chunk, "max_model_len": longest}
        step |= {"memory_utilization": self.utilization, "reserve_bytes": self.reserve}
        job = Workload(self.program, self.device, 1, prompt, generate, model=self.model, **step)
        return self.drafts.beside(job) if self.drafts else job

    def capacity(
        self, traffic: Traffic, chunk: int | None = None, batch: int | None = None
    ) -> StructureCapacity:
        """The engine's capacity for requests of the traffic; InputError without caches."""
        return structure_capacity(self.job(*traffic.tokens, chunk, batch), self.drafts, self.chunked)


class StructureCapacity(NamedTuple):
    """The capacity of an engine: `tokens` of a step on each data-parallel rank, and `requests` at once.

    Caches can store `holds` tokens of one request, or `cached` requests of mean length; at most `sequences`
    run at once. A decoding sequence takes `rows` tokens of the budget of a step. If steps prefill whole
    prompts, a step has space for one prompt and for `in_flight` decodes, the largest number of requests in
    flight.
    """

    tokens: int
    requests: int
    holds: int
    cached: int
    sequences: int
    rows: int
    in_flight: int
    policy: Policy


def structure_capacity(
    job: Workload, drafts: Drafts | None = None, chunked: bool | None = None
) -> StructureCapacity:
    """The engine's capacity for requests like those of a workload; InputError without caches.

    `requests` is the smaller of the number that caches store and the number that the engine runs.
    """
    found = engine_capacity(job, drafts)
    assert job.pool is not None, "it has a capacity"
    fills = engine_policy(job, chunked)
    sizes = job.length, job.length + job.generate + found.rows - 2
    cached = found._replace(sequences=UNLIMITED).requests(*sizes)
    in_flight = UNLIMITED
    if fills.mixes and not fills.chunked:  # a decode step has tokens left for a whole prompt
        beside = max(job.pool.tokens - job.prompt, 0) // found.rows
        in_flight = found.ranks * (1 + beside)
    most = min(cached, found.sequences), max_request_tokens(found, fills), cached, found.sequences
    return StructureCapacity(job.pool.tokens, *most, found.rows, in_flight, fills)


# Closed forms

# Numbers of requests in flight that are tried, in addition to the largest that fits.
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PrefillSteps = tuple[tuple[int, int], ...]  # new tokens, and cached tokens


class PlanPoints(NamedTuple):
    """Plans with one replica, as arrays with one entry each: number of the structure, tokens of a step,
    requests in flight.

    `ttft_s` is the prefill time of a prompt without waiting, `tpot_s` the mean time per later token with all
    requests in flight, `rate` the completed requests per second, and `devices` the devices per replica.
    """

    structure: Array
    chunk: Array
    batch: Array
    ttft_s: Array
    tpot_s: Array
    rate: Array
    devices: Array

    def only(self, kept: Array) -> PlanPoints:
        """The points of a mask, or at indices."""
        return PlanPoints(*(column[kept] for column in self))

    def stretched(self, times: float) -> PlanPoints:
        """The plans if all steps take `times` times as long."""
        longer = {"ttft_s": self.ttft_s * times, "tpot_s": self.tpot_s * times, "rate": self.rate / times}
        return self._replace(**longer)


class StructureTimes(NamedTuple):
    """Seconds of a structure's steps, per lane of its pipeline: the prefill of a prompt, and a decode step.

    Prefill times are listed by chunk size: the time of a prompt alone; for prompts that are prefilled
    together, their number and the time for which they occupy the slowest stage together with decodes; and the
    time for which all others wait for a single prompt, on its rank and through all stages. `alone` is the
    prefill rate per second without decodes. Times of decode steps are listed by batch.
    """

    reads: dict[int, tuple[float, Array, Array, float]]
    alone: dict[int, float]
    decodes: dict[int, float]


def prefill_steps(prompt: int, chunk: int, cached: int = 0) -> PrefillSteps:
    """The steps that prefill a prompt alone in chunks; a last chunk of 1 token is merged with the previous
    one.

    >>> prefill_steps(4000, 1500), prefill_steps(1001, 1000), prefill_steps(4000, 1500, 2000)
    (((1500, 0), (1500, 1500), (1000, 3000)), ((1001, 0),), ((1500, 2000), (500, 3500)))
    """
    starts = list(range(cached, prompt, chunk))
    if len(starts) > 1 and prompt - starts[-1] == 1:
        starts.pop()
    ends = [*starts[1:], prompt]
    return tuple((end - start, start) for start, end in zip(starts, ends, strict=True))


def prompts_per_step(prompt: int, chunk: int) -> list[int]:
    """The numbers of prompts that one step may prefill: powers of two up to its token limit.

    >>> prompts_per_step(1500, 2048), prompts_per_step(500, 8192)
    ([1], [1, 2, 4, 8, 16])
    """
    most = max(1, chunk // prompt)
    return sorted({*(1 << n for n in range(most.bit_length())), most})


def structure_times(
    structures: Sequence[Structure],
    prompt: int,
    generate: int,
    chunks: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
    cached: int = 0,
) -> list[StructureTimes | str]:
    """The step times of structures on one device, for the sizes of their steps; or the reason if one is
    rejected.

    `cached` tokens of each prompt are in the prefix cache.
    """
    if not structures:
        return []
    programs = [s.program for s in structures]
    try:
        candidates = Candidates([(program, (1,)) for program in programs], structures[0].model)
    except LlmirError as error:
        return [str(error)] * len(structures)
    sizes = sorted({chunk for each in chunks for chunk in each})
    reads = {chunk: prefill_steps(prompt, chunk, cached) for chunk in sizes}
    pairs = sorted({pair for each in reads.values() for pair in each})
    lanes = sorted({1, *(s.split.dp for s in structures)})  # a prompt alone, and one on each rank
    new, context = (np.array(column) for column in zip(*pairs, strict=True))
    whole, busy = candidates.seconds(np.array(lanes)[:, None], new[None], context[None])
    every = sorted(
        {-(-n // s.split.pp) for s, each in zip(structures, batches, strict=True) for n in each} | set(lanes)
    )
    period, interval = candidates.seconds(np.array(every), 1, prompt + generate // 2)
    half = prompt + generate // 2
    drafter = _drafting(structures)
    verify, own_interval = _verifying(structures, drafter, np.array(every), half) or (period, interval)
    place = {size: i for i, size in enumerate(every)}
    column = {pair: i for i, pair in enumerate(pairs)}
    many = sorted({n for chunk in sizes for n in prompts_per_step(prompt - cached, chunk)})
    together = np.array(lanes)[:, None] * np.array(many), prompt - cached, cached
    _, packed = candidates.seconds(*together)
    if drafter:  # it processes all tokens of the model, and one more per decoding sequence
        more = drafter.seconds(np.array(lanes)[:, None], new[None], context[None])
        whole, busy = whole + more[0], busy + more[1]
        packed = packed + drafter.seconds(*together)[1]
        interval = interval + drafter.seconds(np.array(every), 1, half)[1]
    found: list[StructureTimes | str] = []
    for i, s in enumerate(structures):
        if i in candidates.refused:
            found.append(candidates.refused[i])
            continue
        lane, scheduler = lanes.index(s.split.dp), s.model.runs and s.model.runs.section(Scheduler)
        mixes = scheduler.mixes if scheduler else True
        shared = float(interval[i, place[s.split.dp]]) if mixes else 0.0
        own, alone = {}, {}
        for chunk in chunks[i]:
            at = [column[pair] for pair in reads[chunk]]
            read, first = float(busy[i, lane, at].sum()), float(busy[i, 0, at].sum())
            latency = first + float(whole[i, 0, at[-1]] - busy[i, 0, at[-1]])
            at_once = prompts_per_step(prompt - cached, chunk)
            spent = packed[i, lane, [many.index(n) for n in at_once]]
            spent[0] = read
            alone[chunk] = float((np.array(at_once) * s.split.dp / spent).max()) if spent.all() else np.inf
            beside = np.maximum(spent - shared * np.where(np.array(at_once) == 1, len(at), 1), 0.0)
            steps_of_one = (len(at) + s.split.pp - 1) / s.split.pp
            held = max(latency - steps_of_one * float(period[i, place[1]]) * mixes, 0.0)
            own[chunk] = latency, np.array(at_once, dtype=float), beside / s.split.dp, held
        decodes = {}
        for batch in batches[i]:
            at_batch = place[-(-batch // s.split.pp)]
            decodes[batch] = max(float(verify[i, at_batch]), s.split.pp * float(own_interval[i, at_batch]))
        found.append(StructureTimes(own, alone, decodes))
    return found


def _drafting(structures: Sequence[Structure]) -> Candidates | None:
    """The drafters of each structure; None without drafts."""
    each = [s.drafts and draft_program(s.program, s.drafts.drafter) for s in structures]
    return Candidates([(of, (1,)) for of in each if of], structures[0].model) if all(each) else None


def _verifying(
    structures: Sequence[Structure], drafter: Candidates | None, batch: Array, context: int
) -> tuple[Array, Array] | None:
    """Seconds of the steps that verify drafts, and of the steps that generate them; None without drafts."""
    drafts = [s.drafts for s in structures if s.drafts]
    if not drafts:
        return None
    model, count = structures[0].model, drafts[0].tokens
    every = Candidates([(each.verify, (1,)) for each in drafts], model)
    period, interval = every.seconds(batch, count + 1, context)
    if drafter:
        more = drafter.seconds(batch, 1, context)
        period, interval = period + count * more[0], interval + count * more[1]
    return period, interval


def plan_points(
    number: int,
    structure: Structure,
    of: StructureTimes,
    generate: int,
    admitted: Mapping[int, AdmittedBatches],
) -> PlanPoints:
    """All plans of a structure: each chunk with the batches that are possible with it."""
    rows = []
    steps_of_one = max(generate - 1, 1) / (structure.drafts.yielded if structure.drafts else 1.0)
    for chunk, (batches, in_flight) in admitted.items():
        latency, at_once, spent, held = of.reads[chunk]
        for limit in batches:
            batch = min(limit, in_flight)
            come = batch / steps_of_one  # mean value per step
            reading = min(max(batch / structure.split.dp / steps_of_one, 1.0), at_once[-1])
            busy = float(np.interp(reading, at_once, spent)) / reading
            if (
                structure.split.dp * structure.split.pp > 1
            ):  # requests that arrive in one step wait for each other's prefill
                busy = max(busy, held * -np.expm1(-come) / come)
            cycle = (generate > 1) * steps_of_one * of.decodes[batch] + batch * busy
            later = max(generate - 1, 1)
            tpot = (cycle - busy) / later if generate > 1 else np.nan
            rate = batch / cycle if cycle else np.inf
            rows.append((number, chunk, limit, latency, tpot, rate, structure.split.devices))
    return PlanPoints(*(np.array(column) for column in zip(*rows, strict=True)))


def join_points(parts: Sequence[PlanPoints]) -> PlanPoints:
    """The given points one after another."""
    return PlanPoints(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


# Reasons of rejection

GB = 1e9


class Rejection(NamedTuple):
    """A reason as text; the needed amount divided by the available devices or memory; whether the structure
    `fits` in memory.
    """

    why: str
    times: float = inf
    fits: bool = False

    @property
    def far(self) -> tuple[bool, float]:
        """The distance from a possible structure; too few devices is a smaller distance than too little
        memory.
        """
        return not self.fits, self.times


def combined_reason(count: int, why: object) -> str:
    """The message if no row is left; it states the reason for the first row."""
    return f"the one step is refused: {why}" if count == 1 else f"all {count:,} steps are refused: {why}"


def device_rejection(devices: int, most: int, times: float) -> Rejection:
    """A rejection because too many devices are needed; the rate of the allowed number is too low by the
    factor `times`.
    """
    return Rejection(f"needs {devices:,} GPUs, more than the {most:,} allowed", times, fits=True)


def memory_rejection(job: Workload, why: str) -> Rejection:
    """A rejection because of memory: one request on each rank and micro-batch does not fit on the fullest
    stage.

    `why` is the message if one request fits.
    """
    assert job.pool is not None
    pool, lanes = job.pool, job.program.parallelism.dp * job.program.micro_batches
    held = pool.held(lanes // job.program.micro_batches, job.length + job.generate)
    rooms = pool.rooms(max(1, lanes // job.program.parallelism.dp))
    short, room, cache = max(
        (room.held + cache - room.usable, room, cache) for room, cache in zip(rooms, held, strict=True)
    )
    if short <= 0 or room.usable <= 0:
        return Rejection(why)
    parts = {"weights": room.weights, "activations": room.activations, "a request": cache}
    most = max(parts, key=lambda name: parts[name])
    needed = short + room.usable
    what = f"{needed / GB:.3g} of {room.usable / GB:.3g} GB a GPU, {parts[most] / GB:.3g} of them {most}"
    return Rejection(f"does not fit: needs {what}", needed / room.usable)


def engine_rejection(structure: Structure, traffic: Traffic, why: str) -> Rejection:
    """The reason why the engine cannot run the requests."""
    try:
        return memory_rejection(structure.job(*traffic.tokens, None, None), why)
    except LlmirError:
        return Rejection(why)


def batch_rejection(structure: Structure, traffic: Traffic, batches: Sequence[int] | None) -> Rejection:
    """The reason why not even a batch of one is possible."""
    why = "not one request fits next to the weights"
    return Rejection("no such batch fits") if batches else engine_rejection(structure, traffic, why)


def length_rejection(structure: Structure, traffic: Traffic, room: StructureCapacity) -> Rejection | None:
    """A rejection because some requests can never run; its distance is the memory of the longest request.

    None if every request fits.
    """
    if not (why := _longer(traffic, room)):
        return None
    answer, longest = traffic.answer, traffic.longest
    try:
        job = structure.job(max(1, longest - answer), answer, longest, room.tokens, None)
        return Rejection(why, memory_rejection(job, why).times)
    except LlmirError:
        return Rejection(why)


def _longer(traffic: Traffic, room: StructureCapacity) -> str:
    """The message about requests longer than the caches or a step allow; "" if there are none."""
    every, fills = traffic.every, room.policy
    found = [("the cache holds", every.reserved + room.rows - 1, room.holds)]
    if not fills.chunked:
        found.append(("a step reads", fills.longest(every.prompt - every.cached, every.written), room.tokens))
    return next((_more(*each) for each in found if each[1].max() > each[2]), "")


def _more(what: str, tokens: Array, most: int) -> str:
    more = f"{100 * float((tokens > most).mean()):.3g}% of requests have more, up to {int(tokens.max()):,}"
    return f"does not fit: {what} {most:,} tokens at most, {more}"


# Feasible structures

CHUNKS = (2048,)  # tokens of a step that are tried in addition to the engine's default
# Tokens of a step, and the share of memory, if the engine's default is too small. vLLM's budget for an H100
# and SGLang's chunk are 8,192 tokens. NVIDIA's benchmarks of TensorRT-LLM use 0.95 of the free memory
# (docs/source/performance/perf-overview.md, kv_cache_free_gpu_mem_fraction).
RAISED_TOKENS, RAISED_UTILIZATION = 8192, 0.95
SCARCE = 2  # number of the longest requests; caches that store fewer limit the throughput


class AdmittedBatches(NamedTuple):
    """The batches that fit in memory, and the largest number of requests in flight."""

    batches: tuple[int, ...]
    in_flight: int

    @property
    def priced(self) -> Iterator[int]:
        """Numbers of requests in flight."""
        return (min(batch, self.in_flight) for batch in self.batches)


Sizes = dict[int, AdmittedBatches]  # by tokens of a step


class FeasibleStructures(NamedTuple):
    """Structures that fit with their step times and plans, and the rejections of others by name.

    `first` maps each structure to the structure with the engine's default settings, which may be itself; the
    others have the same split and a setting that admits more requests.
    """

    structures: tuple[Structure, ...]
    times: list[StructureTimes]
    points: PlanPoints | None
    refused: dict[str, Rejection]
    first: tuple[int, ...]


@pause_gc()
def feasible_structures(
    structures: Sequence[Structure],
    traffic: Traffic,
    chunks: Sequence[int] | None,
    batches: Sequence[int] | None,
) -> FeasibleStructures:
    """The structures that fit the traffic; `chunks` and `batches` replace the default sizes."""
    refused: dict[str, Rejection] = {}
    kept: list[tuple[Structure, Sizes, int]] = []
    pace = Pace(f"a search of {len(structures):,} splits", "ask for fewer chunks or batches", len(structures))
    for number, structure in enumerate(structures):
        pace.step()
        sizes = _sizes(structure, traffic, chunks, batches)
        found = [] if isinstance(sizes, Rejection) else [(structure, sizes)]
        found += _other_settings(structure, traffic, chunks, batches)
        if not found and isinstance(sizes, Rejection):
            refused[structure.name] = sizes
        kept += [(*each, number) for each in found]
    parts: list[PlanPoints] = []
    priced: list[Structure] = []
    known: list[StructureTimes] = []
    first: list[int] = []
    places: dict[int, int] = {}
    for model in dict.fromkeys(id(structure.model) for structure, *_ in kept):
        own = [each for each in kept if id(each[0].model) == model]
        found_times = structure_times(
            [structure for structure, *_ in own],
            traffic.read,
            traffic.answer,
            [tuple(sizes) for _, sizes, _ in own],
            [sorted({n for each in sizes.values() for n in each.priced}) for _, sizes, _ in own],
            traffic.cached,
        )
        for (structure, sizes, number), each in zip(own, found_times, strict=True):
            if isinstance(each, str):
                refused[structure.name] = Rejection(each)
                continue
            first.append(places.setdefault(number, len(priced)))
            parts.append(plan_points(len(priced), structure, each, traffic.answer, sizes))
            priced.append(structure)
            known.append(each)
    points = join_points(parts) if parts else None
    return FeasibleStructures(tuple(priced), known, points, refused, tuple(first))


def _sizes(
    structure: Structure, traffic: Traffic, chunks: Sequence[int] | None, batches: Sequence[int] | None
) -> Sizes | Rejection:
    """The batches that fit, by chunk; the closest rejection if there are none."""
    sizes: Sizes = {}
    refusals: list[Rejection] = []
    for chunk in dict.fromkeys(chunks or (None, *CHUNKS)):
        try:
            found = structure.capacity(traffic, chunk)
        except LlmirError as error:
            refusals.append(engine_rejection(structure, traffic, str(error)))
            continue
        if longer := length_rejection(structure, traffic, found):
            refusals.append(longer)
            continue
        dp = structure.split.dp
        asked = batches or sorted({*BATCHES, found.requests // dp * dp})
        admitted = [
            n for n in asked if n > 0 and n % dp == 0 and _admits(structure, traffic, chunk, n, found)
        ]
        if admitted:
            sizes[found.tokens] = AdmittedBatches(tuple(admitted), found.in_flight)
    if sizes:
        return sizes
    return min(refusals or [batch_rejection(structure, traffic, batches)], key=lambda each: each.far)


def _admits(
    structure: Structure, traffic: Traffic, chunk: int | None, batch: int, default: StructureCapacity
) -> bool:
    """Whether `batch` requests can run at once: within the default limit, or above it with a separate
    limit.
    """
    if batch <= default.requests or default.requests < default.sequences:
        return batch <= default.requests
    try:
        return structure.capacity(traffic, chunk, batch).requests >= batch
    except LlmirError:  # more sequences than a step has tokens
        return False


def _other_settings(
    structure: Structure,
    traffic: Traffic,
    chunks: Sequence[int] | None,
    batches: Sequence[int] | None,
) -> list[tuple[Structure, Sizes]]:
    """Settings of the engine that admit more requests, with their sizes, if its default rejects traffic or
    leaves too few tokens.

    - Chunked prefill, or more tokens per step, if a step may lack tokens for the longest prompt.
    - More sequences at once, if caches store more than the engine runs.
    - A larger share of the memory, if caches store fewer than `SCARCE` of the longest requests.

    Settings that are already set are not changed.
    """
    raised = structure._replace(utilization=RAISED_UTILIZATION)
    try:
        room = structure.capacity(traffic, min(chunks) if chunks else None)
    except LlmirError:
        if structure.utilization is not None:
            return []
        sizes = _sizes(raised, traffic, chunks, batches)
        own = [] if isinstance(sizes, Rejection) else [(raised, sizes)]
        return own + _other_settings(raised, traffic, chunks, batches)
    tries: list[tuple[Structure, Sequence[int] | None, Sequence[int] | None]] = []
    running = min(room.cached, room.sequences)
    prompt = int((traffic.every.prompt - traffic.every.cached).max())
    step = prompt + room.rows * max(running // structure.split.dp - 1, 0)  # while all others decode
    if room.policy.mixes and step > room.tokens:
        if structure.chunked is None and not room.policy.chunked:
            raised = raised._replace(chunked=True)
            tries.append((structure._replace(chunked=True), chunks, batches))
        more = RAISED_TOKENS if room.policy.chunked else 1 << (step - 1).bit_length()
        if not chunks and room.tokens < more:
            tries.append((structure, (more,), batches))
    most = min(room.cached, room.tokens // room.rows * structure.split.dp)
    if not batches and structure.sequences is None:
        more_sequences = (2 * room.sequences, 4 * room.sequences)
        tries += [(structure, chunks, (number,)) for number in more_sequences if number <= most]
    if structure.utilization is None and room.holds < SCARCE * traffic.longest:
        tries.append((raised, chunks, batches))
    found = ((each, _sizes(each, traffic, *sizes)) for each, *sizes in tries)
    return [(each, sizes) for each, sizes in found if not isinstance(sizes, Rejection)]
