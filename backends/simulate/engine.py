"""An engine that a workload is priced for: how it fills steps, what it has room for, what steps take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.cost.op_time import Model
from llmir.backends.memory.kv_capacity import UNLIMITED, Pool
from llmir.backends.request.workload import Workload
from llmir.backends.simulate.policies.vllm import Vllm
from llmir.base.errors import InputError
from llmir.hw.scheduler import Scheduler
from llmir.ir.core.program import Program

from .capacity import Capacity
from .drafts import Drafts
from .load import Array, Load
from .policy import POLICIES, Policy
from .prices import Prices
from .speculative_step import SpeculativeStep
from .steps import PricedStep, in_flight


def policy(job: Workload, chunked: bool | None = None) -> Policy:
    """The policy of the engine that a workload is priced for; `chunked` overrides its own."""
    _pool(job)
    engine = model_of(job).runs
    name = engine.name if engine else ""
    if not engine or name not in POLICIES:
        why = f"simulate: how {name or 'no engine'} fills its steps is not known"
        raise InputError(f"{why}; engines are {', '.join(POLICIES)}")
    known = POLICIES[name]()
    scheduler = engine.section(Scheduler)
    if isinstance(known, Vllm) and scheduler and not scheduler.mixes:
        known = Vllm(mixes=False, chunked=False, watermark=0.01)
    if scheduler and scheduler.ahead:
        known = replace(known, ahead=True)
    return known if chunked is None else replace(known, chunked=chunked)


def capacity(job: Workload, drafts: Drafts | None = None) -> Capacity:
    """The capacity of the engine that a workload is priced for; InputError where that is not known, or none.

    No more sequences run than a step has tokens for, drafts included.
    """
    pool, rows = _pool(job), drafts.rows if drafts else 1
    dp, block = job.program.parallelism.dp, pool.rule.block  # of ranks, each has a scheduler
    tokens, state = UNLIMITED if pool.kv_tokens is None else pool.kv_tokens, pool.state_blocks
    tokens += state * dp * block  # those of one sequence are counted apart
    tokens = int(tokens * drafts.share(job.program)) if drafts else tokens
    if tokens < (state + 1) * block:
        where = f"{job.program.devices} × {job.device.name}"
        raise InputError(f"does not fit: {job.program.name} on {where} leaves no room for caches")
    if (sequences := min(pool.sequences, pool.tokens // rows)) < 1:
        asked = f"a step verifies {rows:,} tokens of a sequence, and has {pool.tokens:,}"
        raise InputError(f"draft_tokens: {rows - 1}; {asked}")
    sequences = min(sequences * dp, pool.most_states)
    steps = pool.tokens, sequences, dp, in_flight(job.program), rows, state
    return Capacity(tokens // block, block, *steps)


def prices(program: Program, model: Model, drafts: Drafts | None) -> Prices:
    """Prices of steps, which verify drafts if there are any."""
    if drafts:
        return Prices(SpeculativeStep(program, model, drafts))
    return Prices(PricedStep(program, model))


def model_of(job: Workload) -> Model:
    """The cost model that a job is priced by."""
    return job.model or job.prefill.plan.model


def check(load: Load, room: Capacity, fills: Policy) -> None:
    """InputError for requests that could never run: too long for the cache, or for a step, if read whole."""
    _within("the cache", load.reserved + room.rows - 1, holds(room, fills, load.shares))
    if not fills.chunked:
        unread = load.prompt if load.shares else load.prompt - load.cached
        _within("a step", fills.longest(unread, load.written), room.tokens)


def holds(room: Capacity, fills: Policy, shares: bool = False) -> int:
    """Tokens that one request may have in the cache, on its rank; of drafts, too."""
    # One more where prefixes are shared: the block of the last token may be cached and be read again.
    kept = fills.spare(room.blocks) + shares + room.state
    return (room.blocks // room.ranks - kept) * room.block


def _within(what: str, tokens: Array, most: int) -> None:
    """InputError for requests with more tokens; it names the first five by number."""
    long = np.flatnonzero(tokens > most)
    if long.size:
        rows = ", ".join(f"{i + 1:,} of {tokens[i]:,} tokens" for i in long[:5])
        more = f" and {long.size - 5:,} more" if long.size > 5 else ""
        raise InputError(f"does not fit: {what} holds {most:,} tokens at most; request {rows}{more}")


def _pool(job: Workload) -> Pool:
    if job.program.patches:
        raise InputError(f"simulate: {job.program.name} is of images, and has no tokens to serve")
    if job.pool is None:
        why = "simulate: no engine whose memory is known is priced"
        raise InputError(f"{why}; say engine too, one of {', '.join(POLICIES)}")
    return job.pool
