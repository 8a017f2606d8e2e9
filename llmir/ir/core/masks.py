"""Attention masks as values: which keys a query sees.

Attention ops, caches and kernels take a mask by its text. `t` new tokens of a sequence follow `c` cached
ones, and each new token has a query and a key at its position. A mask counts pairs and keys as sizes, and
says in NumPy which query sees which key.

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
_LONGEST = 60  # characters of a mask's text
_MOST = 1 << 48  # as of the dimensions of tensors


@dataclass(frozen=True)
class Mask(ABC):
    """Which keys each query sees; its fields are its sizes, `word(sizes)` its text.

    A kernel is told that each query sees `step` keys more than the one before, and `most` at most.
    """

    word: ClassVar[str] = ""
    step: ClassVar[int] = 1
    bias_flops: ClassVar[int] = 0  # per pair, of what it adds to scores

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
        """The most keys that a query sees, however many there are."""
        return np.inf

    @abstractmethod
    def pairs(self, t: Size, c: Size) -> Size:
        """Twice the pairs of a query and a key that it sees (twice, so that half a square stays whole)."""

    def kept(self, c: Size) -> Size:
        """Of `c` cached tokens, the last so many are seen by tokens to come: what a cache has to keep."""
        return c

    def keys(self, t: Size, c: Size) -> Size:
        """The keys that some query sees: those kept, and the new ones."""
        return self.kept(c) + t

    def positions(self, keys: int, end: int) -> Array:
        """Where so many keys lie, of a sequence of `end` tokens: the last of them."""
        return np.arange(end - keys, end)

    @abstractmethod
    def sees(self, query: Array, key: Array) -> Array:
        """Whether the query at a position sees the key at one; positions broadcast together."""

    def bias(self, head: Array, heads: int, query: Array, key: Array) -> Array:
        """What is added to the scores of a head, of so many, and a pair it sees; all broadcast together."""
        return np.zeros(())

    def short(self, most: int) -> Mask:
        """The same of sizes up to `most`, for programs on short axes."""
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
        """Always."""
        return np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees its own key and those before."""

    word = "causal"

    def pairs(self, t: Size, c: Size) -> Size:
        """2·(T·C + T·(T+1)/2)."""
        return 2 * t * c + t * t + t

    def sees(self, query: Array, key: Array) -> Array:
        """No later key."""
        found: Array = key <= query
        return found


@dataclass(frozen=True)
class Window(Mask):
    """A query sees the last `width` keys up to its own; a cache keeps width − 1 (arXiv:2310.06825)."""

    word = "window"

    width: int

    @property
    def most(self) -> float:
        """Its width."""
        return self.width

    def _before(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries: the first `width` see one key more each, others all."""
        growing = Min.of(n, self.width)
        return growing * growing + growing + 2 * (n - growing) * self.width

    def pairs(self, t: Size, c: Size) -> Size:
        """Those of all queries up to the last, less those of the cached ones."""
        return self._before(c + t) - self._before(c)

    def kept(self, c: Size) -> Size:
        """A new token sees one key less of those before it than the window has."""
        return Min.of(c, self.width - 1)

    def sees(self, query: Array, key: Array) -> Array:
        """No later key, and none further back than the window."""
        found: Array = (key <= query) & (key > query - self.width)
        return found


class Selected(Window):
    """As many keys as of a window, up to a query's own, but chosen by what is in them: all are kept.

    No positions say which; an op that has it is told.
    """

    word = ""  # of no mask's text

    def kept(self, c: Size) -> Size:
        """Any may be chosen."""
        return c

    def keys(self, t: Size, c: Size) -> Size:
        """So many for each query, at most, and no more than there are."""
        return Min.of(c + t, t * self.width)


@dataclass(frozen=True)
class Entries(Causal):
    """Of every `stride` tokens there is one entry, which the queries from its last token on see."""

    word = ""  # of no mask's text

    stride: int

    def first(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries: the j-th sees ⌊j / stride⌋."""
        whole = self.kept(n)
        return whole * (2 * n - self.stride * (whole + 1) + 2)

    def pairs(self, t: Size, c: Size) -> Size:
        """Those of all queries up to the last, less those of the cached ones."""
        return self.first(c + t) - self.first(c)

    def kept(self, c: Size) -> Size:
        """One for each stride that is whole."""
        return ceildiv(c + 1, self.stride) - 1

    def keys(self, t: Size, c: Size) -> Size:
        """All there are after the step."""
        return self.kept(c + t)

    def positions(self, keys: int, end: int) -> Array:
        """That of the last token of each."""
        return (np.arange(keys) + 1) * self.stride - 1


@dataclass(frozen=True)
class ChosenEntries(Entries):
    """Of those entries, `width` for each query at most, by what is in them: an op that has it is told."""

    word = ""

    width: int

    @property
    def most(self) -> float:
        """Its width."""
        return self.width

    def first(self, n: Size) -> Size:
        """As many as there are up to the query that sees `width`, from there on that many."""
        few = Min.of(n, self.width * self.stride)
        return super().first(few) + 2 * self.width * (n - few)

    def keys(self, t: Size, c: Size) -> Size:
        """So many for each query, and no more than there are."""
        return Min.of(self.kept(c + t), t * self.width)


@dataclass(frozen=True)
class ChosenBlocks(Causal):
    """Of blocks of `length` keys a query sees its own up to itself, and `width` − 1 chosen before it.

    No positions say which; an op that has it is told.
    """

    word = ""

    length: int
    width: int

    @property
    def most(self) -> float:
        """All of its blocks."""
        return self.length * self.width

    def pairs(self, t: Size, c: Size) -> Size:
        """Those of its own block, and those before, up to the query that sees all that are chosen."""
        end, start = c + t, c
        own = Chunk(self.length).pairs(t, c)
        if self.width == 1:
            return own
        before = ChosenEntries(self.length, self.width - 1)
        return own + self.length * (before.first(end - 1) - before.first(start - 1))

    def keys(self, t: Size, c: Size) -> Size:
        """So many for each query, at most, and no more than there are."""
        return Min.of(c + t, t * self.length * self.width)


@dataclass(frozen=True)
class Chunk(Mask):
    """A query sees the keys up to its own in its chunk of `length` positions (Llama 4)."""

    word = "chunk"

    length: int

    @property
    def most(self) -> float:
        """The mean over a chunk."""
        return (self.length + 1) / 2

    def _whole(self, n: Size) -> Size:
        """How many whole chunks there are before position `n`."""
        return ceildiv(n + 1, self.length) - 1

    def _before(self, n: Size) -> Size:
        """Twice the pairs of the first `n` queries: those of whole chunks, and of the one begun."""
        whole, rest = self._whole(n), self.kept(n)
        return whole * (self.length * (self.length + 1)) + rest * rest + rest

    def pairs(self, t: Size, c: Size) -> Size:
        """Those of all queries up to the last, less those of the cached ones."""
        return self._before(c + t) - self._before(c)

    def kept(self, c: Size) -> Size:
        """C mod length: a whole chunk is seen by no later token."""
        return c - self.length * self._whole(c)

    def sees(self, query: Array, key: Array) -> Array:
        """No later key, and none of another chunk."""
        found: Array = (key <= query) & (key // self.length == query // self.length)
        return found


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` tokens, such as an image's, see one another; all others see what came before."""

    word = "prefix"

    length: int

    def pairs(self, t: Size, c: Size) -> Size:
        """Causal pairs, and of the q new tokens of the prefix q·(q − 1)/2 more."""
        new = Min.of(c + t, self.length) - Min.of(c, self.length)
        return Causal().pairs(t, c) + new * new - new

    def sees(self, query: Array, key: Array) -> Array:
        """No later key, but within the prefix."""
        found: Array = (key <= query) | ((key < self.length) & (query < self.length))
        return found


@dataclass(frozen=True)
class Alibi(Causal):
    """As causal; scores fall by the distance of the two times the head's slope over √`spread`.

    Slopes of n heads, a power of two, are 2^(−8/n), 2^(−16/n) …; others take first those of the power of two
    below, then every second of the one above (arXiv:2108.12409).
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
        """Itself: it leaves nothing out."""
        return self


@lru_cache(maxsize=256)
def mask(text: str) -> Mask:
    """The mask that prints as `text`; VerifyError if none does.

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
