"""Attention masks as values; a mask determines to which keys a query attends.

Attention ops, caches and kernels receive a mask as text. `t` new tokens of a sequence follow `c` cached ones,
and each new token has a query and a key at its position. A mask gives the numbers of pairs and keys as
symbolic sizes. It also computes in NumPy which query attends to which key.

>>> from llmir.ir.sizes.polynomial import C, T
>>> mask("window(4096)"), str(mask("window(4096)").kept(C)), str(mask("causal").keys(T, C))
(Window(width=4096), 'min(C, 4095)', 'C + T')
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import bounded
from llmir.ir.sizes.polynomial import Min, Size, ceildiv

Array = np.ndarray[Any, np.dtype[Any]]

MASKS: dict[str, type[Mask]] = {}
_LONGEST = 60  # most characters of a mask's text
_MOST = 1 << 48  # the same bound as for dimensions of tensors


@dataclass(frozen=True)
class Mask(ABC):
    """Base class of masks: the keys to which each query attends.

    The fields are the sizes of the mask, and its text is `word(sizes)`. Kernels use `step`, the number of
    keys that each query attends to in addition to the keys of the previous query. They also use `most`, the
    largest number of keys per query.
    """

    word: ClassVar[str] = ""
    step: ClassVar[int] = 1
    bias_flops: ClassVar[int] = 0  # FLOPs per pair to compute and add the bias

    def __init_subclass__(cls) -> None:
        if cls.word:
            MASKS[cls.word] = cls

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if type(size) is not int or not 1 <= size <= _MOST:
                rule = bounded("an integer", 1, _MOST)
                raise VerifyError(f"mask {self.word}: {field.name}: expected {rule}, got {size!r}")

    @property
    def most(self) -> float:
        """The largest number of keys to which a query attends."""
        return np.inf

    @abstractmethod
    def pairs(self, t: Size, c: Size) -> Size:
        """Twice the number of visible pairs of a query and a key; the factor 2 avoids fractions."""

    def kept(self, c: Size) -> Size:
        """How many of `c` cached tokens must stay in the cache because future tokens attend to them."""
        return c

    def keys(self, t: Size, c: Size) -> Size:
        """The number of keys, cached and new, to which at least one query attends."""
        return self.kept(c) + t

    def positions(self, keys: int, end: int) -> Array:
        """The positions of the last `keys` tokens in a sequence of `end` tokens."""
        return np.arange(end - keys, end)

    @abstractmethod
    def sees(self, query: Array, key: Array) -> Array:
        """Whether the query at one position attends to the key at another; positions broadcast together."""

    def bias(self, head: Array, heads: int, query: Array, key: Array) -> Array:
        """The bias on a head's scores at pairs that the mask allows; all arguments broadcast together."""
        return np.zeros(())

    def short(self, most: int) -> Mask:
        """The mask with sizes limited to `most`, for programs with short axes."""
        return replace(self, **{f.name: min(getattr(self, f.name), most) for f in fields(self)})

    def __str__(self) -> str:
        sizes = ", ".join(str(getattr(self, f.name)) for f in fields(self))
        return f"{self.word}({sizes})" if sizes else self.word


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key, as in an encoder."""

    word = "full"
    step = 0

    def pairs(self, t: Size, c: Size) -> Size:
        """2·T·(C + T)."""
        return 2 * t * (c + t)

    def sees(self, query: Array, key: Array) -> Array:
        """True."""
        return np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees its own key and all earlier ones."""

    word = "causal"

    def pairs(self, t: Size, c: Size) -> Size:
        """2·(T·C + T·(T+1)/2)."""
        return 2 * t * c + t * t + t

    def sees(self, query: Array, key: Array) -> Array:
        """Whether the key is not later than the query."""
        found: Array = key <= query
        return found


@dataclass(frozen=True)
class Window(Mask):
    """A query sees the last `width` keys up to its own; a cache stores width − 1 (arXiv:2310.06825)."""

    word = "window"

    width: int

    @property
    def most(self) -> float:
        """The width."""
        return self.width

    def _before(self, n: Size) -> Size:
        """Twice the number of visible (query, key) pairs of the first `n` queries.

        Query i sees min(i + 1, width) keys.
        """
        growing = Min.of(n, self.width)
        return growing * growing + growing + 2 * (n - growing) * self.width

    def pairs(self, t: Size, c: Size) -> Size:
        """The pairs of all queries minus those of the cached tokens."""
        return self._before(c + t) - self._before(c)

    def kept(self, c: Size) -> Size:
        """At most width − 1 tokens: a new token sees its own key and width − 1 earlier keys."""
        return Min.of(c, self.width - 1)

    def sees(self, query: Array, key: Array) -> Array:
        """Whether the key is in the window that ends at the query."""
        found: Array = (key <= query) & (key > query - self.width)
        return found


class Selected(Window):
    """Like `Window`, but an op selects the keys by content, so the cache stores all keys.

    The op that selects keys also receives index scores, because positions alone do not determine the keys.
    """

    word = ""  # a mask of this kind has no text

    def kept(self, c: Size) -> Size:
        """All tokens, because any key may be selected."""
        return c

    def keys(self, t: Size, c: Size) -> Size:
        """At most `width` for each query, and at most all keys."""
        return Min.of(c + t, t * self.width)


@dataclass(frozen=True)
class Entries(Causal):
    """One entry for each `stride` tokens; queries at or after an entry's last token see the entry."""

    word = ""  # a mask of this kind has no text

    stride: int

    def first(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries: query j sees ⌊j / stride⌋ entries."""
        whole = self.kept(n)
        return whole * (2 * n - self.stride * (whole + 1) + 2)

    def pairs(self, t: Size, c: Size) -> Size:
        """The pairs of all queries minus those of the cached tokens."""
        return self.first(c + t) - self.first(c)

    def kept(self, c: Size) -> Size:
        """One entry for each complete stride."""
        return ceildiv(c + 1, self.stride) - 1

    def keys(self, t: Size, c: Size) -> Size:
        """All entries that exist after the step."""
        return self.kept(c + t)

    def positions(self, keys: int, end: int) -> Array:
        """The position of the last token of each entry."""
        return (np.arange(keys) + 1) * self.stride - 1


@dataclass(frozen=True)
class ChosenEntries(Entries):
    """Like `Entries`, but each query sees at most `width` entries, which an op selects by content."""

    word = ""

    width: int

    @property
    def most(self) -> float:
        """The width."""
        return self.width

    def first(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries; each query sees at most `width` entries."""
        few = Min.of(n, self.width * self.stride)
        return super().first(few) + 2 * self.width * (n - few)

    def keys(self, t: Size, c: Size) -> Size:
        """At most `width` for each query, and at most all entries."""
        return Min.of(self.kept(c + t), t * self.width)


@dataclass(frozen=True)
class ChosenBlocks(Causal):
    """A query sees its own block of `length` keys up to itself, and `width` − 1 selected earlier blocks.

    The op that selects blocks also receives index scores, because positions alone do not determine the
    blocks.
    """

    word = ""

    length: int
    width: int

    @property
    def most(self) -> float:
        """All keys of the blocks that a query may see."""
        return self.length * self.width

    def pairs(self, t: Size, c: Size) -> Size:
        """Twice the pairs in each query's own block and in its selected earlier blocks."""
        end, start = c + t, c
        own = Chunk(self.length).pairs(t, c)
        if self.width == 1:
            return own
        before = ChosenEntries(self.length, self.width - 1)
        return own + self.length * (before.first(end - 1) - before.first(start - 1))

    def keys(self, t: Size, c: Size) -> Size:
        """At most `width` blocks for each query, and at most all keys."""
        return Min.of(c + t, t * self.length * self.width)


@dataclass(frozen=True)
class Chunk(Mask):
    """A query sees its own key and earlier keys in its chunk of `length` positions (Llama 4)."""

    word = "chunk"

    length: int

    @property
    def most(self) -> float:
        """The mean number of keys over the queries of a chunk."""
        return (self.length + 1) / 2

    def _whole(self, n: Size) -> Size:
        """The number of complete chunks before position `n`."""
        return ceildiv(n + 1, self.length) - 1

    def _before(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries, in complete chunks and in the current one."""
        whole, rest = self._whole(n), self.kept(n)
        return whole * (self.length * (self.length + 1)) + rest * rest + rest

    def pairs(self, t: Size, c: Size) -> Size:
        """The pairs of all queries minus those of the cached tokens."""
        return self._before(c + t) - self._before(c)

    def kept(self, c: Size) -> Size:
        """c mod length, because no future token sees a complete chunk."""
        return c - self.length * self._whole(c)

    def sees(self, query: Array, key: Array) -> Array:
        """Whether the key is in the query's chunk and not later than the query."""
        found: Array = (key <= query) & (key // self.length == query // self.length)
        return found


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` tokens, such as an image, see one another; other tokens see all earlier tokens."""

    word = "prefix"

    length: int

    def pairs(self, t: Size, c: Size) -> Size:
        """Twice the causal pairs and q·(q − 1)/2 more pairs, for q new tokens in the prefix."""
        new = Min.of(c + t, self.length) - Min.of(c, self.length)
        return Causal().pairs(t, c) + new * new - new

    def sees(self, query: Array, key: Array) -> Array:
        """Whether the key is not later than the query, or both are in the prefix."""
        found: Array = (key <= query) | ((key < self.length) & (query < self.length))
        return found


@dataclass(frozen=True)
class Alibi(Causal):
    """A causal mask with a bias on the scores: −distance · slope / √`spread`, with one slope per head.

    If the number of heads n is a power of two, the slopes are 2^(−8/n), 2^(−16/n), …. Otherwise, the slopes
    are those for the next lower power of two, followed by every second slope for the next higher power of two
    (arXiv:2108.12409).
    """

    word = "alibi"
    bias_flops = 2

    spread: int

    def bias(self, head: Array, heads: int, query: Array, key: Array) -> Array:
        """−slope · (query − key)."""
        below = 1 << heads.bit_length() - 1
        power = np.where(head < below, head + 1, head - below + 0.5)
        result: Array = 2.0 ** (-8 / below * power) / np.sqrt(self.spread) * (key - query)
        return result

    def short(self, most: int) -> Mask:
        """The mask itself, because it has no limiting size."""
        return self


@lru_cache(maxsize=256)
def mask(text: str) -> Mask:
    """Parse a mask; VerifyError for an unknown text.

    >>> str(mask("chunk( 8192 )"))
    'chunk(8192)'
    """
    try:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise TypeError(text)
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Name(id=word):
                return MASKS[word]()
            case ast.Call(func=ast.Name(id=word), args=[_, *_] as sizes, keywords=[]):
                return MASKS[word](*(ast.literal_eval(size) for size in sizes))
        raise ValueError(text)
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        forms = (str.join(", ", (f.name for f in fields(kind))) for kind in MASKS.values())
        known = (f"{word}({form})" if form else word for word, form in zip(MASKS, forms, strict=True))
        raise VerifyError(f"mask {str(text)[:_LONGEST]!r}: expected one of {', '.join(known)}") from None
