"""Laws of what ranks send each other, over all devices, networks, payloads and numbers of ranks and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from llmir.backends.cost.models import model
from llmir.backends.cost.op_time import OpTime
from llmir.backends.silicon.tables.collective import DISPATCH, OPS, collective, dispatch
from llmir.backends.work.rows import Row, rows
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.link import Link, MachineNode
from llmir.ir.sizes.binding import Binding

PAYLOADS = np.array([0, 1, 100, *np.geomspace(1e3, 1e10, 15)])
IN_BOX, IN_EACH, NODES = (2, 4, 8), (1, 2, 4, 8), (2, 4, 8)
# None is what a cluster has. Ethernet says no latency; the last is faster than any link inside a box.
NETWORKS = (
    None,
    Link(50e9, 2.7e-6, direct=True),
    Link(25e9, 5e-6),
    Link(1.25e9),
    Link(2e12, direct=True, reduces=True),
)
COLLECTIVES = [op for op in OPS if op != "send_recv"]
DEVICES = [*library.clusters(), *library.names()]


def over(name: str) -> Iterator[Device]:
    """The device in boxes of eight, by network."""
    device = library.load(name)
    node = device.node or MachineNode("box", 8)
    for network in NETWORKS:
        if network or node.network:
            yield replace(device, node=replace(node, network=network or node.network))


@cache
def row(op: str, nodes: int, each: int) -> Row:
    (found,) = rows(collective(op, nodes * each, narrow=False, nodes=nodes, slots=8))
    return found


def price(device: Device, cost: str | None, op: str, nodes: int, each: int) -> OpTime:
    return model(device, cost).price(row(op, nodes, each))


def at(op: str, ranks: int, *, whole: bool = False) -> Binding:
    """Elements at the payloads: of one rank, or of all; an exchange's are of a rank."""
    exchange = op == "alltoall"
    return Binding(s=PAYLOADS / 2 * (ranks if exchange or (op != "all_reduce" and not whole) else 1))


def seconds(price: OpTime, binding: Binding) -> Any:
    return np.broadcast_to(price.time(binding), PAYLOADS.shape)


def no_less(found: Any, other: Any, *where: Any) -> None:
    short = found < other * (1 - 1e-12)
    assert not short.any(), (*where, PAYLOADS[short], found[short], other[short])


def adds(device: Device, cost: str | None, op: str) -> bool:
    """Whether more ranks may be faster, as measured: of eight H100 each sends 9/8 of it, of four 5/4.

    Or in a mesh, of whose links more ranks have more: 2 MB take 49.7 µs on two MI300X, and 36.6 on four
    (ROCm/aiter#801, vllm-project/vllm#19744).
    """
    link = device.link(8)[1]
    return bool(link.peers) or (op == "all_reduce" and link.reduces and cost is None)


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize("cost", ["ideal", None])
@pytest.mark.parametrize("name", [n for n in DEVICES if n != "cpu"])
def test_what_crosses_nodes_takes_no_less_than_inside_one(name: str, cost: str | None) -> None:
    """Of as many ranks and of those that one node has; the bound is below it, and more nodes take no less."""
    for device, op in product(over(name), COLLECTIVES):
        inside = {n: seconds(price(device, cost, op, 1, n), at(op, n, whole=True)) for n in IN_BOX}
        for each in IN_EACH:
            for nodes in NODES:
                crossing = price(device, cost, op, nodes, each)
                binding = at(op, nodes * each, whole=True)
                found = seconds(crossing, binding)
                no_less(found, np.broadcast_to(crossing.least(binding), found.shape), device.name, op)
                fewer = set() if device.link(8)[1].peers else {each}  # in a mesh four are faster than two
                for n in {nodes * each, *fewer} & inside.keys():
                    no_less(found, inside[n], device.name, device.node, op, nodes, each)
            counts = [n for n in NODES if n * each >= 8 or not adds(device, cost, op)]
            more = [seconds(price(device, cost, op, n, each), at(op, n * each)) for n in counts]
            for few, many in pairwise(more):
                no_less(many, few, device.name, device.node, op, each)


@pytest.mark.parametrize("cost", ["ideal", None])
@pytest.mark.parametrize("name", [n for n in DEVICES if n != "cpu"])
def test_more_ranks_take_no_less_at_the_same_payload_of_each(name: str, cost: str | None) -> None:
    """But for sums in switches, and in a mesh."""
    device = library.load(name)
    for op in COLLECTIVES:
        if not adds(device, cost, op):
            found = [seconds(price(device, cost, op, 1, n), at(op, n)) for n in IN_BOX]
            for few, many in pairwise(found):
                no_less(many, few, name, op)


@pytest.mark.parametrize("engine", [None, "torch.distributed nccl"])
@pytest.mark.parametrize("name", [n for n in DEVICES if n != "cpu"])
def test_a_send_to_another_node_takes_no_less(name: str, engine: str | None) -> None:
    for device in over(name):
        for cost in ("ideal", None):
            by = model(device, cost, None if cost or model(device).name == "ideal" else engine)
            one, two = (by.price(row("send_recv", nodes, 2 // nodes)) for nodes in (1, 2))
            binding = Binding(s=PAYLOADS / 2)
            no_less(seconds(two, binding), seconds(one, binding), name, device.node, cost)
            no_less(seconds(two, binding), two.least(binding))


def test_a_small_sum_over_two_nodes_waits_for_both_kinds_of_link() -> None:
    """At two nodes a ring is two hops of 2.7 µs, which are after what eight ranks of one take."""
    device = library.load("dgx-h100")
    binding = Binding(s=1024)
    one, two = (float(price(device, None, "all_reduce", n, 8).time(binding)) for n in (1, 2))
    assert two >= one + 2 * 2.7e-6


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("cost", ["ideal", None])
@pytest.mark.parametrize("name", [n for n in DEVICES if n != "cpu"])
def test_tokens_for_experts_take_no_less_across_nodes(name: str, cost: str | None) -> None:
    """A rank's tokens reach no fewer ranks where there are more nodes; the bound is below it."""
    tokens = np.array([1, 8, 64, 512, 4096])
    for device in over(name):
        for op in DISPATCH:
            times = []
            for nodes in (1, *NODES):
                type = "bf16" if op.endswith("combine") else "fp8"
                (found,) = rows(dispatch(op, 8 * nodes, type, nodes, 8, 8, 256, 20))
                price, at = model(device, cost).price(found), Binding(t=tokens * 8 * nodes, h=7168)
                times.append(np.broadcast_to(price.time(at), tokens.shape))
                assert (times[-1] >= price.least(at) * (1 - 1e-12)).all()
            for few, many in pairwise(times):
                assert (many >= few * (1 - 1e-12)).all(), (device.name, device.node, op, few, many)
