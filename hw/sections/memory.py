"""What an engine does with a device's memory: the section `memory` of its file, by first release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llmir.dataclass import dataclass
from llmir.errors import HardwareError
from llmir.frozen import Record
from llmir.hw import schema, versions
from llmir.hw.releases import Releases, releases
from llmir.hw.schema import Key

# What `utilization` is a share of: vLLM's (`gpu_memory_utilization`) of all physical memory; SGLang's
# (`mem_fraction_static`) of what is free before the weights are loaded, for weights and cache together;
# TensorRT-LLM's (`free_gpu_memory_fraction`) of what all else leaves.
RULES = ("physical", "static", "free")


@dataclass(frozen=True, eq=False)
class Budget(Record):
    """What a step takes at most on devices of so much memory: sequences, and tokens.

    `whole` requests are not cut: a step takes one that has more tokens too. It does not hold for devices
    whose `isa` is `unless`.
    """

    sequences: int
    tokens: int
    whole: bool = False
    memory_bytes: int = 0
    unless: str = ""


@dataclass(frozen=True, eq=False)
class Aside(Record):
    """What is kept free where no share is stated: bytes, of a token, a sequence, and a rank of tp × pp."""

    bytes: int = 0
    token_bytes: float = 0
    sequence_bytes: float = 0
    rank_bytes: float = 0

    def whole(self, tokens: int, sequences: int, ranks: int) -> float:
        """Bytes in all."""
        each = tokens * self.token_bytes, sequences * self.sequence_bytes, ranks * self.rank_bytes
        return self.bytes + sum(each)


@dataclass(frozen=True, eq=False)
class EngineMemory(Record):
    """What an engine holds beside weights and cache, and how much is left for the cache.

    A step of the budget is run once to see what it takes. In it the forward pass holds its live set and
    `states` more hidden states of all tokens. Then the sampler holds the logits, `sampler` fp32 values for
    each of them and `vocabularies` fp32 rows of the vocabulary on each multiprocessor, beside the hidden
    states and `experts` times the workspace of the experts. `kept_bytes` stay of either, and `outside` of
    PyTorch's allocator lie so many bytes by tp: contexts, and buffers of collectives. For CUDA graphs a share
    `graphs` of physical memory is set aside.
    """

    rule: str
    block: int
    budgets: tuple[Budget, ...]
    utilization: float | None = None
    aside: Aside | None = None
    states: float = 0
    sampler: float = 0
    vocabularies: float = 0
    experts: float = 0
    kept_bytes: float = 0
    graphs: float = 0
    outside: Mapping[int, float] = field(default_factory=lambda: {1: 0.0})
    origin: str = ""
    rows: int = 0
    error: float | None = None

    def budget(self, memory_bytes: int, isa: str) -> Budget:
        """That of a device."""
        fit = (b for b in self.budgets if memory_bytes >= b.memory_bytes and isa != b.unless)
        return next(fit, self.budgets[-1])

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
        raise HardwareError(f"{where} must be a share up to 1, got {schema.show(value)}")
    return found


def _share_or_none(value: object, where: str, unit: float) -> float:
    return _share(value, where, unit) if schema.amount(value, where, unit) else 0.0


def _outside(value: object, where: str, unit: float) -> dict[int, float]:
    pairs = schema.mapping(value, where).items()
    found = {schema.count(tp, f"{where}: tp", 1): schema.amount(v, f"{where}.{tp}", unit) for tp, v in pairs}
    if 1 not in found:
        raise HardwareError(f"{where} must say it for tp 1, got {schema.show(value)}")
    return found


def _budgets(value: object, where: str, unit: float) -> tuple[Budget, ...]:
    if not isinstance(value, list) or not value:
        raise HardwareError(f"{where} must be a list of budgets, got {schema.show(value)}")
    found = tuple(Budget(**schema.read(b, f"{where}[{i}]", BUDGET)) for i, b in enumerate(value))
    if found[-1].memory_bytes or found[-1].unless:
        raise HardwareError(f"{where}: the last must hold for all devices")
    return found


def _aside(value: object, where: str, unit: float) -> Aside:
    return Aside(**schema.read(value, where, ASIDE))


BUDGET = {
    "sequences": Key("sequences", schema.count, required=True),
    "tokens": Key("tokens", schema.count, required=True),
    "whole": Key("whole", schema.flag),
    "memory_GiB": Key("memory_bytes", schema.size, 2**30),
    "unless": Key("unless", schema.label),
}
ASIDE = {
    "MiB": Key("bytes", schema.size, 2**20),
    "token_MiB": Key("token_bytes", schema.number, 2**20),
    "sequence_MiB": Key("sequence_bytes", schema.number, 2**20),
    "rank_MiB": Key("rank_bytes", schema.number, 2**20),
}
MEMORY = {
    "rule": Key("rule", _rule, required=True),
    "block": Key("block", schema.count, required=True),
    "budgets": Key("budgets", _budgets, required=True),
    "utilization": Key("utilization", _share),
    "aside": Key("aside", _aside),
    "states": Key("states", schema.amount),
    "sampler": Key("sampler", schema.amount),
    "vocabularies": Key("vocabularies", schema.amount),
    "experts": Key("experts", schema.amount),
    "graphs": Key("graphs", _share_or_none),
    "kept_GiB": Key("kept_bytes", schema.amount, 2**30),
    "outside_GiB": Key("outside", _outside, 2**30, required=True),
    "origin": Key("origin", schema.text, required=True),
    "rows": Key("rows", schema.count),
    "error_percent": Key("error", schema.number, 0.01),
}


@versions.section("memory")
def memory(value: object, where: str) -> Releases[EngineMemory]:
    """The releases of a file."""
    return releases(value, where, _memory)


def _memory(value: Mapping[Any, Any], where: str) -> EngineMemory:
    fields = schema.read(value, where, MEMORY)
    if ("utilization" in fields) == ("aside" in fields):
        raise HardwareError(f"{where}: give one of utilization and aside")
    return EngineMemory(**fields)
