"""Transfer of KV caches: the bytes of some sequences' caches, and the time to send them over a link.

`cache_transfer` returns a `CacheTransfer` for caches after a prompt; `rank_bytes` has the bytes of one
rank.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llmir.backends.cost.channel import Channel, channel
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.formats import Result
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import maximum

from .caches import policy
from .liveness import reserved_bytes


@dataclass(frozen=True)
class CacheTransfer(Result):
    """The caches of `batch` sequences of `prompt` tokens: total `bytes`, and the bytes of each rank.

    `rank_bytes` are the bytes of the fullest of `ranks`, which determines `time_s`.
    """

    model: str
    device: str
    batch: int
    prompt: int
    channel: Channel
    bytes: int
    ranks: int
    rank_bytes: int

    @property
    def time_s(self) -> float:
        """Seconds in one direction."""
        return float(self.channel.seconds(self.rank_bytes))

    def to_dict(self) -> dict[str, Any]:
        """Return the transfer as JSON-compatible values."""
        return {
            "model": self.model,
            "hardware": self.device,
            "batch": self.batch,
            "prompt": self.prompt,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "rank_bytes": self.rank_bytes,
            "link": self.channel.name,
            "link_bytes_per_s": self.channel.link.Bps,
            "basis": str(self.channel.basis),
            "time_s": self.time_s,
        }


def rank_bytes(program: Program, batch: Number, tokens: Number) -> Number:
    """Bytes of the caches of one rank, of the stage that has most."""
    at = Binding(B=batch, T=0, C=tokens)
    return reduce(maximum, (at(size) for size in reserved_bytes(program, policy("exact"))))


def cache_transfer(
    program: Program, model: DeviceCostModel, batch: int, prompt: int, link: str
) -> CacheTransfer:
    """Caches after a prompt, sent over a link of the device."""
    return CacheTransfer(
        program.name,
        model.device.name,
        batch,
        prompt,
        channel(model, link),
        batch * program.cache_bytes(prompt),
        program.devices,
        int(rank_bytes(program, batch, prompt)),
    )
