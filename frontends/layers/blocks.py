"""Builders of weights, products and norms, which layers use; equations name the axes of weights.

An axis is a code of one or two letters, such as `h`. `AXES` gives the role of each axis. Sharding depends
only on these roles, which docs/sharding.md explains. `b` are sequences and `t` new tokens. Ops have the order
of transformers' eager code, so that live memory is also equal.

`SideValues` are values that graphs exchange in addition to hidden states, such as keys that later layers
read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Value
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import B, Size
from llmir.ir.tools.build import Builder

# --- Side values ---


class Port(NamedTuple):
    """One input of a graph: its type, and the logical names of its axes."""

    type: Tensor
    axes: tuple[str, ...]


@dataclass
class SideValues:
    """The named values of one graph.

    A name without a value in this graph becomes an input of the type in `known`, which all graphs of a model
    share. `handed` contains the values that other graphs may use.
    """

    b: Builder
    known: dict[str, Port]
    values: dict[str, Value] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    handed: dict[str, None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        if name not in self.values:
            type, axes = self.known[name]
            with self.b.block(""):
                self.values[name] = self.b.input(type, name=name, axes=axes)
            self.taken.append(name)
        return self.values[name]

    def hand(self, name: str, value: Value, axes: tuple[str, ...]) -> None:
        """Offer a value to other graphs under a name; a later value replaces an earlier value."""
        assert name not in self.taken, f"{name} of an iteration before"
        self.known[name] = Port(self.b.type(value), axes)
        self.values[name] = value
        self.handed[name] = None


# --- Blocks ---

# The role of each axis code in the equation terms of weights and states.
AXES = {
    "h": "embed",
    "f": "mlp",
    "g": "kv_heads",
    "r": "heads",
    "d": "head_dim",
    "v": "vocab",
    "z": "position",
    "c": "label",
    "e": "expert",
    "x": "route",
    "q": "q_latent",
    "l": "latent",
    "i": "index_heads",
    "u": "head_dim",
    "y": "index_dim",
    "p": "head_dim",
    "m": "head_dim",
    "n": "state",
    "w": "tap",
    "S": "series",
    "s": "stream",
    "j": "stream_weight",
    "o": "out_latent",
    "k": "rank",
    "st": "stream",
    "St": "stream",
    "ly": "layer",
    "li": "layer_input",
    "a": "scalar",
    "A": "row",
    "O": "column",
    "C": "channel",
    "F": "frequency",
    "J": "embed",
    "H": "embed",
}


def _place(param: str) -> tuple[str, str]:
    """Split a parameter name into the module, and the suffix for a piece or a transposition."""
    module = re.split(r"[\[^]", param)[0]
    return module, param.removeprefix(module)


@dataclass(frozen=True)
class Norm:
    """A model's normalization: the op, the learned parameters (`weight`, `bias`, both, none), and epsilon.

    `offset` is added to the weight (Gemma stores the weight minus 1).
    """

    eps: float = 1e-6
    opcode: str = "rms_norm"
    learns: tuple[str, ...] = ("weight",)
    offset: float = 0.0

    def build(self, blocks: Blocks, x: Value, name: str, param: str, axes: str, over: int) -> Value:
        """Normalize `x` over its last `over` axes; parameters have `axes` and are stored under `param`."""
        learned = [blocks.weight(axes, f"{name}.{what}", f"{param}.{what}") for what in self.learns]
        how: dict[str, Any] = {"eps": self.eps, "over": over, "name": name}
        how |= {"offset": self.offset} if self.offset else {}
        result: Value = getattr(blocks.b, self.opcode)(x, *learned, **how)
        return result


class Blocks:
    """Builds the ops of one model: a builder with the model's dtype, its norm, and the lengths of its axes.

    `stem` is the prefix of parameter names, with `{layer}` and a final dot. `beside` are values that graphs
    exchange in addition to hidden states. `adapters` maps modules to low-rank adapters, whose outputs are
    added to the outputs of these modules.
    """

    def __init__(self, b: Builder, dtype: DType, normal: Norm, stem: str = "", **sizes: Size) -> None:
        self.b, self.dtype, self.normal, self.stem, self.sizes = b, dtype, normal, stem, sizes
        self.beside = SideValues(b, {})
        self._made: dict[str, Value] = {}  # created weights by checkpoint name
        self.adapters: Mapping[str, str] = {}
        self.lows: dict[tuple[Value, str], Value] = {}

    def sized(self, **sizes: Size) -> Blocks:
        """A copy with the lengths of more axes."""
        found = Blocks(self.b, self.dtype, self.normal, self.stem, **{**self.sizes, **sizes})
        found.beside, found._made = self.beside, self._made
        found.adapters, found.lows = self.adapters, self.lows
        return found

    @property
    def hidden(self) -> int:
        """The size of the hidden states."""
        size = self.sizes["h"]
        assert isinstance(size, int)
        return size

    def tensor(self, *shape: Size, dtype: DType | None = None) -> Tensor:
        """A tensor type with the model's dtype."""
        return Tensor(shape, dtype or self.dtype)

    def weight(
        self,
        axes: str,
        name: str,
        param: str,
        *,
        dtype: DType | None = None,
        buffer: bool = False,
    ) -> Value:
        """A parameter or buffer with the axes of an equation term such as `h g r d`, created on first use."""
        letters = axes.split()
        type = self.tensor(*(self.sizes[x.lower()] for x in letters), dtype=dtype)
        how: dict[str, Any] = {"name": name, "param": self.stem + param}
        make = self.b.buffer if buffer else self.b.weight
        if param not in self._made:
            self._made[param] = make(type, axes=tuple(AXES[x] for x in letters), **how)
        return self._made[param]

    def linear(
        self,
        x: Value,
        term: str,
        weight: str,
        out: str,
        name: str,
        param: str,
        *,
        bias: bool = False,
        dtype: DType | None = None,
    ) -> Value:
        """x · W (+ bias) by the equation `term, weight -> out`; `param` is the module.

        The bias has the axes of W that x does not have. `dtype` is the dtype of W, if different from the
        model's.
        """
        module, place = _place(param)
        stored = f"{module}.weight{place}", f"{module}.bias{place.removesuffix('^T')}"
        operands, terms = [x, self.weight(weight, f"{name}.weight", stored[0], dtype=dtype)], [term, weight]
        if bias:
            added = " ".join(a for a in weight.split() if a not in term.split())
            operands.append(self.weight(added, f"{name}.bias", stored[1]))
            terms.append(added)
        result: Value = self.b.linear(*operands, einsum=f"{', '.join(terms)} -> {out}", name=name)
        return self._adapted(result, x, (term, weight, out), name, param)

    def _adapted(self, y: Value, x: Value, terms: tuple[str, str, str], name: str, param: str) -> Value:
        """Add the output of a module's low-rank adapter, if any, to its output y (arXiv:2106.09685)."""
        module, piece = _place(param)
        if not (adapter := self.adapters.get(module)):
            return y
        term, weight, out = terms
        rows = " ".join(axis for axis in term.split() if axis not in weight.split())
        ins = " ".join(axis for axis in weight.split() if axis in term.split())
        outs = " ".join(axis for axis in weight.split() if axis not in term.split())
        if (x, adapter) not in self.lows:  # all pieces of a tensor share this product
            own = f"{name}_low", f"{adapter}.0"
            self.lows[x, adapter] = self.linear(x, term, f"{ins} k", f"{rows} k", *own)
        low = self.lows[x, adapter]
        more = self.linear(low, f"{rows} k", f"k {outs}", out, f"{name}_raised", f"{adapter}.1{piece}")
        total: Value = self.b.add(y, more, name=f"{name}_adapted")
        return total

    def merged(
        self,
        x: Value,
        weights: Mapping[str, str],
        name: str,
        param: str,
        blocks: int = 1,
        *,
        bias: bool = False,
    ) -> list[Value]:
        """Several products of x; `param` stores the weights, given as axes by name, one after another.

        The first axis of each weight is the last axis of x. Storage interleaves the weights in `blocks`
        blocks.
        """
        ins = next(iter(weights.values())).split()[0]
        outs = {part: axes.split(maxsplit=1)[1] for part, axes in weights.items()}
        if len(weights) == 1:
            return [self.linear(x, f"b t {ins}", weights[name], f"b t {outs[name]}", name, param, bias=bias)]
        among = f"/{blocks}" if blocks > 1 else ""
        pieces = {part: f"[{i}{among}]" for i, part in enumerate(weights)}
        kinds = [("weight", weights), *([("bias", outs)] if bias else [])]
        taken = [
            self.weight(axes[part], f"{part}.{what}", f"{param}.{what}{pieces[part]}")
            for what, axes in kinds
            for part in weights
        ]
        terms = ", ".join([f"b t {ins}", *(axes[part] for _, axes in kinds for part in weights)])
        einsum = f"{terms} -> {', '.join(f'b t {out}' for out in outs.values())}"
        return list(self.b.linear(x, *taken, einsum=einsum, name=name))

    def convolved(
        self,
        x: Value,
        axes: str,
        name: str,
        param: str,
        *,
        bias: bool,
        piece: int | None = None,
        block: str | None = None,
    ) -> Value:
        """A short convolution of each channel of x over tokens; a cache stores the last tokens."""
        which = "" if piece is None else f"[{piece}]"
        weight = self.weight(f"{axes} w", f"{name}.weight", f"{param}.weight{which}")
        added = [self.weight(axes, f"{name}.bias", f"{param}.bias{which}")] if bias else []
        state = self.state(f"w {axes}", f"{name}_state", {"w": self.sizes["w"] - 1}, self.dtype)
        y: Value
        y, _ = self.b.causal_conv(x, weight, state, *added, name=name, block=block)
        return y

    def state(self, axes: str, name: str, sizes: Mapping[str, Size], dtype: DType) -> Value:
        """A state per sequence, zero before the first token; `sizes` override the lengths of axes."""
        letters = axes.split()
        shape = (B, *({**self.sizes, **sizes}[x] for x in letters))
        named = ("batch", *(AXES[x] for x in letters))
        return self.b.cache(self.tensor(*shape, dtype=dtype), name=name, axes=named)

    def norm(self, x: Value, name: str, param: str, axes: str = "h", over: int = 1) -> Value:
        """The model's norm over the last axes; its parameters have `axes`."""
        with self.b.block("norm"):
            return self.normal.build(self, x, name, param, axes, over)

    def scale(self, x: Value, factor: float, name: str) -> Value:
        """x · factor; x itself if the factor is 1."""
        if factor == 1:
            return x
        result: Value = self.b.scale(x, factor=factor, name=name)
        return result

    def cap(self, x: Value, cap: float, name: str) -> Value:
        """Soft-cap x; return x itself if `cap` is 0."""
        if not cap:
            return x
        result: Value = self.b.soft_cap(x, cap=cap, name=name)
        return result

    def cast(self, x: Value, to: DType) -> Value:
        """x in another dtype; x itself if x already has this dtype."""
        if self.b.type(x).dtype == to:
            return x
        result: Value = self.b.cast(x, to=to.name)
        return result
