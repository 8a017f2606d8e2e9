"""Rows that are routed to experts: how many there are in all, and how many of them one rank has.

Where experts lie on several ranks and a law of `routing` gives some of them more, the ranks' shares are
uneven. The size of such a dimension is the atom `routed(n, k, E, law)`, whose value is n·k; what the busiest
rank has of it is `busiest(ranks, k, n, E, law)`.
"""

from __future__ import annotations

from .dim import Busiest, Dim, Routed, Size, ceildiv
from .errors import VerifyError
from .routing import Law


def routed(tokens: Size, chosen: Size, experts: int, by: Law) -> Size:
    """n·k rows of n `tokens` that choose k of E `experts`, to be split by expert: unevenly.

    >>> from .dim import B
    >>> from .routing import Zipf
    >>> rows = routed(B, 8, 128, Zipf(0.5))
    >>> print(rows, even(rows), most(rows, 4), most(8 * B, 4), sep=" | ")
    routed(B, 8, 128, zipf(0.5)) | 8*B | busiest(4, 8, B, 128, zipf(0.5)) | 2*B
    """
    if by.alone:
        raise VerifyError(f"routing {by}: is of one rank, whose experts cannot be laid over several")
    return Routed.of(tokens, chosen, experts, by)


def even(rows: Size) -> Size:
    """As many rows, to be split by token."""
    found = _atom(rows)
    return found.tokens * found.chosen if isinstance(found, Routed) else rows


def most(size: Size, ranks: int) -> Size:
    """The most that one of `ranks` has of a dimension: an equal share rounded up, or the busiest's rows."""
    found = _atom(size)
    if not isinstance(found, Routed):
        return ceildiv(size, ranks)
    return Busiest.of(ranks, found.chosen, found.tokens, found.experts, found.law)


def together(rows: Size, ranks: int) -> Size:
    """The rows of all `ranks`, where one has `rows`."""
    found = _atom(rows)
    return found.tokens * found.chosen if isinstance(found, Busiest) else even(rows) * ranks


def _atom(size: Size) -> object:
    """The one atom that a size is."""
    terms = size.terms if isinstance(size, Dim) else ()
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else None
