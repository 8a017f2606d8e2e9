"""A device's memory as the sum that an engine's log has: what there is, is taken, and is left for caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmir.base.dataclass import dataclass
from llmir.base.formats import Result
from llmir.base.values import Figures
from llmir.hw.device import Device
from llmir.ir.core.program import Program

from .kv_capacity import UNLIMITED, Pool, keeps_all, tokens_in


@dataclass(frozen=True)
class MemorySum(Figures, Result):
    """Bytes of one rank of the stage whose caches are full first, and what the caches of all ranks hold.

    Of `physical_bytes` a rule makes `usable_bytes`; `kv_bytes` are what the others leave of those, 0 if
    nothing. `kv_tokens` lie in them in whole blocks, None if they take none, and `max_requests` requests of
    `request_tokens` at once, of which caches keep all tokens if `keeps_all`. Of `overhead_bytes`
    `graph_bytes` are for CUDA graphs. Without an engine activations are those of all requests read in one
    step.
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
    keeps_all: bool
    fullest: str
    block: int
    max_num_seqs: int | None
    max_batched_tokens: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: value for name, value in vars(self).items() if name not in ("model", "device")}


def of_pool(pool: Pool, engine: str) -> MemorySum:
    """What an engine makes of a program on a device."""
    room, rule = pool.rooms()[pool.tightest], pool.rule
    return MemorySum(
        model=pool.program.name,
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
        keeps_all=keeps_all(pool.program, pool.longest),
        fullest=str(room.fullest),
        block=rule.block,
        max_num_seqs=pool.sequences,
        max_batched_tokens=pool.tokens,
    )


def of_steps(
    program: Program,
    device: Device,
    share: float,
    reserve_bytes: int,
    usable: float,
    stages: Sequence[tuple[Any, Any]],
    max_requests: int,
    length: int,
) -> MemorySum:
    """What is left where no engine has a rule: the weights and activations of each stage, and the rest."""
    caches = tuple(usable - weights - activations for weights, activations in stages)
    tokens = tokens_in(program, caches, 1)
    tightest = tokens.index(min(tokens))
    weights, activations = stages[tightest]
    return MemorySum(
        model=program.name,
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
        keeps_all=keeps_all(program, length),
        fullest="all requests in one step",
        block=1,
        max_num_seqs=None,
        max_batched_tokens=None,
    )
