"""What it takes to send: closed forms of each algorithm, and never more than what was measured."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import llmir
from llmir.backends.work.network import (
    ALGORITHMS,
    CollectiveRoute,
    LinkOption,
    LinkShare,
    collective_routes,
    crossing,
    fastest,
    network_limit,
)
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.link import Link, MachineNode
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim

MEASURED = Path(__file__).parents[4] / "shared" / "measured" / "collective.csv"
GB, US = 1e9, 1e-6


def device(inside: Link, network: Link | None = None, per_node: int | None = None) -> Device:
    node = MachineNode("box", per_node, network) if per_node else None
    return Device("X", {"fp32": 1e15}, 1 << 40, 1e18, links={"inside": inside}, node=node)


def seconds(on: Device, opcode: str, payload: float, ranks: int) -> float:
    return float(network_limit(on, opcode, Dim.symbol("P"), tuple(range(ranks))).time(Binding(P=payload)))


def named(on: Device, opcode: str, ranks: int) -> dict[str, CollectiveRoute]:
    return {way.name: way for way in collective_routes(on, opcode, tuple(range(ranks)))}


# --- one link ------------------------------------------------------------------------------------

PLAIN = Link(10 * GB, 1 * US)
SWITCH = Link(10 * GB, 1 * US, direct=True)
ADDS_UP = Link(10 * GB, 1 * US, direct=True, reduces=True)


@pytest.mark.parametrize(
    ("link", "opcode", "ranks", "payload", "microseconds"),
    [
        (PLAIN, "all_reduce", 8, 80e6, 14 + 14000),  # ring: 14 hops, 7/4 of 8 ms
        (PLAIN, "all_reduce", 8, 8000, 6 + 1.6),  # tree: up and down three levels, 2 of 0.8 µs
        (PLAIN, "all_reduce", 5, 0, 6),  # three levels for five ranks as well
        (PLAIN, "all_reduce", 2, 10e6, 1 + 1000),  # a pair: everything, at once
        (PLAIN, "all_gather", 4, 40e6, 3 + 3000),
        (PLAIN, "reduce_scatter", 4, 40e6, 3 + 3000),
        (PLAIN, "all_to_all", 4, 40e6, 3 + 3000),
        (SWITCH, "all_reduce", 8, 800, 1 + 0.56),  # one-shot: 7 times 80 ns
        (SWITCH, "all_reduce", 8, 80e6, 2 + 14000),  # two-shot
        (SWITCH, "all_gather", 4, 40e6, 1 + 3000),
        (SWITCH, "reduce_scatter", 4, 40e6, 1 + 3000),
        (SWITCH, "all_to_all", 4, 40e6, 1 + 3000),
        (ADDS_UP, "all_reduce", 8, 80e6, 2 + 8000),  # the payload once
        (ADDS_UP, "all_reduce", 8, 800, 1 + 0.56),
        (ADDS_UP, "all_gather", 4, 40e6, 1 + 3000),
        (PLAIN, "send", 2, 10e6, 1 + 1000),
    ],
)
def test_closed_forms(link: Link, opcode: str, ranks: int, payload: float, microseconds: float) -> None:
    assert seconds(device(link), opcode, payload, ranks) == pytest.approx(microseconds * US, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("link", "names", "payload"),
    [
        # Where 1 hop + 7 P = 2 hops + 7/4 P, hops of 1 µs, P at 10 GB/s.
        (SWITCH, ["one-shot", "two-shot"], 10e3 / Fraction(21, 4)),
        (ADDS_UP, ["one-shot", "in-network"], 10e3 / 6),
        # Where 6 hops + 2 P = 14 hops + 7/4 P.
        (PLAIN, ["tree", "ring"], 8 * 10e3 * 4),
    ],
)
def test_what_is_fastest_changes_with_size(link: Link, names: list[str], payload: float) -> None:
    small, large = collective_routes(device(link), "all_reduce", tuple(range(8)))
    assert [small.name, large.name] == names
    assert crossing(small, large) == pytest.approx(float(payload), rel=1e-12, abs=0)
    for near, best in ((0.99, small), (1.01, large)):
        limit = network_limit(device(link), "all_reduce", Dim.symbol("P"), tuple(range(8)))
        assert limit.fastest(Binding(P=float(payload) * near)).name == best.name


@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(2, 64),
    st.floats(0, 1e10),
    st.tuples(*[st.booleans()] * 2),
    st.floats(0, 1e-5),
)
def test_time_is_the_least_of_all_algorithms_and_latency_only_adds(
    opcode: str, ranks: int, payload: float, can: tuple[bool, bool], latency_s: float
) -> None:
    link = Link(1e10, latency_s, None, *can)
    brute = min(
        a.hops(ranks) * latency_s + float(a.share(ranks)) * payload / 1e10
        for a in ALGORITHMS[opcode]
        if (not a.direct or link.direct or ranks == 2) and (not a.reduces or link.reduces)
    )
    found = seconds(device(link), opcode, payload, ranks)
    assert found == pytest.approx(brute, rel=1e-9, abs=0)
    assert found >= seconds(device(Link(1e10, 0.0, None, *can)), opcode, payload, ranks)
    grid = network_limit(device(link), opcode, Dim.symbol("P"), tuple(range(ranks)))
    assert grid.time(Binding(P=np.array([payload, 0.0])))[0] == pytest.approx(found, rel=1e-12, abs=0)


LINES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=8)


@example([(0, 9), (1, 8), (10, 1)], 0.5)
@example([(0, 3), (1, 2), (2, 1)], 0.5)
@given(LINES, st.floats(0, 1e3))
def test_the_ways_kept_are_the_lower_envelope(lines: list[tuple[int, int]], payload: float) -> None:
    """At no size is one faster that was left out, and each that is kept is the only fastest somewhere."""
    span = LinkOption("l", "links.l", Link(1.0, 0.0))
    made = [CollectiveRoute(f"{s} {p}", float(s), (LinkShare(span, Fraction(p)),)) for s, p in lines]
    kept = fastest(made)
    assert min(w.time(payload) for w in kept) == min(s + p * payload for s, p in lines)
    borders = [0.0, *(crossing(a, b) for a, b in pairwise(kept)), float("inf")]
    for way, (start, end) in zip(kept, pairwise(borders), strict=True):
        assert start < end
        inside = start + 1 if end == float("inf") else (start + end) / 2
        assert all(way.time(inside) < other.time(inside) for other in kept if other is not way)


@given(st.integers(2, 64), st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 10**6))
def test_what_a_rank_sends_is_whole_bytes(ranks: int, opcode: str, payload: int) -> None:
    for way in collective_routes(device(ADDS_UP), opcode, tuple(range(ranks))):
        [leg] = way.legs
        sent = leg.bytes(payload)
        assert sent - 1 < leg.share * payload <= sent


@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 64))
def test_a_large_payload_goes_at_the_rate_that_is_stated(opcode: str, ranks: int) -> None:
    limit = network_limit(device(ADDS_UP), opcode, Dim.symbol("P"), tuple(range(ranks)))
    assert 1e15 / limit.time(Binding(P=1e15)) == pytest.approx(limit.rate, rel=1e-6)
    assert limit.below(limit) is False


# --- across nodes --------------------------------------------------------------------------------

FAR = Link(1 * GB, 5 * US)


@pytest.mark.parametrize(("inside", "nodes"), [(8, 3), (8, 16), (4, 3), (2, 5), (1, 4)])
def test_an_all_reduce_across_nodes_by_hand(inside: int, nodes: int) -> None:
    """Reduce_scatter inside, all_reduce of a piece across, all_gather inside."""
    n, payload = inside * nodes, 1e9
    found = named(device(PLAIN, FAR, inside), "all_reduce", n)
    way = found["ring" if inside == 1 else "ring inside, ring across"]
    hops = 2 * (inside - 1) * 1 * US + 2 * (nodes - 1) * 5 * US
    assert way.latency_s == pytest.approx(hops, rel=1e-12, abs=0)
    sent = {leg.span.name: leg.share for leg in way.legs}
    assert sent["network"] == Fraction(2 * (nodes - 1), nodes * inside)
    assert sent.get("inside", 0) == Fraction(2 * (inside - 1), inside)
    slowest = max(float(sent["network"]) / GB, float(sent.get("inside", 0)) / (10 * GB))
    assert way.time(payload) == pytest.approx(hops + payload * slowest, rel=1e-12, abs=0)


@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 16), st.integers(2, 16))
def test_bytes_are_conserved_across_nodes(opcode: str, inside: int, nodes: int) -> None:
    """In steps, all ranks together send what those of one flat ring do, and each node sends least outside."""
    n = inside * nodes
    for name, way in named(device(SWITCH, Link(GB, 0.0, direct=True), inside), opcode, n).items():
        sent = sum(leg.share for leg in way.legs)
        away = sum(leg.share for leg in way.legs if leg.span.name == "network")
        rounds = 2 if opcode == "all_reduce" else 1
        if "one-shot" in name:
            continue  # sends more, to save hops
        if opcode == "all_to_all" or "to all" in name:
            assert sent == rounds * Fraction(n - 1, n)
        else:
            assert n * sent == rounds * (n - 1)
            assert inside * away == rounds * Fraction(nodes - 1, nodes)


@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(2, 16),
    st.integers(2, 16),
    st.floats(0, 1e10),
    st.booleans(),
)
def test_steps_over_nodes_take_no_longer_than_a_ring_over_the_network(
    opcode: str, inside: int, nodes: int, payload: float, direct: bool
) -> None:
    far = Link(5 * GB, 4 * US, direct=direct)
    flat = seconds(device(Link(5 * GB, 4 * US)), opcode, payload, inside * nodes)
    found = seconds(
        device(Link(50 * GB, 1 * US, direct=direct), far, inside), opcode, payload, inside * nodes
    )
    if opcode != "all_reduce" or payload > 1e7:  # a tree over all ranks has fewer hops than two rings
        assert found <= flat * (1 + 1e-12)


@pytest.mark.parametrize("near_s", [1 * US, 9 * US])
@pytest.mark.parametrize("can", [(True, True), (True, False), (False, True)])
def test_everyone_is_sent_to_at_once_only_where_both_links_are_direct(
    near_s: float, can: tuple[bool, bool]
) -> None:
    """One hop over the slower of the two, with 3 of 15 other ranks inside and 12 outside."""
    near, far = Link(10 * GB, near_s, direct=can[0]), Link(1 * GB, 5 * US, direct=can[1])
    found = {
        way.name: way
        for payload in (0.0, 1e3, 1e6, 1e12)
        for way in [
            network_limit(device(near, far, 4), "all_to_all", Dim.symbol("P"), tuple(range(16))).fastest(
                Binding(P=payload)
            )
        ]
    }
    at_once = found.get("direct to all")
    assert (at_once is not None) == all(can)
    if at_once:
        assert at_once.latency_s == max(near_s, 5 * US)
        assert {leg.span.name: leg.share for leg in at_once.legs} == {
            "inside": Fraction(3, 16),
            "network": Fraction(12, 16),
        }


@given(st.integers(2, 16), st.integers(2, 16))
def test_an_exchange_in_steps_sends_everything_that_is_for_other_nodes(inside: int, nodes: int) -> None:
    """(nodes − 1) of `nodes` parts of the payload, and inside a node (inside − 1) of `inside`."""
    for way in collective_routes(device(PLAIN, FAR, inside), "all_to_all", tuple(range(inside * nodes))):
        sent = {leg.span.name: leg.share for leg in way.legs}
        if "to all" not in way.name:
            assert sent == {"inside": Fraction(inside - 1, inside), "network": Fraction(nodes - 1, nodes)}


def test_the_network_adds_up_only_where_it_says_so() -> None:
    adds = Link(1 * GB, 5 * US, direct=True, reduces=True)
    large = collective_routes(device(SWITCH, adds, 8), "all_reduce", tuple(range(32)))[-1]
    assert large.name == "two-shot inside, in-network across"
    assert {leg.span.name: leg.share for leg in large.legs}["network"] == Fraction(1, 8)


def test_a_stage_sends_to_the_next_over_the_link_between_them() -> None:
    on = library.load("dgx-h100")
    for group, link in (((0, 4), on.links["nvlink"]), ((0, 8), on.node.network if on.node else None)):
        assert link is not None
        [way] = collective_routes(on, "send", group)
        assert way.time(1e6) == pytest.approx(link.latency_s + 1e6 / link.Bps, rel=1e-12, abs=0)


def test_a_bridge_joins_neighbours_only() -> None:
    on = library.load("rtx3090")
    assert [
        collective_routes(on, "all_reduce", g)[0].legs[0].span.name for g in ((2, 3), (1, 2), (0, 4))
    ] == [
        "nvlink",
        "pcie",
        "pcie",
    ]


@pytest.mark.parametrize("opcode", sorted(ALGORITHMS))
def test_ways_are_in_order_of_size(opcode: str) -> None:
    for name in (*library.names(), *library.clusters()):
        on = library.load(name)
        if on.links and name != "cpu":
            found = collective_routes(on, opcode, tuple(range(16 if on.node and on.node.network else 8)))
            for a, b in pairwise(found):
                assert a.latency_s < b.latency_s
                assert a.pace > b.pace


def test_groups_that_lie_unevenly_are_refused() -> None:
    with pytest.raises(
        HardwareError, match=r"box has 8 .* group of 12 ranks lies unevenly over them, 8 \+ 4"
    ):
        collective_routes(device(PLAIN, FAR, 8), "all_reduce", tuple(range(12)))
    with pytest.raises(HardwareError, match="no network that joins several nodes"):
        collective_routes(device(PLAIN, None, 8), "all_reduce", tuple(range(16)))


# --- against hardware ----------------------------------------------------------------------------

GPUS = {"a100_sxm": "dgx-a100", "h100_sxm": "dgx-h100", "h200_sxm": "hgx-h200", "b200_sxm": "dgx-b200"}
OPS = {op: op for op in ALGORITHMS} | {"alltoall": "all_to_all"}


def measured(gpus: Collection[str]) -> Iterator[dict[str, str]]:
    if not MEASURED.exists():
        pytest.skip("no measured collectives beside the checkout")
    with MEASURED.open() as stream:
        yield from (r for r in csv.DictReader(stream) if r["gpu"] in gpus and r["op"] in OPS)


def check(row: dict[str, str], on: Device) -> None:
    ideal = seconds(on, OPS[row["op"]], float(row["bytes"]), int(row["num_gpus"]))
    assert ideal <= float(row["latency_us"]) * US, row


def test_ideal_never_exceeds_a_measured_collective() -> None:
    """Inside a node; a payload is what nccl-tests calls the size."""
    counts = dict.fromkeys(GPUS, 0)
    for row in measured(GPUS):
        check(row, library.load(GPUS[row["gpu"]]))
        counts[row["gpu"]] += 1
    print(f"ideal is below all of {counts}")
    assert sum(counts.values()) > 1000


def test_ideal_never_exceeds_a_measured_all_reduce_across_nodes() -> None:
    """DGX A100s of which a job has some of the GPUs."""
    counts: Counter[tuple[int, int]] = Counter()
    for row in measured(["a100_dgx"]):
        per_node = int(row["note"].removeprefix("devices_per_node="))
        check(row, taken(per_node))
        counts[int(row["num_gpus"]), per_node] += 1
    print(f"ideal is below all of {dict(counts)} (GPUs, of a node)")
    assert sum(counts.values()) > 1000


@cache
def taken(per_node: int) -> Device:
    whole = library.cluster("dgx-a100")
    return replace(whole, node=MachineNode("part", per_node, whole.node.network if whole.node else None))


@pytest.mark.parametrize("tp", [8, 16, 32])
def test_a_step_on_nodes_takes_no_less_than_on_one_link(tp: int) -> None:
    """The network is no faster than NVLink; comm_bytes do not depend on either."""
    program = llmir.run(llmir.load("llama3.1-405b"), f"fuse-attention,fuse,shard{{tp={tp}}}")
    whole = replace(library.load("h100-sxm"), node=MachineNode("one of them all", tp))
    one, many = (
        llmir.analyze(program, on, batch=8, new=128, estimation=llmir.Estimation(cost="ideal"))
        for on in (whole, "dgx-h100")
    )
    assert one.comm_bytes == many.comm_bytes
    assert one.time_s == many.time_s if tp == 8 else one.time_s < many.time_s
