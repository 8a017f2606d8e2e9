"""Routing whose loads are dealt out: evenly, or so behind a router or an exchange."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError

from .routing_laws import Array, Law, alike, fullest, whole

HALVES = 40  # until one number is left of as many as all ranks may have tokens


@dataclass(frozen=True)
class Even(Law):
    """Rows are dealt out to experts like cards: all have as many, and few rows touch as many experts.

    >>> Even().busiest(8, 8, 4096, 128), Even().distinct(16, 8, 4, 128)
    (4096, 4)
    """

    word: ClassVar[str] = "even"

    @property
    def about(self) -> str:
        """As a report says it."""
        return "rows are dealt out evenly to experts"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """An equal share of each expert, rounded up."""
        held = fullest(experts, ranks)
        return namespace(tokens).ceildiv(tokens * chosen * held, experts)

    def popularity(self, chosen: int, experts: int) -> Array:
        """All alike."""
        return alike(chosen, experts)

    def noise(self, chances: Array) -> Array:
        """None."""
        return 0 * chances

    def touched(self, chance: float, tokens: Number) -> Number:
        """As soon as there is a row for it."""
        return namespace(tokens).minimum(tokens * chance, 1.0)

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The copies of a token are dealt to as many ranks as there are copies, or ranks."""
        return namespace(tokens).ceildiv(tokens * min(chosen, ranks), ranks)

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """An expert for each row, while there are any left."""
        xp = namespace(tokens)
        return xp.minimum(xp.ceildiv(tokens * chosen * held, experts), held)


@dataclass(frozen=True)
class Groups(Law):
    """Scores dealt out evenly, before a router that keeps to the better half of the groups of experts.

    All groups are worth as much then, so it takes the first half. There each token finds half of its experts;
    for the other half no expert is worth anything, and all tokens take the first ones.

    >>> [Groups().busiest(ranks, 8, 4096, 256) for ranks in (8, 1)]
    [20480, 32768]
    >>> [Groups().distinct(held, 8, 4096, 256) for held in (32, 256)]
    [32, 128.0]
    """

    word: ClassVar[str] = "groups"

    @property
    def about(self) -> str:
        """As a report says it."""
        return "half of the groups of experts get all rows, the first experts most"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """Of the first rank: its share of what is found, and what all take."""
        held = min(fullest(experts, ranks), experts / 2)
        rows = tokens * chosen * held / experts + tokens * min(chosen / 2, held)
        return whole(namespace(tokens).minimum(rows, tokens * min(chosen, held)))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """Experts that the rows touch, if each row finds another one."""
        most = min(held, experts / 2)
        found = tokens * chosen * most / experts + min(chosen / 2, most)
        return namespace(tokens).minimum(found, most) * (tokens > 0)


@dataclass(frozen=True)
class Arrived(Law):
    """Of one of `ranks`, given the tokens of which it has an expert, with all of their copies.

    Those for experts of other ranks are multiplied by the first of its own. Of all tokens, as many arrive as
    `law` has rows for the rank, but each once.

    >>> law = Arrived(32, Even())
    >>> law.busiest(1, 8, 1024, 4), law.distinct(4, 8, 2, 4)
    (8192, 2)
    """

    word: ClassVar[str] = "arrived"
    alone: ClassVar[bool] = True

    ranks: int
    law: Law

    def __post_init__(self) -> None:
        if isinstance(self.ranks, bool) or not isinstance(self.ranks, int) or self.ranks < 1:
            raise VerifyError(f"{self.word}: ranks is {self.ranks}, expected an integer from 1 up")
        if not isinstance(self.law, Law):
            raise VerifyError(f"{self.word}: expected a law for all ranks, got {self.law}")

    @property
    def about(self) -> str:
        """As a report says it."""
        return "copies for experts of other ranks go to the first of this one"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """All copies."""
        return tokens * chosen

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """Those that all tokens touch here: the fewest tokens of which so many arrive."""
        experts, xp = experts * self.ranks, namespace(tokens)
        below, enough = 1.0 * tokens - 1, 1.0 * tokens * self.ranks
        for _ in range(HALVES):
            middle = xp.ceil((below + enough) / 2)
            arrive = self.law.busiest(self.ranks, chosen, middle, experts) >= tokens
            below, enough = xp.where(arrive, below, middle), xp.where(arrive, middle, enough)
        return self.law.distinct(held, chosen, enough, experts)
