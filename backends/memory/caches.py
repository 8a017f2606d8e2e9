"""Cache policies: how many bytes or pages an engine reserves for the KV caches of a stage.

The type of a cache states its growth: `[B, C, …]` a row per token, `[B, min(C, w − 1), …]` a ring for a
window, `[B, ceildiv(C, m), …]` a row per m tokens, `[B, n, …]` a fixed size. `CacheState` is one such
cache. A policy turns its size into reserved bytes: `CachePolicy` (`exact`), `PagedCachePolicy` (whole pages
for each sequence, one pool per kind of layer) and `UnifiedCachePolicy` (one pool of equal pages).
`policy(name)` returns one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import ceil
from typing import ClassVar, NamedTuple

import numpy as np

from llmir.base.arguments import choice
from llmir.base.dataclass import dataclass
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Dim, Min, Size, after_step, ceildiv

# Tokens of a page: vLLM's default block on GPUs (`--block-size`). TensorRT-LLM's have 32
# (`tokens_per_block`), SGLang's 1 (`--page-size`).
PAGE = 16

POLICIES: dict[str, CachePolicy] = {}


@dataclass(frozen=True)
class CacheState:
    """One cache of a stage: its type on a rank before the step, whether the step writes to it, and where.

    `times` micro-batches and layers have one like it; caches of one `layer` are its keys and its values, or
    the parts of its state. A `ring` holds what a compressor is yet to make entries of: its rows come and go,
    and are no keys of any attention.
    """

    type: Tensor
    written: bool
    layer: str
    times: int
    ring: bool = False

    @cached_property
    def along(self) -> int | None:
        """The dimension that grows with the context; None of a state of fixed size."""
        return next((i for i, n in enumerate(self.type.shape) if after_step(n) != n), None)

    @property
    def rows(self) -> Size:
        """How many rows of each sequence there were before the step."""
        return 1 if self.along is None else self.type.shape[self.along]

    @property
    def sequences(self) -> Size:
        """How many there are."""
        return 1 if self.along == 0 else self.type.shape[0]

    def bytes(self, rows: Size) -> Size:
        """Bytes of all sequences, with so many rows each."""
        return self.type.bytes if self.along is None else self.type.resized(self.along, rows).bytes

    @property
    def row(self) -> int:
        """Bytes of a row of one sequence, or of all that it has."""
        one = self.type if self.along is None else self.type.resized(self.along, 1)
        return int(Binding()((one if self.along == 0 else one.resized(0, 1)).bytes))

    @cached_property
    def most(self) -> int | None:
        """The most rows of one sequence, where the context does not set them; None where it does."""
        match self.rows:
            case Dim(terms=terms) if self.ring:
                period = max(abs(factor) for _, factor in terms)  # it is as full again after so many tokens
                return int(np.max(Binding(C=np.arange(4 * period))(self.rows)) + 1)
        return 1 if self.along is None else None

    def after(self, rows: Size) -> Size:
        """What so many rows before the step are after it."""
        return after_step(rows) if self.written else rows


@dataclass(frozen=True)
class CachePolicy:
    """Bytes of the caches' own types, as arithmetic says: `exact`; a page has so many tokens."""

    name: ClassVar[str] = "exact"
    page: int = PAGE

    def __init_subclass__(cls) -> None:
        POLICIES[cls.name] = cls()

    def rows(self, state: CacheState) -> Size:
        """The rows that a state takes of each sequence after the step."""
        return state.after(state.rows)

    def reserved(self, states: Sequence[CacheState]) -> Size:
        """Bytes for all states of a stage after the step."""
        return sum((state.bytes(self.rows(state)) * state.times for state in states), start=0)

    def spilled(self, made: Size, kept: Size) -> Size:
        """Of the bytes of keys that a step reads, those that outlive it not: `kept` do."""
        return made - kept


POLICIES[CachePolicy.name] = CachePolicy()


class PagedCachePolicy(CachePolicy):
    """Whole pages of tokens for each sequence, and a pool for each kind of layer.

    A window lies across a page more than it fills. So do TensorRT-LLM (a pool for each window, "KV Cache
    System"), SGLang ("Hybrid Model Memory Pools"), and vLLM where layers of all kinds are equally many
    (`SlidingWindowSpec.max_memory_usage_bytes` of `vllm/v1/kv_cache_interface.py`).
    """

    name = "paged"

    def rows(self, state: CacheState) -> Size:
        """Those of whole pages."""
        if state.most is not None:
            return state.most
        match state.rows:
            case Dim(terms=(((Min(a=a, b=int(most)),), 1),)):
                widest = ceil((most + 1) / self.page) + 1
                return self.page * Min.of(ceildiv(state.after(a), self.page), widest)
        return self.page * ceildiv(state.after(state.rows), self.page)


class LayerCache(NamedTuple):
    """What a layer keeps of one sequence: bytes of a row and how many, or those of a state."""

    row: int
    rows: Size = 1
    state: int = 0


class UnifiedCachePolicy(CachePolicy):
    """One pool of equal pages for all layers: windows keep all tokens, states take a page.

    Pages of attention have so many tokens that the largest state fits, and a state is padded to one; layers
    of each kind are padded to a multiple of the rarest kind's. So does vLLM: states ("Hybrid KV Cache
    Manager", case 4, and `_get_kv_cache_groups_uniform_page_size`) in all releases of its V1, windows
    (`unify_hybrid_kv_cache_specs`) with `--disable-hybrid-kv-cache-manager`, and where it is not there yet.
    """

    name = "unified"

    def rows(self, state: CacheState) -> Size:
        """Those of all tokens."""
        match state.rows:
            case Dim(terms=(((Min(a=a, b=int()),), 1),)):
                return state.after(a)
            case Dim(terms=terms) if (("C",), 1) in terms:  # less those of chunks that are over
                return state.after(C)
        return state.after(state.rows)

    def reserved(self, states: Sequence[CacheState]) -> Size:
        """Pages of all layers."""
        layers: dict[tuple[str, Size], list[CacheState]] = {}
        for state in states:
            rows = 0 if state.most is not None else self.rows(state)
            layers.setdefault((state.layer, rows), []).append(state)
        kinds: Counter[LayerCache] = Counter()
        for (_, rows), alike in layers.items():
            fixed = [state.row * state.most for state in alike if state.most is not None]
            kinds[
                LayerCache(0, 1, sum(fixed)) if fixed else LayerCache(sum(state.row for state in alike), rows)
            ] += alike[0].times
        if not kinds:
            return 0
        widest, largest = max(kind.row for kind in kinds), max(kind.state for kind in kinds)
        least = self.page * widest
        page = max(1, ceil(largest / least)) * least if widest else largest
        group = _group(kinds.values())
        total: Size = 0
        for kind, times in kinds.items():
            pages = ceildiv(kind.rows, page // kind.row) if kind.row else 1
            total = total + pages * (ceil(times / group) * group * page)
        return total * states[0].sequences

    def spilled(self, made: Size, kept: Size) -> Size:
        """None: all tokens have their place."""
        return 0


def _group(counts: Collection[int]) -> int:
    """How many layers share a page's number: those of the rarest kind; of all, if none is 25% more."""
    least, most = min(counts), max(counts)
    return most if most < 1.25 * least else least


def policy(name: str, page: int = PAGE) -> CachePolicy:
    """The policy of that name, with pages of so many tokens; `InputError` for none.

    >>> policy("paged").name, list(POLICIES)
    ('paged', ['exact', 'paged', 'unified'])
    """
    return _policy(choice("cache_policy", name, POLICIES), page)


@lru_cache(maxsize=256)
def _policy(name: str, page: int) -> CachePolicy:
    return replace(POLICIES[name], page=page)
