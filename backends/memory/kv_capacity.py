"""KV-cache capacity: the memory that an engine leaves for caches, and the tokens and requests that fit.

`KvPool` applies the memory rule of an engine (`_RULES`, named in the engine's file) to a program on a device:
usable bytes minus weights, activations, workspaces and other terms of a rank are its `KvBudget`.
`token_capacity` and `largest_fit` convert the rest into tokens and requests. `MemoryBreakdown` lists the
terms as an engine's log does: `pool_breakdown` with the rule of an engine, `step_breakdown` without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import Figures, Record
from llmir.hw import engine
from llmir.hw.device import Device
from llmir.hw.engine_sections import CacheRule, CudaGraphs, EngineMemory, StepBudget
from llmir.ir.core.program import Instance, Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, may_decrease

from .caches import CacheGroup, StageCaches, pages, pages_needed, policy, stage_caches
from .liveness import cache_states, reserved_bytes, stage_memories

# Memory for caches

FP32 = 4  # bytes
CHUNK = 1 << 16  # tokens: longer than the chunk of any model (Llama 4's has 8,192)
UNLIMITED = 1 << 40  # number of sequences or tokens, if one needs no memory


class PeakPoint(NamedTuple):
    """The moment of a step with the peak memory: `what` runs, with `n` tokens, sequences or images."""

    what: str
    n: int
    of: str

    def __str__(self) -> str:
        """`forward pass of 8,192 tokens`."""
        return f"{self.what} of {self.n:,} {self.of}"


FORWARD, SAMPLER, ENCODER = "forward pass", "sampler", "encoder"


class KvBudget(NamedTuple):
    """The memory of one rank of a stage, in bytes: `held` of the `usable` bytes are in use, and the rest is
    for caches.

    `fullest` is the point of a step with the peak of activations.
    """

    usable: float
    held: float
    weights: float
    activations: float
    overhead: float
    fullest: PeakPoint

    @property
    def caches(self) -> float:
        """Bytes for caches; negative if all other memory exceeds the usable bytes."""
        return self.usable - self.held


Used = tuple[float, float]  # usable bytes, and used ones


def _physical(physical: float, share: float, weights: float, activations: float, overhead: float) -> Used:
    return share * physical, weights + activations + overhead


def _static(physical: float, share: float, weights: float, activations: float, overhead: float) -> Used:
    """Activations use the memory outside of the share; the part that does not fit there counts with the
    weights.
    """
    free = physical - overhead
    return share * free, weights + max(0.0, activations - (1 - share) * free)


def _free(physical: float, share: float, weights: float, activations: float, overhead: float) -> Used:
    held = weights + activations + overhead
    return min(physical, held + share * (physical - held)), held


# The usable share of the physical bytes, and the use by weights, activations and overhead.
_RULES: dict[str, Callable[[float, float, float, float, float], Used]] = {
    "physical": _physical,
    "static": _static,
    "free": _free,
}


@dataclass(frozen=True, eq=False)
class KvPool(Record):
    """The memory rule of an engine applied to a program on a device, for requests of `length` tokens.

    Values that are not set follow the rule: concurrent sequences and tokens of a step, both per data-parallel
    rank, and the usable share. A request has at most `max_model_len` tokens (default: `length`). `answer` of
    them are generated and written to the cache. `reserve_bytes` stay free, and each request contains `images`
    images. `graphs` are the engine's captured graphs.
    """

    program: Program
    device: Device
    rule: EngineMemory
    length: int
    utilization: float | None = None
    reserve_bytes: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    cache_policy: str = "exact"
    images: int = 0
    graphs: CudaGraphs | None = None
    answer: int = 0

    @property
    def _budget(self) -> StepBudget:
        return engine.first_match(self.rule.budgets, self.device, self.program.parallelism.tp)

    @property
    def whole(self) -> bool:
        """Whether the engine can run requests with more tokens than the budget of a step."""
        return self._budget.whole and not self.max_batched_tokens

    @cached_property
    def tokens(self) -> int:
        """Tokens of a step."""
        usual = max(self._budget.tokens, self.longest) if self._budget.whole else self._budget.tokens
        return self.max_batched_tokens or usual

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.max_model_len or self.length

    @cached_property
    def sequences(self) -> int:
        """Sequences at once, at most the number of tokens of a step."""
        stated = self.max_num_seqs
        if stated and stated > self.tokens:
            asked = f"{self.tokens:,} tokens of a step are fewer than {stated:,} sequences"
            raise InputError(f"max_num_seqs: {asked}, each of which decodes one")
        return stated or min(self._budget.sequences, self.tokens)

    @cached_property
    def share(self) -> float:
        """The usable share."""
        if (aside := self.aside) is None:
            return self.utilization or self.rule.utilization or 1.0
        if aside >= self.device.capacity_bytes:
            asked = f"{self.tokens:,} tokens of a step"
            raise InputError(f"max_batched_tokens: {asked} need all memory of {self.device.name}")
        return 1 - aside / self.device.capacity_bytes

    @cached_property
    def aside(self) -> float | None:
        """Bytes that stay free if no share is set; None if a share is set, or if the rule has no such
        bytes.
        """
        if self.utilization is not None or not self.rule.aside:
            return None
        tp, pp = self.program.parallelism.tp, self.program.parallelism.pp
        captured = self.graphs.on(self.device, tp).decodes if self.graphs else 0
        return engine.first_match(self.rule.aside, self.device, tp).whole(self.tokens, captured, tp * pp)

    def rooms(self, sequences: int | None = None) -> tuple[KvBudget, ...]:
        """The budget of each stage, with memory to sample `sequences` sequences at the same time."""
        return _rooms(self, sequences or self.sequences)

    @cached_property
    def _tokens(self) -> tuple[int, ...]:
        """Tokens in the caches of each stage."""
        rooms = tuple(room.caches for room in self.rooms())
        found = token_capacity(self.program, rooms, self.rule.block)
        logs = (caches.log_tokens(room) for caches, room in zip(self.caches, rooms, strict=True))
        pairs = zip(found, logs, strict=True)
        return tuple(n if log is None else log * self.program.parallelism.dp for n, log in pairs)

    @cached_property
    def tightest(self) -> int:
        """The stage whose caches are full first."""
        return self._tokens.index(min(self._tokens))

    @property
    def kv_tokens(self) -> int | None:
        """Tokens in the caches of all ranks, in whole blocks; None if caches take no memory."""
        return None if min(self._tokens) >= UNLIMITED else min(self._tokens)

    @cached_property
    def caches(self) -> tuple[StageCaches, ...]:
        """The pools of pages of each stage."""
        rule = self.rule.caches.of(self.program.facts.get("architecture"))
        return _stage_caches(self.program, self.rule.block, rule)

    @property
    def in_flight(self) -> int:
        """The largest number of tokens of a rank that are scheduled and not yet computed."""
        return self.caches[0].rule.steps * self.tokens

    @cached_property
    def pages(self) -> PagePool:
        """The pool of pages that the longest requests fill first."""
        found = []
        for room, caches in zip(self.rooms(), self.caches, strict=True):
            for pool, share in zip(caches.pools, caches.shares(self.longest), strict=True):
                if pool.bytes:
                    total = max(0, int(room.caches * share / pool.bytes))
                    one = pool.needed(1, self._prompt(self.longest), self.longest, 0) / pool.bytes
                    paged = PagePool(total, pool.groups, pool.state)
                    # mypy infers no type for the default of a lambda.
                    most = largest_fit(lambda n, p=paged: self.pages_of(p, n) <= p.total)  # type: ignore[misc]
                    found.append((most, total / one, paged))
        return min(found, key=lambda each: each[:2])[2] if found else PagePool(UNLIMITED, (), 0)

    def pages_of(self, pool: PagePool, sequences: int) -> int:
        """The pages of a rank for `sequences` of the longest requests."""
        of = sequences, self._prompt(self.longest), self.longest, self.in_flight
        return int(pages_needed(pool.groups, pool.state, *of))

    @property
    def max_concurrency(self) -> float:
        """The number of the longest requests of a rank, as vLLM logs it: all tokens of each request are in
        flight.
        """
        pool = self.pages
        each = int(pages(pool.groups, self.longest, max(1, self.in_flight))) + pool.state
        return pool.total / each if each else float(UNLIMITED)

    def _prompt(self, length: Number) -> Number:
        """The prompt tokens of a request with `length` tokens."""
        return length - self.answer

    def held(self, sequences: int, length: int) -> tuple[float, ...]:
        """Cache bytes of a rank of each stage, if each micro-batch has `sequences` requests.

        With these bytes all requests reach `length` without preemption.
        """
        if self.cache_policy == "exact":
            return tuple(map(float, self.needed(sequences, length)))
        sizes = reserved_bytes(self.program.phase("decode"), policy(self.cache_policy, self.rule.block))
        return tuple(peak_cache_bytes(size, sequences, length - 1) for size in sizes)

    def needed(self, sequences: Number, length: Number, prompt: Number = None) -> tuple[Number, ...]:
        """`held` for numbers, arrays or symbols, by the rule of the engine."""
        xp = namespace(sequences, length)
        each = xp.ceildiv(sequences, self.program.parallelism.dp) * self.program.micro_batches
        read = self._prompt(length) if prompt is None else prompt
        longest = xp.maximum(length, self.longest) if self.max_model_len else length
        of = each, read, length, longest, self.in_flight
        return tuple(caches.needed(*of, xp=xp) for caches in self.caches)

    def short(self, sequences: int) -> float:
        """The number of bytes that are missing for `sequences` requests on the fullest stage; negative if
        they fit.
        """
        each = -(-sequences * self.program.micro_batches // self.program.parallelism.dp)
        rooms = self.rooms(self.max_num_seqs or max(self.sequences, each))
        held = self.held(sequences, self.length)
        return max(taken - room.caches for taken, room in zip(held, rooms, strict=True))

    @cached_property
    def max_requests(self) -> int:
        """The number of the longest requests that fit in the caches of all ranks."""
        caches = [room.caches for room in self.rooms()]

        def fits(sequences: int) -> bool:
            return all(h <= c for h, c in zip(self.held(sequences, self.longest), caches, strict=True))

        return min(UNLIMITED, largest_fit(fits) * self.program.micro_batches)

    @property
    def at_once(self) -> int:
        """The largest number of concurrent sequences on all data-parallel ranks, if it is set; otherwise
        unlimited.
        """
        return UNLIMITED if self.max_num_seqs is None else self.max_num_seqs * self.program.parallelism.dp


class PagePool(NamedTuple):
    """The pages of a rank, and the blocks of groups and states that take them."""

    total: int
    groups: tuple[CacheGroup, ...]
    state: int


@lru_cache(maxsize=4096)
def _stage_caches(program: Program, block: int, rule: CacheRule) -> tuple[StageCaches, ...]:
    parts, decode = program.micro_batches, program.phase("decode")
    return tuple(stage_caches(states, block, rule, parts) for states in cache_states(decode))


def token_capacity(program: Program, caches: tuple[float, ...], block: int) -> tuple[int, ...]:
    """The tokens that fit in `caches` bytes of each stage, in whole blocks and on all data-parallel ranks.

    All layers retain all tokens, as engines count, including windows.
    """
    parallel, parts = program.parallelism.dp, program.micro_batches
    sizes = reserved_bytes(program.phase("decode"), policy("unified", block))

    def blocks(size: Size, bytes: float) -> int:
        def fits(n: int) -> bool:
            return float(Binding(B=parallel, T=1, C=block * n - 1)(size)) / parts <= bytes

        # If all layers retain all tokens, blocks take equal memory.
        one = float(Binding(B=parallel, T=1, C=block - 1)(size)) / parts
        near = int(bytes / one) if 0 < one <= bytes else 0
        return near if 0 < near < UNLIMITED and fits(near) and not fits(near + 1) else largest_fit(fits)

    found = (block * blocks(size, room) for size, room in zip(sizes, caches, strict=True))
    return tuple(min(UNLIMITED, n * parallel) for n in found)


def keeps_every_token(program: Program, length: int) -> bool:
    """Whether each token of a request takes the same memory: no window is exceeded, and there are no
    states.
    """
    one, all_of_them = (Binding(B=1, T=1, C=n - 1) for n in (1, length))
    sizes = reserved_bytes(program.phase("decode"), policy("exact"))
    return all(length * float(one(size)) == float(all_of_them(size)) for size in sizes)


def peak_cache_bytes(size: Size, sequences: int, last: int) -> float:
    """The largest cache bytes up to a last context; caches of chunked layers are full before a chunk ends."""
    contexts = np.arange(max(0, last - CHUNK), last + 1) if may_decrease(size) else last
    return float(np.max(Binding(B=sequences, T=1, C=contexts)(size)))


def largest_fit(fits: Callable[[int], bool]) -> int:
    """The largest number for which the condition holds, up to 2⁴⁰; 0 if it does not hold for 1. It must hold
    for all smaller numbers, too.
    """
    low, high = 0, 1
    while high < UNLIMITED and fits(high):
        low, high = high, 2 * high
    if high >= UNLIMITED:
        return UNLIMITED
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _rooms(pool: KvPool, sequences: int) -> tuple[KvBudget, ...]:
    rule, program, device = pool.rule, pool.program, pool.device
    overhead = rule.outside_bytes(program.parallelism.tp) + rule.graph_bytes
    found = []
    for stage, memory in enumerate(stage_memories(program.phase("prefill"))):
        weights = float(Binding()(memory.weights))
        fullest, activations = max(_steps(pool, stage, sequences).items(), key=lambda step: step[1])
        terms = weights, activations, overhead
        usable, held = _RULES[rule.rule](float(device.capacity_bytes), pool.share, *terms)
        found.append(KvBudget(usable - pool.reserve_bytes, held, *terms, fullest))
    return tuple(found)


def _steps(pool: KvPool, stage: int, sequences: int) -> dict[PeakPoint, float]:
    """The memory of a rank of a stage, except weights and caches, at the peak moments of a step, in bytes.

    Later stages have separate buffers for received hidden states and residuals.
    """
    rule, program = pool.rule, pool.program.phase("prefill")
    tokens = int(program.facts.get("prompt") or max(pool.tokens, program.image_tokens + 1))
    at, head = Binding(B=program.parallelism.dp, T=tokens, C=0), _head(program)
    hidden = tokens * head.hidden * head.hidden_bytes
    kept = rule.kept_bytes + 2 * hidden * (stage > 0)
    forward = float(stage_memories(program)[stage].transient(at)) + rule.states * hidden
    found = {PeakPoint(FORWARD, tokens, "tokens"): forward + kept}
    if stage == len(program.entries) - 1:
        copies = sequences * (head.logit_bytes + FP32 * rule.sampler)
        rows = min(sequences, pool.device.multiprocessors or 0) * FP32 * rule.vocabularies
        sampled = (
            2 * sequences * head.hidden * head.hidden_bytes
        )  # tokens that are selected, and tokens that lm_head processes
        work = rule.experts * _workspace(program, stage, at)
        made = (copies + rows) * head.vocabulary + hidden + sampled + work
        found[PeakPoint(SAMPLER, sequences, "sequences")] = made + kept
    if pool.images and not stage:
        encoder = stage_memories(program.phases["encode"])[0]
        at = Binding(B=pool.images, T=1, C=0)
        found[PeakPoint(ENCODER, pool.images, "images")] = float(encoder.transient(at)) + kept
    return found


class LogitsHead(NamedTuple):
    """The product of the logits: hidden values and entries of the vocabulary, and bytes of one of each."""

    hidden: int
    vocabulary: int
    hidden_bytes: float
    logit_bytes: float


@lru_cache(maxsize=256)
def _head(program: Program) -> LogitsHead:
    """The last product; zeros if there is none."""
    graph = program[program.entries[-1]]
    product = next((node for node in reversed(graph.nodes) if node.op.matrices), None)
    if product is None:
        return LogitsHead(0, 0, 0.0, 0.0)
    x, logits = graph.operand_types(product)[0], product.results[0]
    hidden, vocabulary = (int(Binding()(t.shape[-1])) for t in (x, logits))
    return LogitsHead(hidden, vocabulary, x.dtype.bits / 8, logits.dtype.bits / 8)


@lru_cache(maxsize=256)
def _experts(program: Program, stage: int) -> tuple[tuple[Size, Size, Size], ...]:
    """For the experts of each layer: bytes of the last matrix's input and output, and of gate and up."""
    layers: dict[str, list[Instance]] = {}
    for at in program.instances():
        if at.stage == stage and at.node.op.active < 1:
            layers.setdefault(at.path.rpartition(".")[0], []).append(at)

    def size(types: Iterable[Tensor]) -> Size:
        return sum((t.local(program.mesh).bytes for t in types), start=0)

    found: dict[tuple[Size, Size, Size], None] = {}
    for *first, last in layers.values():
        x, y = last.graph.operand_types(last.node)[:1], last.node.results
        found[size(x), size(y), size(t for at in first for t in at.node.results)] = None
    return tuple(found)


def _workspace(program: Program, stage: int, at: Binding) -> float:
    """The bytes of the two buffers of experts, which stay in memory after the layer.

    One stores gate and up, then the output of the last matrix. The other stores the values between, and has
    at least the size of hidden values (`TritonExperts.workspace_shapes` of vLLM).
    """
    sizes = (tuple(map(at, of)) for of in _experts(program, stage))
    return float(max((max(x, y) + max(wide, y) for x, y, wide in sizes), default=0))


# Terms of memory


@dataclass(frozen=True)
class MemoryBreakdown(Figures, Result):
    """Bytes of one rank of the stage whose caches are full first, and the capacity of the caches of all
    ranks.

    A rule computes `usable_bytes` from `physical_bytes`; `kv_bytes` is what all other terms leave of it, at
    least 0. They store `kv_tokens` tokens in whole blocks, None if tokens take none, and `max_requests`
    requests of `request_tokens` at once; `keeps_all` means that caches retain all tokens. `max_concurrency`
    is the value in vLLM's log, None without an engine. `overhead_bytes` include `graph_bytes` for CUDA
    graphs. Without an engine, activations are those of one prefill step with all requests.
    """

    model: str
    device: str
    engine: str | None
    rule: str | None
    share: float
    reserve_bytes: int
    nominal_bytes: int
    physical_bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    graph_bytes: int
    kv_bytes: int
    kv_tokens: int | None
    max_requests: int
    request_tokens: int
    max_concurrency: float | None
    keeps_all: bool
    fullest: str
    block: int
    max_num_seqs: int | None
    max_batched_tokens: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON-compatible values."""
        return {name: value for name, value in vars(self).items() if name not in ("model", "device")}


def pool_breakdown(pool: KvPool, engine: str) -> MemoryBreakdown:
    """The memory of a program with the rule of an engine."""
    room, rule = pool.rooms()[pool.tightest], pool.rule
    return MemoryBreakdown(
        model=pool.program.title,
        device=pool.device.name,
        engine=engine,
        rule=rule.rule,
        share=pool.share,
        reserve_bytes=pool.reserve_bytes,
        nominal_bytes=pool.device.memory_bytes,
        physical_bytes=pool.device.capacity_bytes,
        usable_bytes=round(room.usable),
        weight_bytes=round(room.weights),
        activation_bytes=round(room.activations),
        overhead_bytes=round(room.overhead),
        graph_bytes=round(rule.graph_bytes),
        kv_bytes=max(0, round(room.caches)),
        kv_tokens=pool.kv_tokens,
        max_requests=pool.max_requests,
        request_tokens=pool.longest,
        max_concurrency=pool.max_concurrency,
        keeps_all=keeps_every_token(pool.program, pool.longest),
        fullest=str(room.fullest),
        block=rule.block,
        max_num_seqs=pool.sequences,
        max_batched_tokens=pool.tokens,
    )


def step_breakdown(
    program: Program,
    device: Device,
    share: float,
    reserve_bytes: int,
    usable: float,
    stages: Sequence[tuple[Any, Any]],
    max_requests: int,
    length: int,
) -> MemoryBreakdown:
    """The memory without an engine's rule: the weights and activations of each stage, and the rest."""
    caches = tuple(usable - weights - activations for weights, activations in stages)
    tokens = token_capacity(program, caches, 1)
    tightest = tokens.index(min(tokens))
    weights, activations = stages[tightest]
    return MemoryBreakdown(
        model=program.title,
        device=device.name,
        engine=None,
        rule=None,
        share=share,
        reserve_bytes=reserve_bytes,
        nominal_bytes=device.memory_bytes,
        physical_bytes=device.capacity_bytes,
        usable_bytes=round(usable),
        weight_bytes=round(weights),
        activation_bytes=round(activations),
        overhead_bytes=0,
        graph_bytes=0,
        kv_bytes=max(0, round(caches[tightest])),
        kv_tokens=None if tokens[tightest] >= UNLIMITED else tokens[tightest],
        max_requests=max_requests,
        request_tokens=length,
        max_concurrency=None,
        keeps_all=keeps_every_token(program, length),
        fullest="all requests in one step",
        block=1,
        max_num_seqs=None,
        max_batched_tokens=None,
    )
