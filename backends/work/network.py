"""How long it takes to send: the fastest of the known algorithms, at this size and over these links.

A rank that sends s bytes over h hops takes h·latency + s/bandwidth (Thakur, Rabenseifner & Gropp 2005,
section 3). All its links are busy at once, as a pipeline of chunks keeps them, and the slowest decides. That
makes it a lower bound, as does a latency that nobody has published, which is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

from llmir.backends.tape.outside import outside, usual
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.hw.device import Device
from llmir.hw.link import Link
from llmir.ir.sizes.atoms import ceildiv, maximum, minimum
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .limit import Limit
from .nodes import split


@dataclass(frozen=True)
class Algorithm:
    """A way to do a collective among n ranks: hops one after another, and bytes that a rank sends of each.

    `direct` ones send to all others at once, `reduces` ones need a fabric that adds up. Where half of an
    algorithm leaves each rank with a piece of its own (`pieces`), those can go on to other nodes.
    """

    name: str
    hops: Callable[[int], int]
    share: Callable[[int], Fraction]
    direct: bool = False
    reduces: bool = False
    pieces: bool = True

    def runs_on(self, link: Link, ranks: int) -> bool:
        """Whether it is possible over this link; two ranks always reach each other."""
        return (link.direct or ranks == 2 or not self.direct) and (link.reduces or not self.reduces)


def _others(n: int) -> Fraction:
    return Fraction(n - 1, n)


# A ring passes pieces on, n−1 times to reduce and n−1 times to gather them (Thakur et al. 2005, sections 4.1
# and 4.3; Patarasuk & Yuan 2009).
RING = Algorithm("ring", lambda n: n - 1, _others)
RING_SUM = Algorithm("ring", lambda n: 2 * (n - 1), lambda n: 2 * _others(n))
# Half of it up and down each of two binary trees. A rank is a leaf of one and within the other, so that it
# sends a half to two parents and to two children (Sanders, Speck & Träff 2009; NCCL since 2.4).
TREE = Algorithm("tree", lambda n: 2 * (n - 1).bit_length(), lambda n: Fraction(2), pieces=False)
# Pieces go straight to where they belong: step by step (Thakur et al. 2005, "pairwise exchange"), or at once.
PAIRWISE = Algorithm("pairwise", lambda n: n - 1, _others)
DIRECT = Algorithm("direct", lambda n: 1, _others, direct=True)
# Everything to everyone, or a piece to each and the sums back, as serving engines' own kernels do (1stage and
# 2stage in vLLM's custom_all_reduce.cuh, ONESHOT and TWOSHOT in TensorRT-LLM).
ONE_SHOT = Algorithm("one-shot", lambda n: 1, lambda n: Fraction(n - 1), direct=True, pieces=False)
TWO_SHOT = Algorithm("two-shot", lambda n: 2, lambda n: 2 * _others(n), direct=True)
# Switches add up what goes in and send the sum to all: each rank sends its payload once (SHARP, Graham et al.
# 2016; NVLS in NCCL since 2.17). One hop to the sums, one back.
IN_NETWORK = Algorithm("in-network", lambda n: 2, lambda n: Fraction(1), reduces=True)
# From one to another.
SEND = Algorithm("send", lambda n: 1, lambda n: Fraction(1))

ALGORITHMS = {
    "all_reduce": (RING_SUM, TREE, ONE_SHOT, TWO_SHOT, IN_NETWORK),
    "reduce_scatter": (RING, DIRECT),
    "all_gather": (RING, DIRECT),
    "all_to_all": (PAIRWISE, DIRECT),
}


class Span(NamedTuple):
    """A link at hand: its name, the device's key for it, and what it does."""

    name: str
    constant: str
    link: Link


class Leg(NamedTuple):
    """What a rank sends over one link: `share` of the payload."""

    span: Span
    share: Fraction

    @property
    def pace(self) -> float:
        """Seconds for each byte of payload."""
        return float(self.share) / self.span.link.Bps

    def bytes(self, payload: Size) -> Size:
        """The bytes themselves, rounded up."""
        return ceildiv(self.share.numerator * payload, self.share.denominator)


@dataclass(frozen=True)
class Way:
    """An algorithm over the links at hand: seconds that it takes however little is sent, and what is sent."""

    name: str
    latency_s: float
    legs: tuple[Leg, ...]

    @cached_property
    def pace(self) -> float:
        """Seconds for each byte of payload, over the slowest link."""
        return reduce(maximum, (leg.pace for leg in self.legs))

    @property
    def slowest(self) -> Leg:
        """The leg that takes longest."""
        return max(self.legs, key=lambda leg: float(usual(leg.pace)))

    def time(self, payload: Number) -> Number:
        """Seconds."""
        return self.latency_s + payload * self.pace


@dataclass(frozen=True)
class Exchange(Limit):
    """A payload that goes between ranks in the way that is fastest at its size.

    `amount` is the payload, and `rate` how fast it goes in the end, when it is large.
    """

    ways: tuple[Way, ...]

    def fastest(self, at: Binding) -> Way:
        """The way that is taken at one point."""
        payload = at(self.amount)
        return min(self.ways, key=lambda way: float(way.time(payload)))

    def time(self, at: Binding) -> Number:
        """Seconds, of the fastest way at each point."""
        payload = at(self.amount)
        best = self.ways[0].time(payload)
        for way in self.ways[1:]:
            best = minimum(best, way.time(payload))
        return best

    def below(self, other: Limit) -> bool:
        """Never for sure: even nothing at all takes a hop."""
        return False


def exchange(device: Device, opcode: str, payload: Size, group: tuple[int, ...]) -> Exchange:
    """The limit that sending puts on an op; HardwareError if no link joins the group."""
    found = ways(device, opcode, group)
    large = found[-1]
    over = " and ".join(leg.span.name for leg in large.legs)
    constant = large.slowest.span.constant
    return Exchange("network", payload, 1 / large.pace, f"bytes over {over}", constant, found)


@lru_cache(maxsize=1 << 12)
def ways(device: Device, opcode: str, group: tuple[int, ...]) -> tuple[Way, ...]:
    """The ways fastest at some size, from small to large; HardwareError if nothing joins the group."""
    algorithms = ALGORITHMS.get(opcode, (SEND,))
    inside, nodes = split(device, group)
    ranks = len(inside)
    if nodes == 1:
        return fastest(_alone(algorithms, _link(device, inside), ranks))
    if ranks == 1:
        return fastest(_alone(algorithms, network_of(device), nodes))
    near, far = _link(device, inside), network_of(device)
    # Of an exchange every piece is someone's own; of all else a rank takes one of the pieces of its node.
    piece = Fraction(1) if opcode == "all_to_all" else Fraction(1, ranks)
    at_once = _to_all(algorithms, near, ranks, far, nodes)
    return fastest([*at_once, *_in_steps(algorithms, near, ranks, far, nodes, piece)])


def fastest(found: Iterable[Way]) -> tuple[Way, ...]:
    """The lower envelope of the lines latency + pace · payload, by the payload from which each is fastest.

    All lines where paces are told later.
    """
    kept: list[Way] = []
    lines = sorted(found, key=lambda w: (w.latency_s, usual(w.pace)))
    if any(outside(way.pace) for way in lines):
        return tuple(sorted(lines, key=lambda w: -usual(w.pace)))
    for way in lines:
        if kept and way.pace >= kept[-1].pace:
            continue
        while len(kept) > 1 and crossing(kept[-2], way) <= crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(way)
    return tuple(kept)


def crossing(small: Way, large: Way) -> float:
    """The payload from which `large` is faster."""
    return (large.latency_s - small.latency_s) / (small.pace - large.pace)


def _link(device: Device, ranks: tuple[int, ...]) -> Span:
    name, link = device.link_of(ranks)
    return Span(name, f"links.{name}", link)


def network_of(device: Device) -> Span:
    """What joins its node to others; HardwareError if nothing does."""
    network = device.node.network if device.node else None
    if network is None:
        raise HardwareError(
            f"{device.name} has no network that joins several nodes; a cluster as hw has, such as dgx-h100"
        )
    return Span("network", "node.network", network)


def _alone(algorithms: Iterable[Algorithm], over: Span, n: int) -> Iterator[Way]:
    """Each algorithm that is possible, over one link."""
    for a in algorithms:
        if a.runs_on(over.link, n):
            yield Way(a.name, a.hops(n) * over.link.latency_s, (Leg(over, a.share(n)),))


def _in_steps(
    algorithms: Iterable[Algorithm], near: Span, ranks: int, far: Span, nodes: int, piece: Fraction
) -> Iterator[Way]:
    """Within each node, and half-way through among the ranks of all nodes that hold the same piece."""
    across = list(_alone(algorithms, far, nodes))
    for inner in _alone([a for a in algorithms if a.pieces], near, ranks):
        for outer in across:
            legs = (*inner.legs, *(leg._replace(share=leg.share * piece) for leg in outer.legs))
            name = f"{inner.name} inside, {outer.name} across"
            yield Way(name, inner.latency_s + outer.latency_s, legs)


def _to_all(algorithms: Iterable[Algorithm], near: Span, ranks: int, far: Span, nodes: int) -> Iterator[Way]:
    """Every rank to all others at once, wherever they are."""
    n = ranks * nodes
    latency_s = max(near.link.latency_s, far.link.latency_s)
    for a in algorithms:
        if a.direct and a.runs_on(near.link, ranks) and a.runs_on(far.link, n):
            each = a.share(n) / (n - 1)
            legs = (Leg(near, each * (ranks - 1)), Leg(far, each * (n - ranks)))
            yield Way(f"{a.name} to all", a.hops(n) * latency_s, legs)
