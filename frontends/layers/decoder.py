"""A decoder of layers as a program: equal layers share a body, and periods of layers fold."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import astuple

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import INT64, DType
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.sizes.polynomial import B, T
from llmir.ir.tools.build import Builder

from .altup import AltUp
from .blocks import Blocks, Norm
from .layer import Whole
from .layer_input import LayerTable
from .stack import Stack


@dataclass(frozen=True)
class Names:
    """What checkpoints call the parts of a decoder."""

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{layer}"
    norm: str = "model.norm"
    head: str = "lm_head"

    @property
    def stem(self) -> str:
        """What those of all parts but the head begin with, and a point."""
        return self.embedding.rpartition("embed")[0]

    def bare(self) -> Names:
        """Those of a backbone that was saved alone."""
        return Names(*(name.removeprefix("model.") for name in astuple(self)))


@dataclass(frozen=True)
class Learned:
    """A table of learned positions: what checkpoints call it, its rows, and the row of the first token."""

    name: str
    rows: int
    first: int = 0


@dataclass(frozen=True)
class Draft:
    """A layer that predicts a further token, what checkpoints call it, and what they call what is around it.

    That are the norms of embeddings and of hidden states, the projection of both, and the norm at the end.
    """

    layer: Whole
    stem: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str


@dataclass(frozen=True)
class Decoder:
    """An embedding, layers, a norm and a head: what the families make of their configs.

    Embeddings and logits may be scaled, and logits capped softly, unless `logits_cap` is 0. `learned`
    positions may be added, and embeddings normalized by what checkpoints call `embedding_norm`. A `head`
    "score" gives logits of so many labels, and "" the hidden states. Layers may read a `layer_table` of the
    tokens, and pass on several streams of `altup`.
    """

    name: str
    architecture: str
    dtype: DType
    vocab: int
    hidden: int
    norm: Norm
    positions: int | None
    tied: bool
    layers: tuple[Whole, ...]
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float = 0.0
    head_bias: bool = False
    names: Names = Names()
    head: str = "lm_head"
    labels: int = 0
    learned: Learned | None = None
    embedding_norm: str = ""
    draft: Draft | None = None
    layer_table: LayerTable | None = None
    altup: AltUp | None = None

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """The whole model, unfused, for `logits` of the `last` position of each sequence or of `all`.

        Layers of which `apart`, one entry for each, says different things have bodies of their own.
        """
        b = Builder("main")
        blocks = Blocks(b, self.dtype, self.norm, h=self.hidden, v=self.vocab)
        kinds = list(zip(self.layers, apart or [None] * len(self.layers), strict=True))
        tokens = b.input(blocks.tensor(B, T, dtype=INT64), name="tokens", axes=("batch", "seq"))
        with b.block("embedding"):
            table = blocks.weight("v h", "embed.weight", f"{self.names.embedding}.weight")
            x = self._embedded(blocks, b.embedding(table, tokens))
        model = Blocks(b, self.dtype, self.norm, self.names.stem, h=self.hidden)
        model.beside.hand("tokens", tokens, ("batch", "seq"))
        model.beside.hand("embedded", x, ("batch", "seq", "embed"))
        if self.layer_table:
            self.layer_table.build(model, tokens, x)
        if self.altup:
            x = self.altup.expand(model, x)
        stack = Stack(kinds, f"{self.names.layer}.", self.hidden, self.dtype, self.norm)
        streams = self.layers[0].streams
        x = streams.split(blocks, x) if streams else x
        among = ("stream",) if streams or self.altup else ()
        x = stack.build(model.beside, x, ("batch", "seq", *among, "embed"))
        x = streams.join(blocks, x) if streams else x
        x = self.altup.contract(model, x) if self.altup else x
        x = blocks.norm(x, "final_norm", self.names.norm)
        with b.block("lm_head"):
            seen = b.last_token(x) if logits == "last" else x
            b.output(self.headed(blocks, seen, table) if self.head else seen)
        facts: dict[str, str | int] = {"architecture": self.architecture, "layers": len(self.layers)}
        if self.positions is not None:
            facts["positions"] = self.positions
        return Program(self.name, {"main": b.graph(), **stack.bodies}, facts=facts)

    def _embedded(self, blocks: Blocks, x: Value) -> Value:
        """What enters the first layer, of the rows of the table."""
        x = blocks.scale(x, self.embedding_scale, "embedding_scale")
        if self.learned:
            at = blocks.sized(z=self.learned.rows)
            rows = at.weight("z h", "positions.weight", f"{self.learned.name}.weight")
            x = blocks.b.positions(x, rows, offset=self.learned.first, name="positions")
        return blocks.norm(x, "embedding_norm", self.embedding_norm) if self.embedding_norm else x

    def headed(self, blocks: Blocks, x: Value, table: Value) -> Value:
        """The logits of hidden states, of all positions or of one."""
        names = self.names
        rows = "b t" if len(blocks.b.type(x).shape) > 2 else "b"
        if self.head == "score":
            at = blocks.sized(c=self.labels)
            return at.linear(x, f"{rows} h", "h c", f"{rows} c", "score", "score")
        weight = table if self.tied else blocks.weight("v h", "lm_head.weight", f"{names.head}.weight")
        bias = [blocks.weight("v", "lm_head.bias", f"{names.head}.bias")] if self.head_bias else []
        terms = ", ".join([f"{rows} h", "v h", *["v"] * len(bias)])
        logits = blocks.b.linear(x, weight, *bias, einsum=f"{terms} -> {rows} v", name="lm_head")
        scaled = blocks.scale(logits, self.logits_scale, "logits_scale")
        return blocks.cap(scaled, self.logits_cap, "logits_cap")
