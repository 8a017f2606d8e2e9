"""Streams of hidden states beside the one that layers compute on, and products of low rank (Gemma 3n)."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value
from llmir.ir.ops import make

from .blocks import Blocks

if TYPE_CHECKING:
    from .layer import Layer, Sublayer

_BLOCK = "altup"


@dataclass(frozen=True)
class Laurel:
    """A product of low rank beside a mixer, of which each gives half of the squared sum (Gemma 3n)."""

    rank: int

    def build(self, blocks: Blocks, seen: Value, total: Value) -> Value:
        """(total + seen + norm(right(left(seen)))) / √2."""
        b, at = blocks.b, blocks.sized(k=self.rank)
        with b.block("laurel"):
            low = at.linear(seen, "b t h", "h k", "b t k", "laurel_left", "laurel.linear_left")
            x = at.linear(low, "b t k", "k h", "b t h", "laurel_right", "laurel.linear_right")
        x = at.norm(x, "laurel_norm", "laurel.post_laurel_norm")
        with b.block("laurel"):
            x = b.add(total, b.add(seen, x, name="laurel_add"), name="laurel_sum")
            return at.scale(x, 0.5**0.5, "laurel_scale")


@dataclass(frozen=True)
class AltUp:
    """`count` streams of hidden states, of which layers compute on the `active` one (arXiv:2301.13310)."""

    count: int
    active: int

    def expand(self, blocks: Blocks, x: Value) -> Value:
        """The streams that enter the first layer: x, and projections of it as long as it is."""
        b = blocks.b
        with b.block(_BLOCK):
            at, among = blocks.sized(j=blocks.hidden), range(self.count - 1)
            weights = [at.weight("h J", f"altup_{i}.weight", f"altup_projections.{i}.weight") for i in among]
            einsum = f"b t h{', h J' * len(among)} -> {', '.join(['b t J'] * len(among))}"
            wide = b.apply(make("linear", einsum=einsum, block=_BLOCK), x, *weights, name="altup_projections")
            others = [b.match_rms(y, x, name=f"altup_match_{i}") for i, y in enumerate(wide)]
            streams: Value = b.stack(x, *others, name="streams")
            return streams

    def contract(self, blocks: Blocks, streams: Value) -> Value:
        """The mean of the first stream and of projections of the others, as long as it is."""
        b, at = blocks.b, blocks.sized(j=blocks.hidden)
        with b.block(_BLOCK):
            first, *others = (b.pick(streams, index=i, name=f"stream_{i}") for i in range(self.count))
            found = [first]
            for i, other in enumerate(others):
                name = f"altup_unembed_projections.{i}"
                back = at.linear(other, "b t h", "h J", "b t J", f"altup_back_{i}", name)
                found.append(b.match_rms(back, first, name=f"altup_unmatch_{i}"))
            total = reduce(lambda x, y: b.add(x, y, name="streams_add"), found)
            return blocks.scale(total, 1 / self.count, "streams_mean")


@dataclass(frozen=True)
class Alternating:
    """A `layer` of one stream, which then corrects them all; `scaled`, by a learned factor, it is what the
    tail of the layer reads, and what that gives is added to all but the first.
    """

    layer: Layer
    altup: AltUp
    scaled: bool = True

    @property
    def mixer(self) -> Sublayer | None:
        """That of the layer."""
        return self.layer.mixer

    @property
    def streams(self) -> None:
        """None that are mixed by the token."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of the layer."""
        return self.layer.kinds

    def build(self, blocks: Blocks, streams: Value) -> Value:
        """Of the streams that enter it, those that leave it."""
        b, active = blocks.b, self.altup.active
        with b.block(_BLOCK):
            start = b.pick(streams, index=active, name="stream")
        mixed = self._coefficients(blocks, start, "predict", "k st St", "b t st St", "altup.prediction_coefs")
        with b.block(_BLOCK):
            streams = b.add(b.stream_mix(streams, mixed, name="mix_streams"), streams, name="predicted")
            start = b.pick(streams, index=active, name="predicted_stream")
        total = self.layer.inner(blocks, start)
        mixed = self._coefficients(blocks, total, "correct", "k st", "b t st", "altup.correction_coefs")
        with b.block(_BLOCK):
            new = b.subtract(total, start, name="innovation")
            streams = b.stream_add(streams, new, mixed, offset=1.0, name="corrected")
            seen = b.pick(streams, index=active, name="corrected_stream")
            if self.scaled:
                seen = b.scale_by(
                    seen, blocks.weight("h", "correct_output_scale", "altup.correct_output_scale")
                )
        if not self.layer.tail:
            return streams
        added = self.layer.tail.mixed(blocks, seen)
        with b.block(_BLOCK):
            found: Value = b.stream_add(streams, added, first=1, name="streams_out")
            return found

    def _coefficients(self, blocks: Blocks, x: Value, name: str, weight: str, out: str, param: str) -> Value:
        """How streams are mixed or corrected, as x says."""
        b, at = blocks.b, blocks.sized(st=self.altup.count, k=self.altup.count)
        x = at.norm(x, f"{name}_norm", "altup.router_norm")
        with b.block(_BLOCK):
            x = b.scale(x, factor=1 / blocks.hidden, name=f"{name}_scale")
            x = at.linear(x, "b t h", "h k", "b t k", f"{name}_router", "altup.modality_router")
            x = b.tanh(at.cast(x, FP32), name=f"{name}_tanh")
            return at.linear(at.cast(x, at.dtype), "b t k", weight, out, f"{name}_coefs", param)
