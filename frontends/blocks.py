"""The blocks that decoder models are made of, written once as functions on a Builder.

Axes: `b` sequences, `t` new tokens, `h` hidden, `g` key/value heads, `r` query heads for each of them,
`d` head size, `f` intermediate, `v` vocabulary, `e` experts. Ops come in the order in which
transformers' eager code runs them, so that live memory is that code's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from llmir.build import Builder
from llmir.dim import B, C, Size, T
from llmir.dtype import FP32, INT64, DType
from llmir.graph import Graph, Program, Value
from llmir.tensor import Tensor


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, and how they stretch beyond the trained length."""

    theta: float
    scaling: str = "none"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Experts:
    """Routed experts: how many, how many a token takes, and their intermediate size."""

    count: int
    chosen: int
    intermediate: int
    normalize: bool


@dataclass(frozen=True)
class Decoder:
    """What the decoder families differ in. `moe` says of each layer whether it has the experts."""

    name: str
    architecture: str
    dtype: DType
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    moe: tuple[bool, ...]
    rope: Rope
    eps: float
    positions: int | None
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None


_ATTENTION = "model.layers.{layer}.self_attn."
_MLP = "model.layers.{layer}.mlp."

_AXES = {
    "h": "embed",
    "f": "mlp",
    "g": "kv_heads",
    "r": "heads",
    "d": "head_dim",
    "v": "vocab",
    "e": "expert",
    "x": "route",
}


class Blocks:
    """Blocks of one model on one builder; `sizes` gives the letters of equations their lengths."""

    def __init__(self, b: Builder, model: Decoder) -> None:
        self.b, self.model = b, model
        self.sizes: dict[str, Size] = {
            "h": model.hidden,
            "f": model.intermediate,
            "g": model.kv_heads,
            "r": model.heads // model.kv_heads,
            "d": model.head_dim,
            "v": model.vocab,
        }
        if model.experts:
            self.sizes |= {
                "e": model.experts.count,
                "x": model.experts.count,
                "f": model.experts.intermediate,
            }

    def tensor(self, *shape: Size, dtype: DType | None = None) -> Tensor:
        """A tensor of the model's element type."""
        return Tensor(shape, dtype or self.model.dtype)

    def weight(self, axes: str, name: str, param: str) -> Value:
        """A parameter with the axes of an equation term such as `h g r d`."""
        letters = axes.split()
        shape = self.tensor(*(self.sizes[x] for x in letters))
        return self.b.weight(shape, name=name, axes=tuple(_AXES[x] for x in letters), param=param)

    def linear(
        self, x: Value, term: str, weight: str, out: str, name: str, param: str, *, bias: bool = False
    ) -> Value:
        """x · W (+ bias) by `term, weight -> out`; the bias has the axes that W adds."""
        operands, terms = [x, self.weight(weight, f"{name}.weight", f"{param}{name}.weight")], [term, weight]
        if bias:
            added = " ".join(a for a in weight.split() if a not in term.split())
            operands.append(self.weight(added, f"{name}.bias", f"{param}{name}.bias"))
            terms.append(added)
        result: Value = self.b.linear(*operands, einsum=f"{', '.join(terms)} -> {out}", name=name)
        return result

    def norm(self, x: Value, name: str, param: str, axis: str = "h") -> Value:
        """RMSNorm over `axis`."""
        with self.b.block("norm"):
            weight = self.weight(axis, f"{name}.weight", param)
            normed: Value = self.b.rms_norm(x, weight, eps=self.model.eps, name=name)
            return normed

    def cast(self, x: Value, to: DType) -> Value:
        """x in another element type; x itself if it has it."""
        if self.b.type(x).dtype == to:
            return x
        result: Value = self.b.cast(x, to=to.name)
        return result

    def attention(self, x: Value) -> Value:
        """Grouped-query attention over the cache, eager: the scores go through memory."""
        b, m = self.b, self.model
        with b.block("attention"):
            q = self.linear(x, "b t h", "h g r d", "b t g r d", "q_proj", _ATTENTION, bias=m.qkv_bias)
            q = self.norm(q, "q_norm", f"{_ATTENTION}q_norm.weight", "d") if m.qk_norm else q
            k = self.linear(x, "b t h", "h g d", "b t g d", "k_proj", _ATTENTION, bias=m.qkv_bias)
            k = self.norm(k, "k_norm", f"{_ATTENTION}k_norm.weight", "d") if m.qk_norm else k
            v = self.linear(x, "b t h", "h g d", "b t g d", "v_proj", _ATTENTION, bias=m.qkv_bias)
            how: dict[str, Any] = {
                "theta": m.rope.theta,
                "scaling": m.rope.scaling,
                "factors": m.rope.factors,
            }
            q, k = b.rope(q, name="rope_q", **how), b.rope(k, name="rope_k", **how)
            axes = ("batch", "cached", "kv_heads", "head_dim")
            kept = self.tensor(B, C, m.kv_heads, m.head_dim)
            keys = b.append(b.cache(kept, name="k_cache", axes=axes), k, name="append_k")
            values = b.append(b.cache(kept, name="v_cache", axes=axes), v, name="append_v")
        with b.block("attention_core"):
            scores = b.attention_scores(q, keys, scale=m.head_dim**-0.5, name="scores")
            masked = b.causal_mask(scores, name="mask")
            probabilities = b.softmax(self.cast(masked, FP32), name="softmax")
            mixed = b.attention_mix(self.cast(probabilities, m.dtype), values, name="mix")
        with b.block("attention"):
            return self.linear(mixed, "b t g r d", "g r d h", "b t h", "o_proj", _ATTENTION, bias=m.out_bias)

    def mlp(self, x: Value) -> Value:
        """down(silu(gate(x)) · up(x))."""
        b, bias = self.b, self.model.mlp_bias
        with b.block("mlp"):
            gate = b.silu(self.linear(x, "b t h", "h f", "b t f", "gate_proj", _MLP, bias=bias), name="silu")
            up = self.linear(x, "b t h", "h f", "b t f", "up_proj", _MLP, bias=bias)
            gated = b.mul(gate, up, name="gate_mul")
            return self.linear(gated, "b t f", "f h", "b t h", "down_proj", _MLP, bias=bias)

    def moe(self, x: Value, experts: Experts) -> Value:
        """Each token through its top-k experts, whose outputs are summed by routing weight."""
        b = self.b

        def grouped(rows: Value, chosen: Value, ins: str, outs: str, name: str) -> Value:
            param = f"{_MLP}experts.{{expert}}.{name}.weight"
            weight = self.weight(f"e {ins} {outs}", f"{name}.weight", param)
            einsum = f"s {ins}, [e] {ins} {outs}, s -> s {outs}"
            how: dict[str, Any] = {
                "einsum": einsum,
                "top_k": experts.chosen,
                "experts": experts.count,
                "name": name,
            }
            result: Value = b.grouped_linear(rows, weight, chosen, **how)
            return result

        with b.block("router"):
            logits = self.linear(x, "b t h", "h x", "b t x", "gate", _MLP)
            scores = b.softmax(self.cast(logits, FP32), name="route_softmax")
            weights, chosen = b.top_k(scores, k=experts.chosen, normalize=experts.normalize)
        with b.block("routed_experts"):
            rows, chosen = b.dispatch(x, chosen)
            gate = b.silu(grouped(rows, chosen, "h", "f", "gate_proj"), name="silu")
            up = grouped(rows, chosen, "h", "f", "up_proj")
            down = grouped(b.mul(gate, up, name="gate_mul"), chosen, "f", "h", "down_proj")
            combined: Value = b.combine(down, weights)
            return combined


def layer(name: str, model: Decoder, *, moe: bool) -> Graph:
    """One decoder layer: hidden state in, hidden state out."""
    b = Builder(name)
    blocks = Blocks(b, model if moe else _dense(model))
    x = b.input(blocks.tensor(B, T, model.hidden), name="hidden", axes=("batch", "seq", "embed"))
    normed = blocks.norm(x, "input_norm", "model.layers.{layer}.input_layernorm.weight")
    attended = blocks.attention(normed)
    with b.block("attention"):
        x = b.add(x, attended, name="attention_add")
    normed = blocks.norm(x, "post_norm", "model.layers.{layer}.post_attention_layernorm.weight")
    experts = model.experts if moe else None
    mixed = blocks.moe(normed, experts) if experts else blocks.mlp(normed)
    with b.block("routed_experts" if experts else "mlp"):
        b.output(b.add(x, mixed, name="mlp_add"))
    return b.graph()


def _dense(model: Decoder) -> Decoder:
    from dataclasses import replace

    return replace(model, experts=None) if model.experts else model


def decoder(model: Decoder, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
    """The whole model, unfused, for `logits` of the `last` position of each sequence or of `all`.

    Layers of which `apart`, one entry for each, says different things have bodies of their own.
    """
    b = Builder("main")
    blocks = Blocks(b, model)
    kinds = list(zip(model.moe, apart or [None] * len(model.moe), strict=True))
    names = _names(kinds)
    tokens = b.input(blocks.tensor(B, T, dtype=INT64), name="tokens", axes=("batch", "seq"))
    with b.block("embedding"):
        table = blocks.weight("v h", "embed.weight", "model.embed_tokens.weight")
        x = b.embedding(table, tokens)
    bodies: dict[str, Graph] = {}
    for kind, run in groupby(kinds):
        body, times = names[kind], len(list(run))
        if body not in bodies:
            bodies[body] = layer(body, model, moe=kind[0])
        x = b.repeat(x, body=body, times=times, name=body)
    x = blocks.norm(x, "final_norm", "model.norm.weight")
    with b.block("lm_head"):
        head = table if model.tied else blocks.weight("v h", "lm_head.weight", "lm_head.weight")
        if logits == "last":
            b.output(b.linear(b.last_token(x), head, einsum="b h, v h -> b v", name="lm_head"))
        else:
            b.output(b.linear(x, head, einsum="b t h, v h -> b t v", name="lm_head"))
    return Program(
        model.name,
        {"main": b.graph(), **bodies},
        facts={
            "architecture": model.architecture,
            "layers": len(model.moe),
            **({"positions": model.positions} if model.positions is not None else {}),
        },
    )


def _names(kinds: Sequence[tuple[bool, Hashable]]) -> dict[tuple[bool, Hashable], str]:
    """What the body of each kind of layer is called: by what it has, and a number if it must."""
    mixed, names = len({moe for moe, _ in kinds}) > 1, {}
    for moe in (False, True):
        name = ("moe_layer" if moe else "dense_layer") if mixed else "layer"
        for i, kind in enumerate(dict.fromkeys(kind for kind in kinds if kind[0] == moe), start=1):
            names[kind] = f"{name}_{i}" if i > 1 else name
    return names
