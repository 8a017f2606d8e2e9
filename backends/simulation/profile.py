"""What an engine takes, by its profile: blocks of its caches, and tokens and sequences of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.analysis.pool import UNLIMITED
from llmir.backends.analysis.workload import Workload
from llmir.errors import InputError
from llmir.hw.sections.scheduler import Scheduler

from .load import Array, Load
from .policies.vllm import Vllm
from .policy import POLICIES, Policy
from .server import Capacity


def capacity(job: Workload) -> Capacity:
    """Of the engine that a workload is priced for; InputError where none is known, or has no room."""
    pool = job.pool
    if pool is None:
        why = "simulate: no engine whose memory is known is priced"
        raise InputError(f"{why}; name one of {', '.join(POLICIES)} as engine")
    tokens = UNLIMITED if pool.kv_tokens is None else pool.kv_tokens
    if tokens < pool.rule.block:
        where = f"{job.program.devices} × {job.device.name}"
        raise InputError(f"does not fit: {job.program.name} on {where} leaves no room for caches")
    return Capacity(tokens // pool.rule.block, pool.rule.block, pool.tokens, pool.sequences)


def policy(job: Workload, chunked: bool | None = None) -> Policy:
    """That of the engine that a workload is priced for, which reads prompts in chunks or not, if stated."""
    engine = job.pool and (job.model or job.prefill.plan.model).runs
    name = engine.name if engine else ""
    if not engine or name not in POLICIES:
        why = f"simulate: how {name or 'no engine'} fills its steps is not known"
        raise InputError(f"{why}; engines are {', '.join(POLICIES)}")
    known = POLICIES[name]()
    scheduler = engine.section(Scheduler)
    if isinstance(known, Vllm) and scheduler and not scheduler.mixes:
        known = Vllm(mixes=scheduler.mixes, chunked=False, watermark=0.01)
    return known if chunked is None else replace(known, chunked=chunked)


def check(load: Load, room: Capacity, fills: Policy) -> None:
    """InputError for requests that could never run: too long for the cache, or for a step, if read whole."""
    _within("the cache", load.written, (room.blocks - fills.spare(room.blocks)) * room.block)
    if not fills.chunked:
        _within("a step", fills.longest(load.prompt - load.cached, load.written), room.tokens)


def _within(what: str, tokens: Array, most: int) -> None:
    """The first five that have more, by number."""
    long = np.flatnonzero(tokens > most)
    if long.size:
        rows = ", ".join(f"{i + 1:,} of {tokens[i]:,} tokens" for i in long[:5])
        more = f" and {long.size - 5:,} more" if long.size > 5 else ""
        raise InputError(f"does not fit: {what} holds {most:,} tokens at most; request {rows}{more}")
