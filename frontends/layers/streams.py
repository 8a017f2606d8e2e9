"""Residuals in several streams (llmir/ir/ops/residual_streams.py): how a layer takes from them and gives back."""

from __future__ import annotations

from typing import Any

from llmir.base.dataclass import dataclass
from llmir.frontends.config.reader import Config
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value

from .blocks import Blocks

_BLOCK = "streams"
_LEARNED = (("j", "base"), ("k", "scale"))


@dataclass(frozen=True)
class Streams:
    """`count` of them; a matrix over them is made in so many `iterations`.

    Checkpoints call the weights `hc_attn` and `hc_ffn`, of each sublayer, and `hc_head`.
    """

    count: int
    iterations: int
    eps: float
    norm_eps: float

    def split(self, blocks: Blocks, x: Value) -> Value:
        """Each begins as what enters the first layer."""
        result: Value = blocks.b.split_streams(x, streams=self.count, name="streams", block=_BLOCK)
        return result

    def join(self, blocks: Blocks, streams: Value) -> Value:
        """What the last norm sees."""
        with blocks.b.block(_BLOCK):
            given = self._given(blocks, streams, "hc_head", self.count, 1)
            x: Value = blocks.b.join_streams(*given, eps=self.eps, norm_eps=self.norm_eps, name="join")
            return x

    def enter(self, blocks: Blocks, streams: Value, part: str) -> tuple[Value, ...]:
        """What a sublayer's norm sees, and with what it gives back: weights, a matrix."""
        with blocks.b.block(_BLOCK):
            given = self._given(blocks, streams, f"hc_{part}", (2 + self.count) * self.count, 3)
            how: dict[str, Any] = {"eps": self.eps, "norm_eps": self.norm_eps}
            how |= {"iterations": self.iterations, "name": f"enter_{part}"}
            found: tuple[Value, ...] = blocks.b.enter_streams(*given, **how)
            return found

    def leave(self, blocks: Blocks, streams: Value, x: Value, by: tuple[Value, ...], part: str) -> Value:
        """The streams after a sublayer that gave x."""
        result: Value = blocks.b.leave_streams(streams, x, *by, name=f"leave_{part}", block=_BLOCK)
        return result

    def _given(self, blocks: Blocks, streams: Value, name: str, logits: int, scales: int) -> list[Value]:
        """Streams, logits of a token, their base and scales: all in fp32."""
        at = blocks.sized(s=self.count, j=logits, k=scales)
        weight = at.weight("s h j", f"{name}.weight", f"{name}_fn", dtype=FP32)
        einsum = "b t s h, s h j -> b t j"
        found = at.b.linear(streams, weight, einsum=einsum, to="fp32", name=name)
        learned = [at.weight(a, f"{name}.{n}", f"{name}_{n}", dtype=FP32) for a, n in _LEARNED]
        return [streams, found, *learned]


def streams(config: Config) -> Streams:
    """What configs say of them; sums of squares have the epsilon of the model's norms."""
    return Streams(
        count=config.integer("hc_mult", 4),
        iterations=config.integer("hc_sinkhorn_iters", 20),
        eps=config.number("hc_eps", 1e-6),
        norm_eps=config.number("rms_norm_eps", 1e-6),
    )
