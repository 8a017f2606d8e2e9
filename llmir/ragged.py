"""Rows that are routed to experts: how many there are in all, and how many of them one rank has.

Where experts lie on several ranks and a law of `routing` gives some of them more, the ranks' shares are
uneven. The size of such a dimension is the atom `routed(n, k, E, law)`, whose value is n·k; what the busiest
rank has of it is `busiest(ranks, k, n, E, law)`.
"""

from __future__ import annotations

from .dim import Call, Dim, Size, call, ceildiv, product
from .errors import VerifyError
from .routing import CHANCE, Law


def routed(tokens: Size, chosen: Size, experts: int, by: Law) -> Size:
    """n·k rows of n `tokens` that choose k of E `experts`, to be split by expert: evenly if by chance.

    >>> from .dim import B
    >>> from .routing import Zipf
    >>> rows = routed(B, 8, 128, Zipf(0.5))
    >>> print(rows, even(rows), most(rows, 4), most(8 * B, 4), sep=" | ")
    routed(B, 8, 128, zipf(0.5)) | 8*B | busiest(4, 8, B, 128, zipf(0.5)) | 2*B
    """
    if by.alone:
        raise VerifyError(f"routing {by}: is of one rank, whose experts cannot be laid over several")
    return tokens * chosen if by == CHANCE else call("routed", tokens, chosen, experts, by)


def even(rows: Size) -> Size:
    """As many rows, to be split by token."""
    found = _atom(rows, "routed")
    return product(found.sizes[:2]) if found else rows


def most(size: Size, ranks: int) -> Size:
    """The most that one of `ranks` has of a dimension: an equal share rounded up, or the busiest's rows."""
    found = _atom(size, "routed")
    if not found:
        return ceildiv(size, ranks)
    tokens, chosen, experts, by = found.arguments
    return call("busiest", ranks, chosen, tokens, experts, by)


def together(rows: Size, ranks: int) -> Size:
    """The rows of all `ranks`, where one has `rows`."""
    found = _atom(rows, "busiest")
    return product(found.sizes[1:3]) if found else even(rows) * ranks


def _atom(size: Size, function: str) -> Call | None:
    """The call of `function` that a size is."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        (monomial, coefficient) = size.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            (atom,) = monomial
            if isinstance(atom, Call) and atom.function == function:
                return atom
    return None
