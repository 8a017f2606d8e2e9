"""DeepEP's kernels: tokens to the ranks of their experts, and their sums back.

Normal kernels give a token once to each rank, on a number of multiprocessors that the caller sets. Those of
low latency give it once for each expert, on as many multiprocessors as share the experts evenly
(`num_warp_groups` in csrc/kernels/internode_ll.cu). A call takes a start, a wait while a row goes through a
pipeline of chunks, and then the longer of what links take for what leaves the rank and what multiprocessors
take for all copies.
"""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.atoms import Busiest, Reached, ceildiv
from llmir.ir.sizes.polynomial import Dim

from .base import Kernel, families, longer, multiprocessors, parameter
from .call import Call, prices
from .collective import CollectiveShape


@dataclass(frozen=True)
class DispatchShape(CollectiveShape):
    """`copies` of tokens reach a rank, `width` bytes each; it has `tokens` of its own.

    Kernels run on `sms` multiprocessors; if that is 0, on as many as share the `experts` of all ranks.
    """

    words = CollectiveShape.words | {"sms"}

    copies: Number = 0
    width: Number = 0
    tokens: Number = 0
    experts: Number = 0
    sms: Number = 0

    def busy(self, device: Device, xp: Namespace) -> Number:
        """Multiprocessors at work."""
        rounds = xp.ceil(self.experts / multiprocessors(device))
        return xp.where(self.sms > 0, self.sms, xp.ceil(self.experts / xp.maximum(rounds, 1)))


@families("deepep_dispatch", "deepep_combine", "deepep_ll_dispatch", "deepep_ll_combine")
@dataclass(frozen=True)
class DeepEp(Kernel):
    """One call, by all ranks of a node."""

    group: ClassVar[str] = "collectives"
    library: ClassVar[bool] = True

    start_us: float = parameter(20, 1, 200, "µs", "of a call")
    wait_us: float = parameter(0.5, 0.001, 10, "µs", "that a KB of a row waits in chunks")
    link: float = parameter(0.6, 0.05, 1, "", "share of the link that copies to other ranks reach")
    each: float = parameter(30, 1, 1000, "GB/s", "that a multiprocessor copies")
    copy_us: float = parameter(0.05, 0.0001, 3, "µs", "of a multiprocessor for each copy")
    token_us: float = parameter(0.5, 0.0001, 5, "µs", "of a multiprocessor for each token of the rank")

    def seconds(self, device: Device, shape: DispatchShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call."""
        moved = shape.copies * shape.width
        sent = moved * (shape.ranks - 1) / shape.ranks / (self.link * shape.bandwidth(device))
        copied = moved / (self.each * 1e9) + 1e-6 * (
            self.copy_us * shape.copies + self.token_us * shape.tokens
        )
        start = 1e-6 * (self.start_us + self.wait_us * shape.width / 1000)
        return start + longer(xp, sent, copied / shape.busy(device, xp))


@prices("send_tokens")
def send(row: Row) -> Call | None:
    """A token once to each rank."""
    return _call(row, "normal", "deepep_dispatch", row.shape, row.operands)


@prices("send_tokens")
def send_at_low_latency(row: Row) -> Call | None:
    """A token once for each expert."""
    return _call(row, "low_latency", "deepep_ll_dispatch", row.shape, row.operands)


@prices("return_tokens")
def give_back(row: Row) -> Call | None:
    """A sum from each rank."""
    return _call(row, "normal", "deepep_combine", row.operands[0], row.operands[:1])


@prices("return_tokens")
def give_back_at_low_latency(row: Row) -> Call | None:
    """A row from each expert."""
    return _call(row, "low_latency", "deepep_ll_combine", row.operands[0], row.operands[:1])


def _call(row: Row, mode: str, family: str, there: Tensor, moved: tuple[Tensor, ...]) -> Call | None:
    """Kernels of a mode, for what they move of the tokens that are `there`; None if another one is named."""
    op: Any = row.node.op
    reached = there.shape[0]
    atom = reached.terms[0][0][0] if isinstance(reached, Dim) else None
    if op.mode not in ("", mode) or not isinstance(atom, Reached):
        return None
    of = atom.chosen, atom.tokens, atom.experts, atom.law
    low = mode == "low_latency"
    shape = DispatchShape(
        row.work.payload,
        row.work.ranks,
        adds=False,
        copies=Busiest.of(row.work.ranks, *of) if low else reached,
        width=sum((Tensor((1, 1, *t.shape[2:]), t.dtype).bytes for t in moved), start=0),
        tokens=ceildiv(atom.tokens, row.work.ranks),
        experts=atom.law.places(atom.experts),
        sms=0 if low else op.sms,
    )
    return Call((family, "all_to_all"), shape)
