"""A decoder of layers as a program: equal layers share a body, and periods of layers fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from llmir.build import Builder
from llmir.dim import B, T
from llmir.dtype import INT64, DType
from llmir.graph import Graph, Program, Value
from llmir.tensor import Tensor

from .blocks import Blocks, Norm
from .layers import Layer
from .pattern import Times, fold


@dataclass(frozen=True)
class Names:
    """What checkpoints call the parts of a decoder."""

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{layer}"
    norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True)
class Decoder:
    """An embedding, layers, a norm and a head: what the families make of their configs.

    Embeddings and logits may be scaled, and logits capped softly, unless `logits_cap` is 0.
    """

    name: str
    architecture: str
    dtype: DType
    vocab: int
    hidden: int
    norm: Norm
    positions: int | None
    tied: bool
    layers: tuple[Layer, ...]
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float = 0.0
    head_bias: bool = False
    names: Names = Names()

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
            x = blocks.scale(b.embedding(table, tokens), self.embedding_scale, "embedding_scale")
        stack = _Stack(self, kinds)
        x = stack.repeats(b, x, fold(stack.pattern))
        x = blocks.norm(x, "final_norm", self.names.norm)
        with b.block("lm_head"):
            b.output(self._head(blocks, b.last_token(x) if logits == "last" else x, table))
        facts: dict[str, str | int] = {"architecture": self.architecture, "layers": len(self.layers)}
        if self.positions is not None:
            facts["positions"] = self.positions
        return Program(self.name, {"main": b.graph(), **stack.bodies}, facts=facts)

    def _head(self, blocks: Blocks, x: Value, table: Value) -> Value:
        """The logits of hidden states, of all positions or of one."""
        names = self.names
        rows = "b t" if len(blocks.b.type(x).shape) > 2 else "b"
        weight = table if self.tied else blocks.weight("v h", "lm_head.weight", f"{names.head}.weight")
        bias = [blocks.weight("v", "lm_head.bias", f"{names.head}.bias")] if self.head_bias else []
        terms = ", ".join([f"{rows} h", "v h", *["v"] * len(bias)])
        logits = blocks.b.linear(x, weight, *bias, einsum=f"{terms} -> {rows} v", name="lm_head")
        scaled = blocks.scale(logits, self.logits_scale, "logits_scale")
        return blocks.cap(scaled, self.logits_cap, "logits_cap")


class _Stack:
    """The bodies of layers and of their periods, made where they are first repeated."""

    def __init__(self, decoder: Decoder, kinds: Sequence[tuple[Layer, Hashable]]) -> None:
        numbers: dict[tuple[Layer, Hashable], int] = {}
        self.decoder = decoder
        self.pattern = tuple(numbers.setdefault(kind, len(numbers)) for kind in kinds)
        self.layers = [layer for layer, _ in numbers]
        self.names: dict[int | tuple[Times, ...], str] = dict(enumerate(_names(self.layers)))
        self.bodies: dict[str, Graph] = {}

    def repeats(self, b: Builder, x: Value, parts: tuple[Times, ...]) -> Value:
        """What all layers of these parts give, one after the other."""
        for times, of in parts:
            body = self._body(of)
            x = b.repeat(x, body=body, times=times, name=body)
        return x

    def _body(self, of: int | tuple[Times, ...]) -> str:
        """The name of the body of a layer or a period."""
        if of not in self.names:
            periods = sum(isinstance(known, tuple) for known in self.names)
            self.names[of] = f"period_{periods + 1}" if periods else "period"
        name, decoder = self.names[of], self.decoder
        if name not in self.bodies:
            given = f"{decoder.names.layer}.", decoder.hidden, decoder.dtype, decoder.norm
            self.bodies[name] = (
                self._period(name, of) if isinstance(of, tuple) else self.layers[of].graph(name, *given)
            )
        return name

    def _period(self, name: str, parts: tuple[Times, ...]) -> Graph:
        b = Builder(name)
        type = Tensor((B, T, self.decoder.hidden), self.decoder.dtype)
        b.output(self.repeats(b, b.input(type, name="hidden", axes=("batch", "seq", "embed")), parts))
        return b.graph()


def _names(layers: Sequence[Layer]) -> list[str]:
    """What the body of each kind of layer is called: by what it has, and a number if it must."""
    parts = list(zip(*(layer.kinds for layer in layers), strict=True))
    names, count = [], Counter[str]()
    for layer in layers:
        words = zip(layer.kinds, parts, strict=True)
        name = "_".join([*(word for word, all in words if word and len(set(all)) > 1), "layer"])
        count[name] += 1
        names.append(f"{name}_{count[name]}" if count[name] > 1 else name)
    return names
