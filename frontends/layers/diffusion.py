"""Diffusion transformers (DiT): a step takes latent patches, a timestep and a label; there is no cache."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.ir.core.dtype import FP32, INT64, DType
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import B
from llmir.ir.tools.build import Builder

from .attention import Attention
from .blocks import Blocks, Norm
from .mlp import Mlp

_FREQUENCIES = 256  # size of the timestep embedding in diffusers' CombinedTimestepLabelEmbeddings
_EPS = 1e-6  # epsilon of the norm before attention and of the last norm, independent of the config


@dataclass(frozen=True)
class Diffusion:
    """A DiT with adaLN-zero, as in diffusers: each block embeds timestep and label (arXiv:2212.09748).

    The last modulation uses the embedders of the first block. `side` is the side of a patch in pixels,
    `channels` are the input and output channels, and `eps` is the epsilon of the norm before the MLP.
    """

    name: str
    architecture: str
    dtype: DType
    hidden: int
    layers: int
    patches: int
    side: int
    channels: tuple[int, int]
    labels: int
    mixer: Attention
    mlp: Mlp
    eps: float

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """Build one denoising step from unfused ops."""
        if logits != "last":
            raise InputError(f"logits: {self.architecture} has none")
        b = Builder("main")
        at, (first, last) = self._blocks(b), self.channels
        x = patches(at, self.patches, first, self.side)
        step = self._step(b)
        with b.block("embedding"):
            x = patch_embedding(at, x, first, self.side, "pos_embed.proj")
            rows = Tensor((self.patches, self.hidden), FP32)
            table = b.buffer(rows, name="positions.table", axes=("patch", "embed"))
            x = b.positions(x, table, name="positions")
        with b.block("conditioning"):
            shared = self._embedders(at, "transformer_blocks.0.norm1.emb.")
            given = _embedded(at, step, shared, "conditioning")
        bodies = [self._layer("first_layer", captured=False)]
        x = b.repeat(x, given, body="first_layer", times=1, name="first_layer")
        if self.layers > 1:
            bodies.append(self._layer("layer", captured=True))
            x = b.repeat(x, *step, body="layer", times=self.layers - 1, name="layer")
        with b.block("conditioning"):
            given = _embedded(at, step, shared, "last_conditioning")
        with b.block("head"):
            shift, scale = _modulation(at, given, "proj_out_1", "last_shift", "last_scale")
            x = b.modulate(b.layer_norm(x, eps=_EPS, name="last_norm"), scale, shift, name="last_modulate")
            out = at.sized(a=self.side, o=self.side, c=last)
            b.output(out.linear(x, "b t h", "h A O C", "b t A O C", "pixels", "proj_out_2", bias=True))
        facts: dict[str, str | int] = {"architecture": self.architecture, "layers": self.layers}
        return Program(self.name, {g.name: g for g in (b.graph(), *bodies)}, facts=facts)

    def _blocks(self, b: Builder, stem: str = "") -> Blocks:
        none = Norm(_EPS, "layer_norm", ())
        return Blocks(b, self.dtype, none, stem, h=self.hidden, j=self.hidden, c=self.labels, f=_FREQUENCIES)

    def _step(self, b: Builder) -> list[Value]:
        """The timestep of each image, and its label."""
        return [
            b.input(Tensor((B,), dtype), name=name, axes=("batch",))
            for name, dtype in (("timestep", FP32), ("label", INT64))
        ]

    def _embedders(self, at: Blocks, stem: str) -> list[Value]:
        """The weights and biases of the two products of the timestep, and the table of labels."""
        named = [("F J", "timestep_embedder.linear_1"), ("h J", "timestep_embedder.linear_2")]
        found = [
            at.weight(axes, f"{param[-8:]}.{what}", f"{stem}{param}.{what}")
            for whole, param in named
            for what, axes in (("weight", whole), ("bias", "J"))
        ]
        return [*found, at.weight("c h", "labels.weight", f"{stem}class_embedder.embedding_table.weight")]

    def _layer(self, name: str, *, captured: bool) -> Graph:
        """A block, which embeds timestep and label itself or captures their embedding."""
        b = Builder(name)
        at = self._blocks(b, "transformer_blocks.{layer}.")
        x = b.input(at.tensor(B, self.patches, self.hidden), name="hidden", axes=("batch", "seq", "embed"))
        with b.block("conditioning"):
            if captured:
                step = self._step(b)
                given = _embedded(at, step, self._embedders(at, "norm1.emb."), "conditioning")
            else:
                given = b.input(at.tensor(B, self.hidden), name="conditioning", axes=("batch", "embed"))
            names = [f"{what}_{part}" for part in ("attention", "mlp") for what in ("shift", "scale", "gate")]
            said = _modulation(at, given, "norm1.linear", *names)
        parts = (("attention", self.mixer, _EPS, said[:3]), ("mlp", self.mlp, self.eps, said[3:]))
        for part, sublayer, eps, (shift, scale, gate) in parts:
            with b.block("norm"):
                normed = b.layer_norm(x, eps=eps, name=f"{part}_norm")
                normed = b.modulate(normed, scale, shift, name=f"{part}_modulate")
            mixed = sublayer.build(at, normed)
            with b.block(part):
                x = b.add(x, b.sequence_mul(mixed, gate, name=f"{part}_gate"), name=f"{part}_add")
        b.output(x)
        return b.graph()


def patches(at: Blocks, count: int, channels: int, side: int) -> Value:
    """The pixels of `count` patches of each image."""
    type = at.tensor(B, count, channels, side, side)
    return at.b.input(type, name="patches", axes=("batch", "patch", "channel", "row", "column"))


def patch_embedding(at: Blocks, x: Value, channels: int, side: int, param: str) -> Value:
    """Project patches to token rows."""
    at = at.sized(c=channels, a=side, o=side)
    weight = at.weight("C A O h", "patch_embedding.weight", f"{param}.weight")
    bias = at.weight("h", "patch_embedding.bias", f"{param}.bias")
    result: Value = at.b.patch_embedding(x, weight, bias, name="patch_embedding")
    return result


def _embedded(at: Blocks, step: Sequence[Value], weights: Sequence[Value], name: str) -> Value:
    """The sum of the embeddings of timestep and label."""
    b, (time, label), (*pairs, table) = at.b, step, weights
    x = at.cast(b.sinusoid(time, elements=_FREQUENCIES, name=f"{name}_sinusoid"), at.dtype)
    x = b.linear(x, *pairs[:2], einsum="b F, F J, J -> b J", name=f"{name}_1")
    x = b.linear(b.silu(x, name=f"{name}_silu"), *pairs[2:], einsum="b h, h J, J -> b J", name=f"{name}_2")
    result: Value = b.add(x, b.embedding(table, label, name=f"{name}_label"), name=name)
    return result


def _modulation(at: Blocks, given: Value, param: str, *names: str) -> tuple[Value, ...]:
    """The pieces of one product with these names, such as shifts, scales and gates."""
    b = at.b
    acted = b.silu(given, name=f"{names[0]}_silu")
    pieces = [(what, axes) for what, axes in (("weight", "h J"), ("bias", "J"))]
    weights = [
        at.weight(axes, f"{name}.{what}", f"{param}.{what}[{i}]")
        for what, axes in pieces
        for i, name in enumerate(names)
    ]
    terms = ", ".join(["b h", *["h J"] * len(names), *["J"] * len(names)])
    einsum = f"{terms} -> {', '.join(['b J'] * len(names))}"
    return tuple(b.linear(acted, *weights, einsum=einsum, name="modulation"))
