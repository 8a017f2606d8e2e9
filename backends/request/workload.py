"""`Workload`: a batch of requests, from prefill to the decode step of the last token.

Order of the file: the steps of a prefill within a token budget (`prefill_chunks`, `prefill_times`); the steps
with the most memory if no engine rule is known (`peak_bytes`); cost in dollars and energy (`CostBreakdown`);
the JSON document (`workload_document`); and `Workload`, the entry point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.models import model as default_model
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import POLICIES
from llmir.backends.memory.kv_capacity import (
    CHUNK,
    UNLIMITED,
    KvPool,
    MemoryBreakdown,
    largest_fit,
    pool_breakdown,
    step_breakdown,
)
from llmir.backends.memory.liveness import RankMemory, stage_memories
from llmir.backends.step.evaluate import used_links
from llmir.backends.step.facts import precision, weights
from llmir.backends.step.report import Report
from llmir.backends.step.sizes import step_phase
from llmir.backends.work.network import node_count
from llmir.base.arguments import MOST, check_field
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.base.formats import PageExport, Result
from llmir.base.values import Record
from llmir.hw.device import Device
from llmir.hw.engine_sections import CudaGraphs, EngineMemory, Scheduler
from llmir.hw.prices import OperatingCost, operating_cost
from llmir.ir.core.program import APART, Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import may_decrease

# Steps of a prefill

ALL = "all"  # the number of tokens of a step without a limit, as users write it


class ChunkSteps(NamedTuple):
    """Consecutive steps; each prefills `new` tokens of `prompts` prompts, after `cached` tokens.

    `cached` is an array if the steps process consecutive chunks. The whole sequence runs `times` times.
    """

    prompts: int
    new: int
    cached: Number
    times: int = 1

    @property
    def last(self) -> int:
        """Cached tokens of the last step."""
        return int(np.max(self.cached))

    @property
    def middle(self) -> int:
        """Mean number of cached tokens."""
        return int(np.mean(self.cached))

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.times * int(np.size(self.cached))


def prefill_chunks(
    prompts: int, new: int, cached: int, budget: int | None, lanes: int = 1
) -> tuple[ChunkSteps, ...]:
    """The prefill steps for `new` tokens of each prompt after `cached` ones.

    A step has `budget` tokens (None: no limit) on each of the `lanes` over which prompts are distributed. It
    contains as many whole prompts as fit. Longer prompts are prefilled one by one in chunks of the budget.
    The last chunks of these prompts are grouped. Engines instead mix a last chunk with the first chunk
    of the next prompt; the number of tokens per step does not differ.

    >>> prefill_chunks(5, 300, 0, 1000)
    (ChunkSteps(prompts=3, new=300, cached=0, times=1), ChunkSteps(prompts=2, new=300, cached=0, times=1))
    >>> [(c.prompts, c.new, c.last, c.steps) for c in prefill_chunks(2, 300, 50, 128)]
    [(1, 128, 178, 4), (2, 44, 306, 1)]
    """
    return tuple(_chunks(prompts, new, cached, budget or prompts * new, min(lanes, prompts)))


def _chunks(prompts: int, new: int, cached: int, budget: int, lanes: int) -> Iterator[ChunkSteps]:
    whole, rest = divmod(new, budget)
    if whole and new > budget:
        at = cached + budget * np.arange(whole) if whole > 1 else cached
        yield from (ChunkSteps(count, budget, at, times) for count, times in _groups(prompts, lanes))
        new, cached = rest, cached + whole * budget
    if new:
        groups = _groups(prompts, budget // new * lanes)
        yield from (ChunkSteps(count, new, cached, times) for count, times in groups)


def _groups(prompts: int, most: int) -> Iterator[tuple[int, int]]:
    """Groups of at most `most` prompts; the result lists each size of group and how often it occurs."""
    full, rest = divmod(prompts, most)
    yield from ((count, times) for count, times in ((most, full), (rest, 1)) if count * times)


def largest_chunk(steps: Sequence[ChunkSteps]) -> ChunkSteps:
    """The step with the most tokens; the last one if several are equal."""
    return max(steps, key=lambda chunk: (chunk.prompts * chunk.new, chunk.last))


class PrefillTimes(NamedTuple):
    """Seconds until the prefill of all prompts ends, until it ends for one prompt on average, and until the
    next batch may start.

    The last time is shorter if stages can start the next batch while the last step is in later stages.
    """

    time_s: float
    mean_s: float
    interval_s: float


def prefill_times(steps: Sequence[ChunkSteps], price: Callable[[ChunkSteps], Report]) -> PrefillTimes:
    """The times of consecutive steps; `price` estimates the steps of a chunk, on a grid if it has several."""
    reports = [price(chunk) for chunk in steps]
    seconds = [
        chunk.times * float(np.sum(report.interval_s)) for chunk, report in zip(steps, reports, strict=True)
    ]
    last, whole = reports[-1], sum(seconds)
    # the time of the last step in the stages after the first
    way = float(np.ravel(last.time_s - last.interval_s)[-1])
    return PrefillTimes(whole + way, _mean(steps, seconds) + way, whole)


def _mean(steps: Sequence[ChunkSteps], seconds: Sequence[float]) -> float:
    """The mean time at which the prefill of a prompt ends: with its group, or one after another if prompts
    are split into chunks.
    """
    start = int(np.min(steps[0].cached))
    if any(chunk.last != start for chunk in steps):
        turns = sum(chunk.times for chunk in steps if int(np.min(chunk.cached)) == start)
        return sum(seconds) * (turns + 1) / (2 * turns)
    at = waited = 0.0
    for chunk, long in zip(steps, seconds, strict=True):
        waited += chunk.prompts * (chunk.times * at + long * (chunk.times + 1) / 2)
        at += long
    return waited / sum(chunk.prompts * chunk.times for chunk in steps)


# Peak memory


def peak_bytes(job: Workload, sequences: int) -> int:
    """The peak memory in bytes of a rank of any stage, if each micro-batch has `sequences` sequences."""
    return int(
        max(_peak(job, memory, at, sequences) for of, at in fullest_steps(job, sequences) for memory in of)
    )


def _peak(job: Workload, memory: RankMemory, at: Binding, sequences: int) -> Number:
    """The peak of a stage in a step, plus the caches of sequences that do not take part in the step."""
    others = sequences - at.symbols["B"]
    last = job.length + max(job.generate - 2, 0)
    more = Binding(B=others, T=1, C=last)(memory.caches) if others > 0 else 0
    return memory.peak(at) + more


def fullest_steps(job: Workload, sequences: int) -> list[tuple[tuple[RankMemory, ...], Binding]]:
    """The steps in which memory may be largest, if each micro-batch has `sequences` sequences."""
    parts = job.program.micro_batches
    chunk = largest_chunk(job.chunks_of(sequences * parts))
    ends = [(step_phase(job.program, [chunk.new]), chunk.prompts // parts, chunk.new, chunk.last)]
    ends += [("decode", sequences, 1, context) for context in _contexts(job)]
    if job.images:
        ends.append(("encode", sequences * job.images, 1, 0))
    return [
        (stage_memories(job.program.phase(phase), job.cache_policy), Binding(B=count, T=new, C=context))
        for phase, count, new, context in ends
    ]


@lru_cache(maxsize=256)
def _contexts(job: Workload) -> frozenset[int]:
    """The contexts of decode steps in which memory may be largest.

    This is the last step, because caches grow; but caches of chunked attention are full just before a chunk
    ends.
    """
    if job.generate == 1:
        return frozenset()
    last = job.length + job.generate - 2
    found = {last}
    for memory in stage_memories(job.program.phase("decode"), job.cache_policy):
        if may_decrease(memory.caches):
            contexts = np.arange(max(job.length, last - CHUNK), last + 1)
            found.add(int(contexts[np.argmax(memory.peak(Binding(B=1, T=1, C=contexts)))]))
    return frozenset(found)


# Cost in dollars and energy


class CostBreakdown(NamedTuple):
    """The cost of prompt tokens in prefill (`input`), of output tokens after the first (`output`), and of
    everything (`answers`), per token.

    `answers` includes prompts: it is per output token, or per image for models with image inputs only. None
    without tokens of a kind. The estimate assumes that other batches like this one keep all pipeline stages
    busy.
    """

    input: OperatingCost | None
    output: OperatingCost | None
    answers: OperatingCost

    def to_dict(self) -> dict[str, Any]:
        """Return USD per million tokens and joules per token, by kind, as JSON-compatible values."""
        parts = {name: part for name, part in self._asdict().items() if part}
        return {
            "cost_usd_per_mtok": {name: part.usd_per_mtok for name, part in parts.items()},
            "energy_j_per_token": {name: part.joules_per_token for name, part in parts.items()},
        }


def cost_breakdown(job: Workload) -> CostBreakdown:
    """The cost of a workload, if its device has a price and a power limit."""
    reading, decoding = job.busy_s

    def of(tokens: int, seconds: float) -> OperatingCost | None:
        rate = tokens / seconds if seconds else float("inf")
        return operating_cost(job.device, job.program.devices, rate) if tokens else None

    everything = of(job.batch * job.generate, reading + decoding)
    assert everything is not None, "a workload has requests"
    if job.program.patches:
        return CostBreakdown(None, None, everything)
    read = of(job.batch * (job.length - job.cached), reading)
    return CostBreakdown(read, of(job.batch * (job.generate - 1), decoding), everything)


# JSON document


def workload_document(job: Workload, phases: Mapping[str, Report | None]) -> dict[str, Any]:
    """The report of a workload, and its steps by phase; `schema_version` 3."""
    program, model, tokens = job.program, job.prefill.plan.model, not job.program.patches
    return {
        "schema_version": 3,
        "model": {
            "name": program.name,
            "architecture": program.facts.get("architecture"),
            "layers": program.facts.get("layers"),
            "parameters": program.parameters,
            "active_parameters": program.active_parameters,
            "weight_bytes": sum(w.bytes for w in weights(program)),
            "weights": [vars(w) for w in weights(program)],
        },
        "hardware": {
            "name": job.device.name,
            "devices": program.devices,
            "cluster": model.device.node.name if model.device.node else None,
            "nodes": node_count(program, model.device),
            "links": [
                {"name": name, "bytes_per_s": link.Bps, "latency_s": link.latency_s}
                for name, link in used_links(program, model.device).items()
            ],
        },
        "precision": precision(program),
        "workload": {
            **{name: asked if tokens or name == "batch" else None for name, asked in job.asked.items()},
            "chunk_by": job.budget_by,
            **({"image_tokens": program.image_tokens} if job.images else {}),
        },
        "parallel": asdict(program.parallelism),
        "micro_batches": program.micro_batches,
        "cache_policy": job.cache_policy,
        "cost_model": job.prefill.cost_model,
        "engine": model.engine or getattr(model, "kernels", None),
        "engine_version": (model.runs.range or None) if model.runs else None,
        "fits": job.fits,
        "max_batch": job.max_batch,
        "memory": job.memory.to_dict(),
        "ttft_s": job.ttft_s if tokens else None,
        "ttft_mean_s": job.ttft_mean_s if tokens else None,
        "tpot_s": job.tpot_s,
        "e2e_s": job.e2e_s,
        "prefill_tokens_per_s": job.prefill_tokens_per_s if job.e2e_s and tokens else None,
        "output_tokens_per_s": job.output_tokens_per_s if job.e2e_s and tokens else None,
        "busy_output_tokens_per_s": job.busy_output_tokens_per_s if job.e2e_s and tokens else None,
        **cost_breakdown(job).to_dict(),
        "serving": None,
        "notes": list(job.notes),
        "phases": {name: step and step.to_dict() for name, step in phases.items()},
    }


# Workload

LONGEST = 10_000_000  # tokens: more than any model's context
REQUESTS = 1_000_000_000  # requests: more than any server runs, and cache bytes remain exact integers
_STEPS = 1 << 20  # number of decode steps that are evaluated at once
PLAIN = 0.9  # the usable share of memory without a rule of an engine


def _between(least: float, most: float, *, default: Any = MISSING, **more: Any) -> Any:
    return field(default=default, metadata={"least": least, "most": most, **more})


@dataclass(frozen=True, eq=False)
class Workload(Record, Result, PageExport):
    """`batch` requests together, each with `prompt` input tokens (plus image tokens) and `generate` output
    tokens.

    The first `cached` tokens of each prompt are in the prefix cache. Prefill processes the other tokens in
    steps of `chunk` tokens on each data-parallel rank, and yields token 1. `prefill` is the largest of its
    steps, and the last of equal ones. The default chunk is the `budget` of the engine. Without an engine, or
    with `chunk` "all", one step processes all prompts. Decode step i = 1 … generate−1 has length + i − 1
    tokens cached; `decode` is the last one, or None with a single output token.

    The engine's rule sets the usable memory (`memory/kv_capacity.py`). Without an engine it is the share
    `memory_utilization` of the device, by default 0.9. `reserve_bytes` are subtracted. `cache_policy` is the
    rule of cache allocation: `exact` bytes, `paged` or `unified` (`memory/caches.py`). `max_model_len` is the
    length of the longest request in the memory calculation, by default prompt plus output. `max_num_seqs` and
    `max_batched_tokens` (by default `chunk`) limit a step of the engine. Without `chunked_prefill`, prompts
    are limited to the tokens of a step; None estimates longer prompts in chunks.

    A model with image inputs only has one step, `encode`, for `batch` images; `prefill` is this step too.
    """

    program: Program
    device: Device
    batch: int = _between(1, REQUESTS)
    prompt: int = _between(1, LONGEST)
    generate: int = _between(1, LONGEST)
    memory_utilization: float | None = _between(0, 1, above=True, default=None)
    reserve_bytes: int = _between(0, MOST, default=0)
    model: DeviceCostModel | None = None
    cache_policy: str = field(default="exact", metadata={"choices": tuple(POLICIES)})
    max_model_len: int | None = _between(1, LONGEST, default=None)
    max_num_seqs: int | None = _between(1, UNLIMITED, default=None)
    max_batched_tokens: int | None = _between(1, LONGEST, default=None)
    chunk: int | str | None = _between(1, UNLIMITED, default=None, words=(ALL,))
    cached: int = _between(0, LONGEST, default=0)
    chunked_prefill: bool | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            many = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
            if f.metadata and many:
                why = "a workload takes one number, got an array; use analyze for grids"
                raise InputError(f"{f.name}: {why}")
            vars(self)[f.name] = check_field(f.name, value, f.type, f.metadata, InputError)
        if (due := self.program.facts.get("prompt", self.length)) != self.length:
            images = f", with {self.program.image_tokens:,} of images" if self.program.image_tokens else ""
            got = f"got {self.prompt:,}{images}"
            raise InputError(
                f"prompt: layers of {self.program.name} process fewer tokens than a prompt of "
                f"{due:,} tokens has; {got}"
            )
        self._readable()
        longest = self.length + self.generate
        if self.max_model_len is not None and self.max_model_len < longest:
            asked = f"prompt and answer have {longest:,} tokens"
            raise InputError(f"max_model_len: {self.max_model_len:,}, and {asked}")
        limits = {"max_num_seqs": self.max_num_seqs, "max_batched_tokens": self.max_batched_tokens}
        if (most := self.max_batched_tokens) and self.chunk:
            if self.chunk == ALL:
                raise InputError(f"chunk: all, and max_batched_tokens, {most:,}, limits it; leave one out")
            if int(self.chunk) > most:
                asked = f"more than the {most:,} of max_batched_tokens"
                raise InputError(f"chunk: {self.chunk:,} tokens of a step are {asked}")
        if self.pool is None and (name := next((n for n, v in limits.items() if v), None)):
            raise InputError(f"{name}: requires an engine whose memory use is known")
        if self.chunked_prefill is False and self.is_longer_than_step:
            asked = f"{self.length - self.cached:,} tokens to read, and a step has {self.budget:,}"
            raise InputError(f"prompt: {asked}; set chunked_prefill or max_batched_tokens")
        if self.capacity_bytes <= 0:
            usable = f"{self.capacity_bytes + self.reserve_bytes:,.0f} bytes usable"
            nothing = f"leaves nothing of the {usable} on {self.device.name}"
            raise InputError(f"reserve: {self.reserve_bytes:,} bytes {nothing}")

    def _readable(self) -> None:
        """Raise InputError if the cached prefix covers the whole prompt, or for chunks of inputs that cannot
        be split.
        """
        if self.cached >= self.length:
            most = f"expected fewer than the {self.length:,} tokens of a prompt, the last of which is read"
            raise InputError(f"cached: {most}; got {self.cached:,}")
        why = "are images" if self.program.patches else "have images" if self.program.image_tokens else ""
        why = f"are seen by layers in part, {self.length:,} tokens at once" if self._whole else why
        for name, value in (("chunk", self.chunk), ("cached", self.cached or None)):
            if why and isinstance(value, int):
                raise InputError(f"{name}: {value:,} cannot act, prompts of {self.program.name} {why}")

    @property
    def _whole(self) -> bool:
        """Whether some layers process only a part of the tokens of a prompt."""
        return isinstance(self.program.facts.get("prompt"), int)

    def _step(self, new: Any, context: Any, batch: int | None = None) -> Report:
        at: dict[str, Any] = {"batch": batch or self.batch, "new": new, "context": context}
        return Report(self.program, self.device, **at, model=self.model, cache_policy=self.cache_policy)

    @property
    def length(self) -> int:
        """Tokens of a prompt, image tokens included."""
        return self.prompt + self.program.image_tokens

    @property
    def images(self) -> int:
        """The smallest number of images in the prompt: one image of n × n patches gives at most n · (n + 1)
        tokens.

        This number consists of the rows of the image, with one token after each row. The crops of a large
        image count as separate images.
        """
        if not self.program.image_tokens:
            return 0
        patches = self.program.phases["encode"].patches
        return -(-self.program.image_tokens // (patches + math.isqrt(patches)))

    @cached_property
    def encode(self) -> Report | None:
        """The step that encodes the images of all prompts, before prefill; None without images."""
        if self.program.patches:
            return self._step(1, 0)
        if not self.images:
            return None
        at: dict[str, Any] = {"batch": self.batch * self.images, "new": 1, "context": 0, "phase": "encode"}
        return Report(self.program, self.device, **at, model=self.model, cache_policy=self.cache_policy)

    @cached_property
    def budget(self) -> int | None:
        """Tokens of a prefill step on each data-parallel rank; None for no limit."""
        if isinstance(self.chunk, int):
            return self.chunk
        if self.chunk or not self.pool or self._whole or self.program.image_tokens:
            return None
        return self.pool.tokens

    @property
    def is_longer_than_step(self) -> bool:
        """Whether a prompt has more tokens than a prefill step."""
        return self.budget is not None and self.length - self.cached > self.budget

    @property
    def reads_chunks(self) -> bool:
        """Whether the engine splits prompts into chunks: as stated, else as by default."""
        engine = (self.model or default_model(self.device)).runs
        scheduler = engine.section(Scheduler) if engine else None
        return (
            (scheduler.chunked if scheduler else True)
            if self.chunked_prefill is None
            else self.chunked_prefill
        )

    @property
    def budget_by(self) -> str | None:
        """The engine whose budget is used; None if you set the budget or there is no limit."""
        stated = self.chunk or self.max_batched_tokens
        return None if stated or self.budget is None else self.memory.engine

    @property
    def asked(self) -> Mapping[str, Any]:
        """The sizes of the requests, by the names of the options."""
        sizes = {"batch": self.batch, "prompt": self.prompt, "generate": self.generate}
        return MappingProxyType(sizes | {"chunk": self.budget, "cached": self.cached})

    @property
    def _lanes(self) -> int:
        """The number of data-parallel ranks times micro-batches, over which prompts are distributed."""
        return self.program.parallelism.dp * self.program.micro_batches

    @cached_property
    def chunks(self) -> tuple[ChunkSteps, ...]:
        """The prefill steps."""
        return self.chunks_of(self.batch)

    def chunks_of(self, batch: int) -> tuple[ChunkSteps, ...]:
        """The prefill steps of another batch."""
        return prefill_chunks(batch, self.length - self.cached, self.cached, self.budget, self._lanes)

    @cached_property
    def prefill(self) -> Report:
        """The largest prefill step, and the last of equal ones."""
        if self.encode and self.program.patches:
            return self.encode
        most = largest_chunk(self.chunks)
        return self._step(most.new, most.last, most.prompts)

    def prefill_as(self, step: Report) -> Report:
        """A prefill step with the sizes of another step."""
        same = step.batch == self.prefill.batch and step.new == self.prefill.new
        return self.prefill if same else self._step(step.new, step.context, int(step.batch))

    def _read(self, chunk: ChunkSteps) -> Report:
        """The steps of a chunk; one of them may be the step in `prefill`."""
        alone = chunk is largest_chunk(self.chunks) and not np.ndim(chunk.cached)
        return self.prefill if alone else self._step(chunk.new, chunk.cached, chunk.prompts)

    @cached_property
    def _reading(self) -> PrefillTimes:
        """The times to prefill all prompts."""
        return prefill_times(self.chunks, self._read)

    @cached_property
    def decode(self) -> Report | None:
        """The last decode step, the longest."""
        return self._step(1, self.length + self.generate - 2) if self.generate > 1 else None

    @cached_property
    def draft(self) -> Report | None:
        """A step of the multi-token prediction layer at the last decode position; None without one.

        How many of its tokens are accepted depends on the text, so no other result includes it.
        """
        if "draft" not in self.program.phases or self.generate == 1:
            return None
        at: dict[str, Any] = {"batch": self.batch, "new": 1, "context": self.length + self.generate - 2}
        how: dict[str, Any] = {"model": self.model, "cache_policy": self.cache_policy, "phase": "draft"}
        return Report(self.program, self.device, **at, **how)

    @property
    def steps(self) -> Mapping[str, Report]:
        """The steps by phase; for decode, the last one."""
        own = (
            {}
            if self.program.patches
            else {"prefill": self.prefill, "decode": self.decode, "draft": self.draft}
        )
        return MappingProxyType({name: step for name, step in {"encode": self.encode, **own}.items() if step})

    @property
    def _images(self) -> Report | None:
        """The step that encodes images before prefill; None if it is `prefill`, or without images."""
        return None if self.program.patches else self.encode

    @property
    def ttft_s(self) -> float:
        """Time until all requests have their first token: encoding of images plus prefill."""
        return self._reading.time_s + self._encoding_s

    @property
    def ttft_mean_s(self) -> float:
        """Mean TTFT; the first prompts do not wait for the others."""
        return self._reading.mean_s + self._encoding_s

    @property
    def _encoding_s(self) -> float:
        return float(self._images.time_s) if self._images else 0.0

    @cached_property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        if self.generate == 1:
            return None
        return self._decoding[0] / (self.generate - 1)

    @cached_property
    def _decoding(self) -> tuple[float, float]:
        """Sums over all decode steps: seconds until the next step, and until the next step when all stages
        are busy.
        """
        period = interval = 0.0
        steps = range(self.length, self.length + self.generate - 1)
        for i in range(0, len(steps), _STEPS):
            part = steps[i : i + _STEPS]
            step = self._step(1, np.arange(part.start, part.stop))
            period += float(np.sum(step.period_s))
            interval += float(np.sum(step.interval_s))
        return period, interval

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return self.ttft_s + (self.generate - 1) * (self.tpot_s or 0.0)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second during prefill, over all requests."""
        return self.batch * (self.length - self.cached) / self.ttft_s if self.ttft_s else float("inf")

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second, over all requests and the whole time."""
        return self.batch * self.generate / self.e2e_s if self.e2e_s else float("inf")

    @cached_property
    def busy_s(self) -> tuple[float, float]:
        """Seconds of prefill and of decode while other batches keep all pipeline stages busy."""
        images = float(self._images.interval_s) if self._images else 0.0
        return images + self._reading.interval_s, self._decoding[1]

    @property
    def busy_output_tokens_per_s(self) -> float:
        """Output tokens per second while other batches keep all pipeline stages busy."""
        stage = sum(self.busy_s)
        return self.batch * self.generate / stage if stage else float("inf")

    @cached_property
    def pool(self) -> KvPool | None:
        """The engine's cache memory; None without an engine, or if the program is no whole language model."""
        return self._pool(self.batch)

    def _pool(self, batch: int) -> KvPool | None:
        """The cache memory with the token budget, or with a prefill step of all prompts of this batch."""
        engine = (self.model or default_model(self.device)).runs if self.program.is_model else None
        rule = engine.section(EngineMemory) if engine else None
        if not rule:
            return None
        stated = self.chunk if isinstance(self.chunk, int) else None
        limits = self.max_model_len, self.max_num_seqs, self.max_batched_tokens or stated
        of = self.length + self.generate - 1, self.memory_utilization, self.reserve_bytes
        graphs = engine.section(CudaGraphs) if engine else None
        how = self.images, graphs, self.generate - 1
        pool = KvPool(self.program, self.device, rule, *of, *limits, self.cache_policy, *how)
        if self.chunk != ALL:
            return pool
        tokens = -(-batch // self._lanes) * (self.length - self.cached)
        return replace(pool, max_batched_tokens=max(tokens, pool.tokens))

    @property
    def share(self) -> float:
        """The usable share of the device memory: as set, or by the engine's rule."""
        return self.pool.share if self.pool else self.memory_utilization or PLAIN

    @cached_property
    def capacity_bytes(self) -> float:
        """The usable memory, on the stage with the fewest cache blocks."""
        if self.pool:
            return self.pool.rooms()[self.pool.tightest].usable
        return self.device.capacity_bytes * self.share - self.reserve_bytes

    def peak_bytes(self, batch: int) -> int:
        """The peak memory of any stage with another batch; with an engine, its fixed memory plus caches."""
        sequences = batch // self.program.micro_batches
        if pool := self._pool(batch) if self.chunk == ALL else self.pool:
            return math.ceil(self.capacity_bytes + pool.short(sequences))
        return peak_bytes(self, sequences)

    @property
    def fits(self) -> bool:
        """Whether all requests fit in `capacity_bytes` at once."""
        return self.batch <= self._at_once and self.peak_bytes(self.batch) <= self.capacity_bytes

    @property
    def _at_once(self) -> int:
        """The largest number of requests that the engine runs at once, if it is set."""
        return self.pool.at_once if self.pool else UNLIMITED

    @cached_property
    def max_batch(self) -> int:
        """The largest batch that fits, with equal numbers of sequences in each micro-batch.

        0 if no batch fits, and at most 2⁴⁰ (if the batch needs no memory).
        """
        parts = self.program.micro_batches
        found = largest_fit(lambda sequences: self.peak_bytes(sequences * parts) <= self.capacity_bytes)
        return min(found if found >= UNLIMITED else found * parts, self._at_once // parts * parts)

    @cached_property
    def memory(self) -> MemoryBreakdown:
        """The memory of one rank of the stage that is full first, term by term."""
        if self.pool:
            return pool_breakdown(self.pool, str((self.model or default_model(self.device)).runs))
        ends = fullest_steps(self, self.batch // self.program.micro_batches)
        stages = []
        for of in zip(*(found for found, _ in ends), strict=True):
            most_held = max(memory.transient(at) for memory, (_, at) in zip(of, ends, strict=True))
            stages.append((Binding()(of[0].weights), most_held))
        about = self.program, self.device, self.share, self.reserve_bytes, self.capacity_bytes
        return step_breakdown(*about, stages, self.max_batch, self.length + self.generate - 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the steps, and a note on requests longer than the model's positions."""
        positions = self.program.facts.get("positions")
        notes = list(self.prefill.notes)
        if self.chunked_prefill is None and self.is_longer_than_step and not self.reads_chunks:
            engine, least = self.memory.engine, f"{self.length - self.cached:,}"
            refusal = f"{engine} refuses prompts of more than {self.budget:,} tokens by default"
            notes.append(f"{refusal}; this estimate needs chunked prefill or max_batched_tokens of {least}")
        runs = self.prefill.plan.model.runs
        graphs = runs.section(CudaGraphs) if runs else None
        parallelism = self.program.parallelism
        together = -(-self.batch // parallelism.dp)
        if graphs and 0 < (most := graphs.unstated(self.device, parallelism.tp)) < together:
            default = f"graphs of up to {most} sequences by default"
            notes.append(f"{runs} captures {default}; this estimate captures the batch of {together:,}")
        largest = graphs.on(self.device, parallelism.tp).decodes if graphs and not graphs.default else 0
        if graphs and 0 < largest < together and self.generate > 1:
            eager = f"{runs} launches each kernel of a step with more than {largest:,.0f} sequences"
            notes.append(f"{eager}; its graphs hold no more ({graphs.source})")
        length = self.length + self.generate - 1
        if isinstance(positions, int) and length > positions:
            images = f" + image tokens {self.program.image_tokens}" if self.images else ""
            asked = f"prompt {self.prompt}{images} + generate {self.generate}"
            notes.append(f"{asked} exceeds the model's {positions} positions")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, `schema_version` 3; phases for images are present only if the model has them."""
        apart = {name: step for name, step in self.steps.items() if name in APART}
        return workload_document(
            self, {**apart, **{name: self.steps.get(name) for name in ("prefill", "decode")}}
        )

    def __repr__(self) -> str:
        asked = f"batch {self.batch}, prompt {self.prompt}, generate {self.generate}"
        return f"<Workload {self.program.name} on {self.device.name}: {asked}>"
