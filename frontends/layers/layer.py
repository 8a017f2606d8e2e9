"""A layer of a decoder as data: what mixes tokens and what follows, each a spec that builds itself."""

from __future__ import annotations

from typing import Protocol

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .altup import Laurel
from .blocks import Blocks
from .layer_input import PerLayer
from .streams import Streams


class Sublayer(Protocol):
    """A mixer or an MLP: what bodies are called by, the block of the model that it is, how it is built."""

    @property
    def kind(self) -> str:
        """As names of bodies say it."""

    @property
    def block(self) -> str:
        """That of the sum with the residual."""

    def build(self, blocks: Blocks, x: Value, /) -> Value:
        """Of normed hidden states, what is added to them."""


@dataclass(frozen=True)
class Norms:
    """What checkpoints call the norms of a layer; None is none."""

    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


BEHIND = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
"""Of what sublayers give, and not of what they see (OLMo 2)."""


class Whole(Protocol):
    """A layer of whatever form: it builds itself."""

    @property
    def mixer(self) -> Sublayer | None:
        """What mixes tokens."""

    @property
    def streams(self) -> Streams | None:
        """How residuals go on, if in several streams that are mixed by the token."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of its parts."""

    def build(self, blocks: Blocks, start: Value, /) -> Value:
        """Of the hidden states that enter it, those that leave it."""


@dataclass(frozen=True)
class Layer:
    """Norm, mixer, residual; norm, mlp, residual. Either may be missing.

    In a `parallel` layer both see the layer's input: each through its norm, or the mlp through the mixer's if
    it has none of its own. What is added is scaled by `residual` first. With `kept`, what it is added to is
    not what a norm is given but what it gives, times the number for the mixer or for the mlp. With `streams`
    there are several residuals, and both sublayers. What a `shared` block gives of the layer's input is added
    to what the norm of the mixer sees. A `laurel` (a learned residual of low rank) runs in
    parallel with the mixer, and a `tail` after all.
    """

    mixer: Sublayer | None
    mlp: Sublayer | None
    norms: Norms = Norms()
    parallel: bool = False
    residual: float = 1.0
    kept: tuple[float, float] | None = None
    streams: Streams | None = None
    shared: Sublayer | None = None
    laurel: Laurel | None = None
    tail: PerLayer | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of its shared block, its mixer and its mlp."""
        return tuple(part.kind if part else "" for part in (self.shared, self.mixer, self.mlp))

    def build(self, blocks: Blocks, start: Value) -> Value:
        """Of the hidden states that enter it, those that leave it."""
        total = self._through(blocks, start, self.streams) if self.streams else self.inner(blocks, start)
        return self.tail.build(blocks, total) if self.tail else total

    def inner(self, blocks: Blocks, start: Value) -> Value:
        """The same of one stream without its tail."""
        b, total, seen, norms, beside = blocks.b, start, start, self.norms, None
        if self.shared:
            added = self.shared.build(blocks, start)
            seen = self._add(blocks, start, added, self.shared.block, "shared_add")
        if self.mixer:
            seen = self._norm(blocks, seen, "input_norm", norms.before_mixer)
            mixed = self._norm(blocks, self.mixer.build(blocks, seen), "mixer_norm", norms.after_mixer)
            total = self._kept(blocks, seen, 0, self.mixer.block) if self.kept else total
            if self.parallel and self.mlp:  # one sum over ranks for both
                beside = mixed
            else:
                total = self._add(blocks, total, mixed, self.mixer.block, f"{self.mixer.block}_add")
            if self.laurel:
                total = self.laurel.build(blocks, seen, total)
        if self.mlp:
            if not (self.parallel and norms.before_mlp is None):
                seen = self._norm(blocks, start if self.parallel else total, "post_norm", norms.before_mlp)
            mixed = self._norm(blocks, self.mlp.build(blocks, seen), "mlp_norm", norms.after_mlp)
            if beside:
                with b.block(self.mlp.block):
                    mixed = b.add(beside, mixed, name="parallel_add")
            total = self._kept(blocks, seen, 1, self.mlp.block) if self.kept else total
            total = self._add(blocks, total, mixed, self.mlp.block, "mlp_add")
        return total

    def _through(self, blocks: Blocks, total: Value, streams: Streams) -> Value:
        """The streams after both sublayers."""
        attention, mlp = ("attn", self.mixer, "input_norm"), ("ffn", self.mlp, "post_norm")
        norms = self.norms.before_mixer, self.norms.before_mlp
        for (part, sublayer, name), param in zip((attention, mlp), norms, strict=True):
            assert sublayer
            x, *by = streams.enter(blocks, total, part)
            given = sublayer.build(blocks, self._norm(blocks, x, name, param))
            total = streams.leave(blocks, total, given, tuple(by), part)
        return total

    def _norm(self, blocks: Blocks, x: Value, name: str, param: str | None) -> Value:
        return x if param is None else blocks.norm(x, name, param)

    def _kept(self, blocks: Blocks, x: Value, which: int, block: str) -> Value:
        with blocks.b.block(block):
            return blocks.scale(x, self.kept[which] if self.kept else 1.0, f"kept_scale_{which}")

    def _add(self, blocks: Blocks, x: Value, mixed: Value, block: str, name: str) -> Value:
        with blocks.b.block(block):
            mixed = blocks.scale(mixed, self.residual, f"{name}_scale")
            total: Value = blocks.b.add(x, mixed, name=name)
            return total
