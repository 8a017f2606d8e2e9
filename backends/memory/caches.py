"""Cache policies and cache groups: how many bytes or pages an engine reserves for the KV caches of a stage.

The type of a cache states how it grows: `[B, C, …]` by a row per token, `[B, min(C, w − 1), …]` up to the
size of a window, `[B, ceildiv(C, m), …]` by a row per m tokens; `[B, n, …]` has a fixed size. `CacheState` is
one such cache. A policy turns its size into reserved bytes: `CachePolicy` (`exact`), `PagedCachePolicy`
(whole pages for each sequence, one pool per kind of layer) and `UnifiedCachePolicy` (one pool of equal
pages). `policy(name)` returns one.

`stage_caches` applies the block rule of an engine. A `CacheGroup` is a set of layers whose caches grow
equally (full, window, chunk, latent, or a state of fixed size). A `CachePool` contains pages of equal size
for its groups. All commands count requests with `StageCaches.needed`; the simulator allocates and frees the
same pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, ClassVar, NamedTuple

import numpy as np

from llmir.base.arguments import choice
from llmir.base.array_namespace import SCALARS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.engine_sections import CacheRule
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Dim, Min, Size, after_step, ceildiv

# Tokens of a page: vLLM's default block on GPUs (`--block-size`). TensorRT-LLM's have 32
# (`tokens_per_block`), SGLang's 1 (`--page-size`).
PAGE = 16

POLICIES: dict[str, CachePolicy] = {}


@dataclass(frozen=True)
class CacheState:
    """One cache of a stage: its type on a rank before the step, whether the step writes to it, and its layer.

    `times` micro-batches and layers have a cache like this. The caches of one `layer` are its keys and
    values, or the parts of its state. A `ring` stores the inputs of compressed entries that are incomplete;
    its rows are temporary, and attention does not read them as keys.
    """

    type: Tensor
    written: bool
    layer: str
    times: int
    ring: bool = False

    @cached_property
    def along(self) -> int | None:
        """The dimension that grows with the context; None for a state of fixed size."""
        return next((i for i, n in enumerate(self.type.shape) if after_step(n) != n), None)

    @property
    def rows(self) -> Size:
        """The number of rows of each sequence before the step."""
        return 1 if self.along is None else self.type.shape[self.along]

    @property
    def sequences(self) -> Size:
        """The number of sequences."""
        return 1 if self.along == 0 else self.type.shape[0]

    def bytes(self, rows: Size) -> Size:
        """The bytes of all sequences, with `rows` rows each."""
        return self.type.bytes if self.along is None else self.type.resized(self.along, rows).bytes

    @property
    def row(self) -> int:
        """Bytes of a row of one sequence; or of the whole state, if its size is fixed."""
        one = self.type if self.along is None else self.type.resized(self.along, 1)
        return int(Binding()((one if self.along == 0 else one.resized(0, 1)).bytes))

    @cached_property
    def most(self) -> int | None:
        """The largest number of rows of one sequence if it does not depend on the context; otherwise None."""
        match self.rows:
            case Dim(terms=terms) if self.ring:
                period = max(abs(factor) for _, factor in terms)  # it is full again after this many tokens
                return int(np.max(Binding(C=np.arange(4 * period))(self.rows)) + 1)
        return 1 if self.along is None else None

    def after(self, rows: Size) -> Size:
        """The number of rows after the step, given the number before."""
        return after_step(rows) if self.written else rows


@dataclass(frozen=True)
class CachePolicy:
    """Policy `exact`: the exact bytes of the cache types; a page has `page` tokens."""

    name: ClassVar[str] = "exact"
    page: int = PAGE

    def __init_subclass__(cls) -> None:
        POLICIES[cls.name] = cls()

    def rows(self, state: CacheState) -> Size:
        """The rows of each sequence in a state after the step."""
        return state.after(state.rows)

    def reserved(self, states: Sequence[CacheState]) -> Size:
        """Bytes for all states of a stage after the step."""
        return sum((state.bytes(self.rows(state)) * state.times for state in states), start=0)

    def spilled(self, made: Size, kept: Size) -> Size:
        """The bytes of keys that a step reads and that are freed after it; `kept` bytes stay."""
        return made - kept


POLICIES[CachePolicy.name] = CachePolicy()


class PagedCachePolicy(CachePolicy):
    """Policy `paged`: whole pages of tokens for each sequence, and a pool for each kind of layer.

    A window may occupy one page more than its tokens fill. TensorRT-LLM (a pool for each window, "KV Cache
    System") and SGLang ("Hybrid Model Memory Pools") do this. vLLM does it if the model has equally many
    layers of all kinds (`SlidingWindowSpec.max_memory_usage_bytes` of `vllm/v1/kv_cache_interface.py`).
    """

    name = "paged"

    def rows(self, state: CacheState) -> Size:
        """The rows of whole pages."""
        if state.most is not None:
            return state.most
        match state.rows:
            case Dim(terms=(((Min(a=a, b=int(most)),), 1),)):
                widest = ceil((most + 1) / self.page) + 1
                return self.page * Min.of(ceildiv(state.after(a), self.page), widest)
        return self.page * ceildiv(state.after(state.rows), self.page)


class LayerCache(NamedTuple):
    """The cache of a layer for one sequence: bytes per row and rows, or the bytes of a state."""

    row: int
    rows: Size = 1
    state: int = 0


class UnifiedCachePolicy(CachePolicy):
    """Policy `unified`: one pool of equal pages for all layers; windows retain all tokens, and a state takes
    a page.

    Pages of attention have enough tokens for the largest state, and a state is padded to one; layers of each
    kind are padded to a multiple of the rarest kind's. vLLM does this: for states ("Hybrid KV Cache Manager",
    case 4, and `_get_kv_cache_groups_uniform_page_size`) in all releases of V1, and for windows
    (`unify_hybrid_kv_cache_specs`) with `--disable-hybrid-kv-cache-manager`, and in releases without this
    manager.
    """

    name = "unified"

    def rows(self, state: CacheState) -> Size:
        """The rows of all tokens."""
        match state.rows:
            case Dim(terms=(((Min(a=a, b=int()),), 1),)):
                return state.after(a)
            case Dim(terms=terms) if (("C",), 1) in terms:  # minus those of finished chunks
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
        """None: all tokens stay in their places."""
        return 0


def _group(counts: Collection[int]) -> int:
    """The number of layers that share a page: the number of layers of the rarest kind; or all layers, if no
    kind has 25% more than the rarest.
    """
    least, most = min(counts), max(counts)
    return most if most < 1.25 * least else least


def policy(name: str, page: int = PAGE) -> CachePolicy:
    """The policy with a name, with pages of `page` tokens; InputError for an unknown name.

    >>> policy("paged").name, list(POLICIES)
    ('paged', ['exact', 'paged', 'unified'])
    """
    return _policy(choice("cache_policy", name, POLICIES), page)


@lru_cache(maxsize=256)
def _policy(name: str, page: int) -> CachePolicy:
    return replace(POLICIES[name], page=page)


# Groups of layers and their blocks


class CacheGroup(NamedTuple):
    """Layers with equally growing caches.

    A block stores `tokens` tokens of one sequence in all these layers, and takes `pages` pages of the pool. A
    window or chunk also retains the last `kept` tokens before those of the current step. It frees the blocks
    that are no longer in the window, so that a decoding sequence has at most `limit` blocks. Both are None if
    blocks are not freed.
    """

    tokens: int
    pages: int = 1
    kept: int | None = None

    @property
    def limit(self) -> int | None:
        """The largest number of blocks of a sequence that decodes; if a window begins inside a block, it has
        one more.
        """
        return None if self.kept is None else int(self.limit_of(1))

    def limit_of(self, new: Number, xp: Namespace = SCALARS) -> Any:
        """The largest number of blocks of a sequence with `new` tokens in flight, plus the retained tokens.

        `max_admission_blocks_per_request` of vllm/v1/kv_cache_interface.py,
        github.com/vllm-project/vllm/pull/40946.

        >>> CacheGroup(16, kept=1023).limit_of(1024), CacheGroup(16, kept=1023).limit_of(2 * 1024)
        (129, 193)
        """
        return None if self.kept is None else xp.ceildiv(self.kept + new, self.tokens) + 1

    def blocks(self, tokens: Number, new: Number = 1, xp: Namespace = SCALARS) -> Number:
        """The blocks of a sequence with `tokens` tokens, of which `new` are in flight."""
        found, limit = xp.ceildiv(tokens, self.tokens), self.limit_of(new, xp)
        return found if limit is None else xp.minimum(found, limit)


def pages(groups: Sequence[CacheGroup], tokens: Number, new: Number = 1, xp: Namespace = SCALARS) -> Number:
    """The pages of all groups for a sequence with `tokens` tokens, of which `new` are in flight."""
    return sum(group.pages * group.blocks(tokens, new, xp) for group in groups)


def pages_needed(
    groups: Sequence[CacheGroup],
    state: int,
    sequences: Number,
    prompt: Number,
    length: Number,
    in_flight: int,
    xp: Namespace = SCALARS,
) -> Number:
    """The number of pages with which `sequences` sequences reach `length` tokens without preemption, whenever
    they start.

    All requests may have their full length, except requests in prefill. Windows of requests in prefill have
    more blocks: the tokens in flight belong to the largest possible number of whole prompts, and to a part of
    one. The states of a sequence take `state` pages.
    """
    each = pages(groups, length, xp=xp)
    if not in_flight or all(group.kept is None for group in groups):
        return sequences * (each + state)
    whole = xp.floor(in_flight / prompt)
    rest = xp.maximum(1, in_flight - whole * prompt)
    more = (xp.maximum(0, pages(groups, prompt, new, xp) - each) for new in (prompt, rest))
    counts = xp.minimum(sequences, whole), xp.minimum(1, xp.maximum(0, sequences - whole))
    return sequences * (each + state) + sum(n * extra for n, extra in zip(counts, more, strict=True))


class CachePool(NamedTuple):
    """Equal pages of `bytes` bytes, for groups of layers; the states of a sequence take `state` pages.

    A token of its layers takes `token_bytes` until a window leaves it. The longest window has `window`
    tokens; None if some layers retain all tokens.
    """

    bytes: int
    groups: tuple[CacheGroup, ...]
    state: int
    token_bytes: float
    window: int | None

    def needed(
        self, sequences: Number, prompt: Number, length: Number, in_flight: int, xp: Namespace = SCALARS
    ) -> Number:
        """Bytes of `pages_needed`."""
        return pages_needed(self.groups, self.state, sequences, prompt, length, in_flight, xp) * self.bytes


class StageCaches(NamedTuple):
    """The pools of a stage, and the rule that divides its memory among them."""

    pools: tuple[CachePool, ...]
    rule: CacheRule

    def shares(self, longest: Number, xp: Namespace = SCALARS) -> list[Number]:
        """The share of the memory of each pool, for requests of at most `longest` tokens."""
        if len(self.pools) == 1:
            return [1.0]
        weights = [self._weight(pool, longest, xp) for pool in self.pools]
        return [weight / sum(weights) for weight in weights]

    def _weight(self, pool: CachePool, longest: Number, xp: Namespace) -> Number:
        if self.rule.window_ratio:
            return pool.token_bytes * (1 if pool.window is None else self.rule.window_ratio)
        return pool.token_bytes * (longest if pool.window is None else xp.minimum(pool.window, longest))

    def needed(
        self,
        sequences: Number,
        prompt: Number,
        length: Number,
        longest: Number,
        in_flight: int,
        xp: Namespace = SCALARS,
    ) -> Number:
        """The number of bytes of the stage with which no pool is too small: `CachePool.needed` divided by the
        pool's share.
        """
        found: Number = 0
        for pool, share in zip(self.pools, self.shares(longest, xp), strict=True):
            found = xp.maximum(found, pool.needed(sequences, prompt, length, in_flight, xp) / share)
        return found

    def log_tokens(self, bytes: float) -> int | None:
        """The number of tokens that vLLM logs for `bytes` bytes if windows free blocks: each group has
        equally many pages.

        `_report_kv_cache_config` of vllm/v1/core/kv_cache_utils.py.
        """
        windows = any(group.kept is not None for pool in self.pools for group in pool.groups)
        if len(self.pools) != 1 or not windows or self.pools[0].state:
            return None
        (pool,) = self.pools
        groups = sum(group.pages for group in pool.groups)
        return max(0, int(bytes / pool.bytes)) // groups * min(group.tokens for group in pool.groups)


class _Growth(NamedTuple):
    """The growth of a layer's caches: bytes per row, tokens per row, retained tokens; or bytes of a state."""

    row: int = 0
    per: int = 1
    kept: int | None = None
    state: int = 0


_SPAN = 1 << 16  # tokens: a multiple of the periods of compressed caches and chunks


def stage_caches(states: Sequence[CacheState], block: int, rule: CacheRule, parts: int = 1) -> StageCaches:
    """The pools of a stage with these caches; each of `parts` micro-batches has separate pools."""
    layers: dict[tuple[str, _Growth], list[tuple[CacheState, _Growth]]] = {}
    for state in states:
        growth = _growth(state, rule.keeps)
        kind = growth._replace(row=0, state=min(growth.state, 1))
        layers.setdefault((state.layer, kind), []).append((state, growth))
    kinds: Counter[_Growth] = Counter()
    for (_, kind), alike in layers.items():
        row, fixed = (sum(getattr(growth, name) for _, growth in alike) for name in ("row", "state"))
        kinds[kind._replace(row=row, state=fixed)] += alike[0][0].times // parts
    names = {kind: _pool_name(kind.kept, rule) for kind in kinds}
    growing = [name for kind, name in names.items() if kind.row]
    pools: dict[int | None, Counter[_Growth]] = {}
    for kind, times in kinds.items():
        alone = None not in growing and growing  # states have no separate pool
        pools.setdefault(growing[0] if alone and kind.state else names[kind], Counter())[kind] += times
    return StageCaches(tuple(_pool(each, block, rule.wide_pages) for each in pools.values()), rule)


def _pool_name(kept: int | None, rule: CacheRule) -> int | None:
    """The key of the pool for layers with a window."""
    match rule.split:
        case "windows":
            return kept
        case "ratio":
            return None if kept is None else 0
    return None


def _growth(state: CacheState, keeps: Collection[str]) -> _Growth:
    """The growth of a cache; windows and chunks listed in `keeps` retain all tokens."""
    if state.most is not None:
        return _Growth(state=state.row * state.most)
    match state.rows:
        case Dim(terms=(((Min(b=int(most)),), 1),)):
            return _Growth(state.row, kept=None if "window" in keeps else most)
        case Dim(terms=terms) if (("C",), 1) in terms and len(terms) > 1:
            chunk = max(abs(factor) for _, factor in terms)
            return _Growth(state.row, kept=None if "chunk" in keeps else chunk - 1)
    one, two = (float(Binding(C=n * _SPAN)(state.rows)) for n in (1, 2))
    if one == two:  # a fixed number of rows, as for images
        return _Growth(state=round(state.row * two))
    return _Growth(state.row, per=max(1, round(_SPAN / (two - one))))


def _pool(kinds: Counter[_Growth], block: int, wide: bool) -> CachePool:
    """Build a pool of equal pages.

    Blocks of attention have `block` tokens; `wide` blocks have a multiple of it, so that a state fits in a
    page. Shorter rows have more tokens in a block. A page covers as many layers as the rarest kind has, or
    all layers if no kind has 25% more (`_get_kv_cache_groups_uniform_page_size` of
    vllm/v1/core/kv_cache_utils.py).
    """
    widest, largest = max(kind.row for kind in kinds), max(kind.state for kind in kinds)
    least = block * widest
    page = (max(1, ceil(largest / least)) if wide else 1) * least if widest else largest
    layers = _group(kinds.values())
    each = {kind: ceil(times / layers) for kind, times in kinds.items()}
    growing = [kind for kind in kinds if kind.row]
    kept = [kind.kept for kind in growing]
    return CachePool(
        page * layers,
        tuple(CacheGroup(page // kind.row * kind.per, each[kind], kind.kept) for kind in growing),
        sum(n * ceil(kind.state / page) for kind, n in each.items()),
        sum(kind.row / kind.per * kinds[kind] for kind in growing),
        None if None in kept else max((n for n in kept if n is not None), default=0) + 1,
    )
