"""A decoder as a program: embedding, layers, final norm and head.

Equal layers share one body graph. A repeating sequence of layers becomes a body with nested `repeat` ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import astuple
from typing import NamedTuple

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import INT64, DType
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.program import Program
from llmir.ir.sizes.polynomial import B, T
from llmir.ir.tools.build import Builder

from .blocks import Blocks, Norm, Port, SideValues
from .layer import AlternatingUpdates, LayerLike, LayerTable, Times, fold

# --- Layers in order ---


class Body(NamedTuple):
    """The body of a loop over a layer or a sequence of layers: its graph, additional inputs and outputs."""

    graph: Graph
    takes: tuple[str, ...]
    hands: tuple[str, ...]


class LayerStack:
    """Builds the layers of a model; each body is built when a loop first uses the body.

    `stem` is the checkpoint name of a layer, and `normal` is the norm that all layers use.
    """

    def __init__(
        self, layers: Sequence[tuple[LayerLike, Hashable]], stem: str, hidden: int, dtype: DType, normal: Norm
    ) -> None:
        numbers: dict[tuple[LayerLike, Hashable], int] = {}
        known: dict[
            tuple[int, Hashable], int
        ] = {}  # equal layers are mostly one object, so comparison by identity avoids most hashes
        for layer, apart in layers:
            if (id(layer), apart) not in known:
                known[id(layer), apart] = numbers.setdefault((layer, apart), len(numbers))
        self._pattern = tuple(known[id(layer), apart] for layer, apart in layers)
        self._kinds = [layer for layer, _ in numbers]
        self._names: dict[int | tuple[Times, ...], str] = dict(enumerate(_names(self._kinds)))
        self._stem, self._hidden, self._dtype, self._normal = stem, hidden, dtype, normal
        self._made: dict[str, Body] = {}

    @property
    def bodies(self) -> dict[str, Graph]:
        """The graphs that are repeated, by name."""
        return {name: body.graph for name, body in self._made.items()}

    def build(self, beside: SideValues, x: Value, axes: tuple[str, ...] = ("batch", "seq", "embed")) -> Value:
        """Build all layers, and return the output of the last layer; the hidden states have these axes."""
        self._port = Port(beside.b.type(x), axes)
        return self._repeats(beside, x, fold(self._pattern))

    def _repeats(self, beside: SideValues, x: Value, parts: tuple[Times, ...]) -> Value:
        for times, of in parts:
            name = self._name(of)
            if name not in self._made:
                self._made[name] = self._body(name, of, beside.known)
            graph, takes, hands = self._made[name]
            gives = tuple(map(graph.type, graph.outputs[1:]))
            taken = (beside[take] for take in takes)
            given = beside.b.repeat(x, *taken, body=name, times=times, gives=gives, name=name)
            x, *handed = given if hands else (given,)
            for hand, value in zip(hands, handed, strict=True):
                beside.hand(hand, value, beside.known[hand].axes)
        return x

    def _name(self, of: int | tuple[Times, ...]) -> str:
        """The name of the body for a layer or a repeating sequence of layers."""
        if of not in self._names:
            periods = sum(isinstance(known, tuple) for known in self._names)
            self._names[of] = f"period_{periods + 1}" if periods else "period"
        return self._names[of]

    def _body(self, name: str, of: int | tuple[Times, ...], known: dict[str, Port]) -> Body:
        b = Builder(name)
        beside, x = SideValues(b, known), b.input(self._port.type, name="hidden", axes=self._port.axes)
        if isinstance(of, tuple):
            x = self._repeats(beside, x, of)
        else:
            blocks = Blocks(b, self._dtype, self._normal, self._stem, h=self._hidden)
            blocks.beside = beside
            x = self._kinds[of].build(blocks, x)
        b.output(x, *(beside[name] for name in beside.handed))
        return Body(b.graph(), tuple(beside.taken), tuple(beside.handed))


def _names(layers: Sequence[LayerLike]) -> list[str]:
    """A body name for each kind of layer: the kinds of its parts, with a number if names are equal."""
    parts = list(zip(*(layer.kinds for layer in layers), strict=True))
    names, count = [], Counter[str]()
    for layer in layers:
        words = zip(layer.kinds, parts, strict=True)
        name = "_".join([*(word for word, all in words if word and len(set(all)) > 1), "layer"])
        count[name] += 1
        names.append(f"{name}_{count[name]}" if count[name] > 1 else name)
    return names


# --- Decoder ---


@dataclass(frozen=True)
class CheckpointNames:
    """The checkpoint names of the parts of a decoder."""

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{layer}"
    norm: str = "model.norm"
    head: str = "lm_head"

    @property
    def stem(self) -> str:
        """The common prefix of all names except the head's, with a final dot."""
        return self.embedding.rpartition("embed")[0]

    def bare(self) -> CheckpointNames:
        """The names in a checkpoint of a model that was saved without its head."""
        return CheckpointNames(*(name.removeprefix("model.") for name in astuple(self)))


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned positions: checkpoint name, number of rows, and the row of the first token."""

    name: str
    rows: int
    first: int = 0


@dataclass(frozen=True)
class Draft:
    """A multi-token prediction layer, with the checkpoint names of its parts.

    The parts are the layer itself, the norms of embeddings and of hidden states, the projection of both, and
    the final norm.
    """

    layer: LayerLike
    stem: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str


@dataclass(frozen=True)
class Decoder:
    """An embedding, layers, a norm and a head: the result of most families.

    Embeddings and logits may be scaled, and logits soft-capped, unless `logits_cap` is 0. `learned` positions
    may be added, and `embedding_norm` names a norm of embeddings. With `head` "score" the outputs are logits
    of labels, and with "" they are hidden states. Layers may read a table by token id (`layer_table`), and
    process several streams (`altup`).
    """

    name: str
    architecture: str
    dtype: DType
    vocab: int
    hidden: int
    norm: Norm
    positions: int | None
    tied: bool
    layers: tuple[LayerLike, ...]
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float = 0.0
    head_bias: bool = False
    names: CheckpointNames = CheckpointNames()
    head: str = "lm_head"
    labels: int = 0
    learned: LearnedPositions | None = None
    embedding_norm: str = ""
    draft: Draft | None = None
    layer_table: LayerTable | None = None
    altup: AlternatingUpdates | None = None

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """Build the whole model from unfused ops.

        Args:
            logits: `last` for the last position of each sequence, or `all`.
            apart: One value per layer. Layers with different values have separate bodies.
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
        stack = LayerStack(kinds, f"{self.names.layer}.", self.hidden, self.dtype, self.norm)
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
        """The input of the first layer, computed from rows of the embedding table."""
        x = blocks.scale(x, self.embedding_scale, "embedding_scale")
        if self.learned:
            at = blocks.sized(z=self.learned.rows)
            rows = at.weight("z h", "positions.weight", f"{self.learned.name}.weight")
            x = blocks.b.positions(x, rows, offset=self.learned.first, name="positions")
        return blocks.norm(x, "embedding_norm", self.embedding_norm) if self.embedding_norm else x

    def headed(self, blocks: Blocks, x: Value, table: Value) -> Value:
        """Compute logits from hidden states, for all positions or for the last position."""
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
