"""Channels that send the bytes of one rank elsewhere: to its CPU memory, to another device or to another
node.

`channel` finds the `Channel` for the option `link` (`host`, a link of the device, `network` or a rate), and
`server_channel` finds the channel between two servers. `memory/transfer.py` and the simulator use them.
"""

from __future__ import annotations

from functools import lru_cache

from llmir.backends.work.network import network_of
from llmir.backends.work.rows import CALIBRATED, EFFICIENCY, ROOFLINE, Basis, rows
from llmir.base.arguments import text
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.hw.link import Link
from llmir.hw.schema import link_rate
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.build import Builder

from .op_time import DeviceCostModel, OpTime
from .roofline import EfficiencyModel, IdealModel, derate

HOST, NETWORK = "host", "network"
# The share of a host link that copies of pinned memory reach: 25.1 of 32 GB/s on an A100, 52.8 of 64 on an
# H100, 346 of 450 on a GH200 (nvbandwidth, NVIDIA/nvbandwidth#42, #24 and #23).
PINNED = 0.8
STATED = Basis("stated")


@dataclass(frozen=True)
class Channel:
    """A link with its name and peak rate; its time comes from the op time `price`, or from the link itself.

    `basis` is the basis of the time.
    """

    name: str
    link: Link
    basis: Basis
    price: OpTime | None = None

    @property
    def shares(self) -> tuple[str, ...]:
        """The names in `efficiency` that apply here: the name of the link, and the launch of a send."""
        return (self.name, "launch") if self.price is not None else (self.name,)

    def seconds(self, payload: Number) -> Number:
        """The time to send `payload` bytes of a rank."""
        if self.price is not None:
            return self.price.time(Binding(s=payload))
        return self.link.latency_s + payload / self.link.Bps


def server_channel(model: DeviceCostModel, link: str) -> Channel:
    """The channel from one server to another, with the name `link`; `host` is not allowed."""
    if link == HOST:
        raise InputError(
            "link: host does not connect servers; expected nvlink, network, or a rate such as 25GBps,5us"
        )
    return channel(model, link)


def channel(model: DeviceCostModel, link: str) -> Channel:
    """The channel with the name `link` on a cost model's device: `host`, one of its links, `network`, or a
    rate.

    Between devices, the time is the cost model's estimate of a send. Copies to and from CPU memory run at the
    measured rate of pinned memory, or at the share `PINNED` of the link's rate. InputError for another name,
    HardwareError for a link that the device lacks.
    """
    device, said = model.device, text("link", link).strip()
    if said[:1].isdigit():
        return Channel(said, link_rate(said), STATED)
    if said == HOST:
        return _host(model)
    if said == NETWORK:
        return Channel(
            said, network_of(device).link, *_sent(model, device.node.devices if device.node else 1)
        )
    known = {name: each for name, each in device.links.items() if each.ranks != 1}
    if said not in known:
        names = ", ".join(dict.fromkeys((HOST, *known, NETWORK)))
        raise InputError(
            f"link: {device.name} has the links {names}; expected one of them or a rate such as "
            f"25GBps,5us, got {said[:40]!r}"
        )
    if device.link(2)[0] == said:
        return Channel(said, known[said], *_sent(model, 1))
    if isinstance(model, EfficiencyModel):
        return Channel(said, derate(device, model.shares).links[said], EFFICIENCY)
    return Channel(said, known[said], ROOFLINE)


def _host(model: DeviceCostModel) -> Channel:
    name, link = model.device.host_link
    if isinstance(model, EfficiencyModel):
        return Channel(name, derate(model.device, model.shares).links[name], EFFICIENCY)
    if isinstance(model, IdealModel):
        return Channel(name, link, ROOFLINE)
    own, rate = CALIBRATED, link.host_Bps
    if rate is None:
        own, rate = Basis("calibrated", device="A100, H100 and GH200"), PINNED * link.Bps
    return Channel(name, Link(rate, link.latency_s), own)


def _sent(model: DeviceCostModel, apart: int) -> tuple[Basis, OpTime]:
    """The time to send to a rank at the distance `apart`."""
    (row,) = rows(_send(apart))
    price = model.price(row)
    return price.basis, price


@lru_cache(maxsize=64)
def _send(apart: int) -> Program:
    b = Builder()
    x = b.input(parse_tensor("int8[s]"), name="x")
    b.output(b.send(x, name="y", to=1))
    return Program("send", {"main": b.graph()}, mesh=Mesh((("idle", apart),)))
