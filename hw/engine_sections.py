"""What an engine does with a device's memory: the section `memory` of its file, by first release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.values import Record

from . import engine, schema
from .by_device import ByDevice, options
from .releases import Releases, releases
from .schema import Key

# What `utilization` is a share of: vLLM's (`gpu_memory_utilization`) of all physical memory; SGLang's
# (`mem_fraction_static`) of what is free before the weights are loaded, for weights and cache together;
# TensorRT-LLM's (`free_gpu_memory_fraction`) of what all else leaves.
RULES = ("physical", "static", "free")


@dataclass(frozen=True, eq=False, kw_only=True)
class Budget(ByDevice):
    """What a step takes at most: sequences, and tokens.

    `whole` requests are not cut: a step takes one that has more tokens too.
    """

    sequences: int
    tokens: int
    whole: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Aside(ByDevice):
    """What is kept free where no share is stated, in bytes.

    Some, and of a token of a step, a sequence of the largest graph that decodes, and a rank of tp × pp; no
    less than `least`.
    """

    bytes: int = 0
    token_bytes: float = 0
    graph_bytes: float = 0
    rank_bytes: float = 0
    least: int = 0

    def whole(self, tokens: int, captured: float, ranks: int) -> float:
        """Bytes in all."""
        each = tokens * self.token_bytes, captured * self.graph_bytes, ranks * self.rank_bytes
        return max(self.least, self.bytes + sum(each))


@dataclass(frozen=True, eq=False)
class EngineMemory(Record):
    """What an engine holds beside weights and cache, and how much is left for the cache.

    A step of the budget is run once to see what it takes. In it the forward pass holds its live set and
    `states` more hidden states of all tokens. Then the sampler holds the logits, `sampler` fp32 values for
    each of them and `vocabularies` fp32 rows of the vocabulary on each multiprocessor, beside the hidden
    states and `experts` times the workspace of the experts. `kept_bytes` stay of either, and `outside` of
    PyTorch's allocator lie so many bytes by tp: contexts, and buffers of collectives. `graph_bytes` are for
    CUDA graphs. Without `utilization` the share is what leaves `aside` free.
    """

    rule: str
    block: int
    budgets: tuple[Budget, ...]
    utilization: float | None = None
    aside: tuple[Aside, ...] = ()
    states: float = 0
    sampler: float = 0
    vocabularies: float = 0
    experts: float = 0
    kept_bytes: float = 0
    graph_bytes: float = 0
    outside: Mapping[int, float] = field(default_factory=lambda: {1: 0.0})
    origin: str = ""
    rows: int = 0
    error: float | None = None

    def outside_bytes(self, tp: int) -> float:
        """That of the most ranks known that are no more."""
        return self.outside[max(n for n in self.outside if n <= tp)]


def _rule(value: object, where: str, unit: float) -> str:
    if value not in RULES:
        raise HardwareError(f"{where} must be {', '.join(RULES)}, got {schema.show(value)}")
    return str(value)


def _share(value: object, where: str, unit: float) -> float:
    found = schema.number(value, where, unit)
    if found > 1:
        raise HardwareError(f"{where} must be a share above 0 up to 1, got {schema.show(value)}")
    return found


def _outside(value: object, where: str, unit: float) -> dict[int, float]:
    pairs = schema.mapping(value, where).items()
    found = {schema.count(tp, f"{where}: tp", 1): schema.amount(v, f"{where}.{tp}", unit) for tp, v in pairs}
    if 1 not in found:
        raise HardwareError(f"{where} must say it for tp 1, got {schema.show(value)}")
    return found


BUDGET = {
    "sequences": Key("sequences", schema.count, required=True),
    "tokens": Key("tokens", schema.count, required=True),
    "whole": Key("whole", schema.flag),
}
ASIDE = {
    "MiB": Key("bytes", schema.size, 2**20),
    "token_MiB": Key("token_bytes", schema.number, 2**20),
    "graph_MiB": Key("graph_bytes", schema.number, 2**20),
    "rank_MiB": Key("rank_bytes", schema.number, 2**20),
    "least_MiB": Key("least", schema.size, 2**20),
}
MEMORY = {
    "rule": Key("rule", _rule, required=True),
    "block": Key("block", schema.count, required=True),
    "budgets": Key("budgets", options(Budget, BUDGET), required=True),
    "utilization": Key("utilization", _share),
    "aside": Key("aside", options(Aside, ASIDE)),
    "states": Key("states", schema.amount),
    "sampler": Key("sampler", schema.amount),
    "vocabularies": Key("vocabularies", schema.amount),
    "experts": Key("experts", schema.amount),
    "graph_GiB": Key("graph_bytes", schema.amount, 2**30),
    "kept_GiB": Key("kept_bytes", schema.amount, 2**30),
    "outside_GiB": Key("outside", _outside, 2**30, required=True),
    "origin": Key("origin", schema.text, required=True),
    "rows": Key("rows", schema.count),
    "error_percent": Key("error", schema.number, 0.01),
}


@engine.section("memory")
def memory(value: object, where: str) -> Releases[EngineMemory]:
    """The releases of a file."""
    return releases(value, where, _memory)


def _memory(value: Mapping[Any, Any], where: str) -> EngineMemory:
    fields = schema.read(value, where, MEMORY)
    if ("utilization" in fields) == ("aside" in fields):
        raise HardwareError(f"{where}: give one of utilization and aside")
    return EngineMemory(**fields)
