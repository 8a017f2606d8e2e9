"""A decoder of layers as a program: equal layers share a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from llmir.build import Builder
from llmir.dim import B, T
from llmir.dtype import INT64, DType
from llmir.graph import Graph, Program

from .blocks import Blocks
from .layers import Layer


@dataclass(frozen=True)
class Decoder:
    """An embedding, layers, a norm and a head: what the families make of their configs."""

    name: str
    architecture: str
    dtype: DType
    vocab: int
    hidden: int
    eps: float
    positions: int | None
    tied: bool
    layers: tuple[Layer, ...]

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """The whole model, unfused, for `logits` of the `last` position of each sequence or of `all`.

        Layers of which `apart`, one entry for each, says different things have bodies of their own.
        """
        b = Builder("main")
        blocks = Blocks(b, self.dtype, self.eps, h=self.hidden, v=self.vocab)
        kinds = list(zip(self.layers, apart or [None] * len(self.layers), strict=True))
        names = _names(kinds)
        tokens = b.input(blocks.tensor(B, T, dtype=INT64), name="tokens", axes=("batch", "seq"))
        with b.block("embedding"):
            table = blocks.weight("v h", "embed.weight", "model.embed_tokens.weight")
            x = b.embedding(table, tokens)
        bodies: dict[str, Graph] = {}
        for kind, run in groupby(kinds):
            body, times = names[kind], len(list(run))
            if body not in bodies:
                bodies[body] = kind[0].graph(body, self.hidden, self.dtype, self.eps)
            x = b.repeat(x, body=body, times=times, name=body)
        x = blocks.norm(x, "final_norm", "model.norm")
        with b.block("lm_head"):
            head = table if self.tied else blocks.weight("v h", "lm_head.weight", "lm_head.weight")
            if logits == "last":
                b.output(b.linear(b.last_token(x), head, einsum="b h, v h -> b v", name="lm_head"))
            else:
                b.output(b.linear(x, head, einsum="b t h, v h -> b t v", name="lm_head"))
        facts: dict[str, str | int] = {"architecture": self.architecture, "layers": len(self.layers)}
        if self.positions is not None:
            facts["positions"] = self.positions
        return Program(self.name, {"main": b.graph(), **bodies}, facts=facts)


def _names(kinds: Sequence[tuple[Layer, Hashable]]) -> dict[tuple[Layer, Hashable], str]:
    """What the body of each kind of layer is called: by what it has, and a number if it must."""
    parts = list(zip(*((layer.mixer.kind, layer.mlp.kind) for layer, _ in kinds), strict=True))
    names, count = {}, Counter[str]()
    for kind in dict.fromkeys(kinds):
        own = (kind[0].mixer.kind, kind[0].mlp.kind)
        name = "_".join([*(word for word, all in zip(own, parts, strict=True) if len(set(all)) > 1), "layer"])
        count[name] += 1
        names[kind] = f"{name}_{count[name]}" if count[name] > 1 else name
    return names
