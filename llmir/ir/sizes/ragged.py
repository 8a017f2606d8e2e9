"""Sizes of rows that are routed to experts: their total, and the part of one rank.

If a routing law loads some experts more, the shares of the ranks are uneven. Such a dimension has the size
`routed(n, k, E, law)`, whose value is n·k; the busiest rank has `busiest(ranks, k, n, E, law)` of it. Tokens
that are sent once to each rank with one of their experts have the size `sent(n, k, E, law)`, and the busiest
rank receives `reached(ranks, k, n, E, law)`.
"""

from __future__ import annotations

from llmir.base.errors import VerifyError

from .polynomial import Atom, Busiest, Dim, Reached, Routed, Sent, Size, ceildiv, product
from .routing_laws import Law


def routed(tokens: Size, chosen: Size, experts: int, by: Law) -> Size:
    """n·k rows of n `tokens` that choose k of E `experts`, to be split by expert: unevenly.

    >>> from llmir.ir.sizes.polynomial import B
    >>> from llmir.ir.sizes.routing_laws import Zipf
    >>> rows = routed(B, 8, 128, Zipf(0.5))
    >>> print(rows, even(rows), most(rows, 4), most(8 * B, 4), sep=" | ")
    routed(B, 8, 128, zipf(0.5)) | 8*B | busiest(4, 8, B, 128, zipf(0.5)) | 2*B
    """
    return Routed.of(everyone(tokens), chosen, experts, _of_all(by))


def sent(tokens: Size, chosen: Size, experts: int, by: Law) -> Size:
    """Tokens that are sent to the ranks of their experts, each once per rank.

    >>> from llmir.ir.sizes.polynomial import B
    >>> from llmir.ir.sizes.routing_laws import CHANCE
    >>> tokens = sent(B, 8, 128, CHANCE)
    >>> print(tokens, everyone(tokens), most(tokens, 4), sep=" | ")
    sent(B, 8, 128) | B | reached(4, 8, B, 128)
    """
    return Sent.of(tokens, chosen, experts, _of_all(by))


def everyone(tokens: Size) -> Size:
    """All tokens, given those that were sent to ranks."""
    found = _atom(tokens)
    return found.tokens if isinstance(found, Sent) else tokens


def to_ports(size: Size, ports: int) -> Size:
    """The part of a rank's received bytes per port of its node, if a token is sent to each node once.

    >>> from llmir.ir.sizes.polynomial import B
    >>> from llmir.ir.sizes.routing_laws import CHANCE
    >>> print(to_ports(7 * most(sent(B, 8, 256, CHANCE), 32), 8), "|", to_ports(7 * B, 8))
    ceildiv(7*reached(4, 8, B, 256), 8) | 7*B
    """
    reached = {
        f for m, _ in (size.terms if isinstance(size, Dim) else ()) for f in m if isinstance(f, Reached)
    }
    for rank in reached:
        if rank.ranks % ports == 0:
            node = Reached.of(rank.ranks // ports, rank.chosen, rank.tokens, rank.experts, rank.law)
            size = _instead(size, rank, node)
    return ceildiv(size, ports) if reached else size


def _instead(size: Size, old: Atom, new: Size) -> Size:
    terms = size.terms if isinstance(size, Dim) else ()
    factors = ((c, [new if f == old else Dim((((f,), 1),)) for f in m]) for m, c in terms)
    return sum((c * product(each) for c, each in factors), start=0)


def _of_all(by: Law) -> Law:
    if by.alone:
        raise VerifyError(f"routing {by}: describes one rank, whose experts cannot be sharded")
    return by


def even(rows: Size) -> Size:
    """The same number of rows, split evenly by token."""
    found = _atom(rows)
    return found.tokens * found.chosen if isinstance(found, Routed) else rows


def most(size: Size, ranks: int) -> Size:
    """The largest part of a dimension on one of `ranks`: an equal share rounded up, or the rows of the
    busiest rank.
    """
    found = _atom(size)
    if not isinstance(found, (Routed, Sent)):
        return ceildiv(size, ranks)
    busiest = Busiest if isinstance(found, Routed) else Reached
    return busiest.of(ranks, found.chosen, found.tokens, found.experts, found.law)


def together(rows: Size, ranks: int) -> Size:
    """The rows of all `ranks`, where one has `rows`."""
    found = _atom(rows)
    return found.tokens * found.chosen if isinstance(found, Busiest) else even(rows) * ranks


def _atom(size: Size) -> object:
    """The only atom of a size."""
    terms = size.terms if isinstance(size, Dim) else ()
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else None
