"""Which prefill and decode servers an engine takes together: its rules for caches, splits and drafts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmir.backends.memory.transfer import rank_bytes
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .drafts import POOLS

if TYPE_CHECKING:
    from .profile import Profile

Rule = Callable[[Program, Program], "str | None"]
SOME = 4096  # tokens at which caches of two programs are compared


def check(engine: str, prefill: Program, decode: Program) -> None:
    """InputError for pools that the engine refuses, with its reason."""
    kept = [(p.cache_bytes(0), p.cache_bytes(SOME)) for p in (prefill, decode)]
    if prefill.facts.get("architecture") != decode.facts.get("architecture") or kept[0] != kept[1]:
        each = " and ".join(f"{p.name} keeps {p.kv_cache_bytes_per_token:,}" for p in (prefill, decode))
        raise InputError(f"pools: both serve one model with caches of one type; {each} bytes a token")
    few, many = sorted((prefill.parallelism.tp, decode.parallelism.tp))
    if many % few:
        why = "ranks of one side share those of the other evenly"
        raise InputError(f"pools: tp is {prefill.parallelism.tp} and {decode.parallelism.tp}; {why}")
    if engine in RULES and (refusal := RULES[engine](prefill, decode)):
        raise InputError(f"pools: {engine} {refusal}")


def check_drafts(prefill: Profile, decode: Profile) -> None:
    """InputError for drafts that the engine does not take in pools, or that the two sides make otherwise.

    "P and D instances must use compatible speculation configurations": method and model of drafts must match
    (docs/features/nixl_connector_compatibility.md of vLLM).
    """
    one, two = (side.drafts and side.drafts.made_by(side.job.program) for side in (prefill, decode))
    if one != two:
        each = " and ".join(repr(by or "no drafts") for by in (one, two))
        raise InputError(f"pools: both have the same thing draft, or nothing; here it is {each}")
    if decode.drafts and (why := POOLS.get((decode.policy.name, decode.drafts.kind(decode.job.program)))):
        raise InputError(f"draft_tokens: {decode.drafts.tokens}; {why}")


def _differ(prefill: Program, decode: Program) -> str:
    """The splits in words, where they differ and caches lie split over ranks."""
    one, two = prefill.parallelism.tp, decode.parallelism.tp
    whole = all(rank_bytes(p, 1, SOME) == p.cache_bytes(SOME) for p in (prefill, decode))
    return "" if one == two or whole else f"; here it is {one} and {two}"


def _stages(prefill: Program, decode: Program) -> tuple[int, int]:
    return len(prefill.entries), len(decode.entries)


def _vllm(prefill: Program, decode: Program) -> str | None:
    """docs/features/nixl_connector_compatibility.md of vLLM: "P TP == D TP" of hybrids with states; what can
    differ is tp, the size of blocks and their number.
    """
    one, two = prefill.parallelism.tp, decode.parallelism.tp
    if (stages := _stages(prefill, decode))[0] != stages[1]:
        return f"joins servers of as many pipeline stages, tp may differ; pp is {stages[0]} and {stages[1]}"
    if prefill.state_bytes_per_sequence and one != two:
        return f"sends states only where tp is the same in prefill and decode; here it is {one} and {two}"
    return None


def _sglang(prefill: Program, decode: Program) -> str | None:
    """disaggregation/nixl/conn.py: "does NOT support PD different TP sizes for non-MLA … hybrid models".

    disaggregation/common/conn.py: "Decode pp size … should be equal to prefill pp size … or 1".
    """
    if (stages := _stages(prefill, decode))[1] not in (1, stages[0]):
        return f"has decode servers of one pipeline stage, or as many; pp is {stages[0]} and {stages[1]}"
    windows = prefill.kv_cache_bytes_per_later_token != prefill.kv_cache_bytes_per_token
    hybrid = windows or prefill.state_bytes_per_sequence
    if hybrid and (here := _differ(prefill, decode)):
        return f"sends windows and states only where tp is the same in prefill and decode{here}"
    return None


def _trtllm(prefill: Program, decode: Program) -> str | None:
    """docs/source/1.0/features/disagg-serving.md: caches of all layers have as many heads, in one type."""
    if prefill.state_bytes_per_sequence:
        return "sends keys and values only; this model has states"
    return None


# SGLang joins other splits of models that are no hybrids ("Performance is NOT guaranteed", common/conn.py),
# and TensorRT-LLM any tp and pp; of vLLM's NixlConnector either side may have more ranks.
RULES: dict[str, Rule] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
