"""The layers of decoders as data: what mixes tokens and what follows, each a spec that builds itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from llmir.build import Builder
from llmir.dim import B, C, T
from llmir.dtype import FP32, DType
from llmir.graph import Graph, Value
from llmir.masks import mask

from .blocks import LAYER, Blocks

_GATED = ("gate_proj", "up_proj", "down_proj")  # what most call the matrices of a gated MLP


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, and how they stretch beyond the trained length."""

    theta: float
    scaling: str = "none"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the cache, eager: the scores go through memory.

    `matrices` are what checkpoints call the projections to q, k and v.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    mask: str = "causal"
    matrices: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")

    @property
    def kind(self) -> str:
        """Whether it sees all keys or a part, as configs call it."""
        return "full" if self.mask == "causal" else "sliding"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        b, module = blocks.b, f"{LAYER}self_attn."
        at = blocks.sized(g=self.kv_heads, r=self.heads // self.kv_heads, d=self.head_dim)
        stored = dict(zip(("q_proj", "k_proj", "v_proj"), self.matrices, strict=True))

        def project(weight: str, out: str, name: str) -> Value:
            return at.linear(x, "b t h", weight, out, name, module + stored[name], bias=self.qkv_bias)

        with b.block("attention"):
            q = project("h g r d", "b t g r d", "q_proj")
            q = at.norm(q, "q_norm", f"{module}q_norm", "d") if self.qk_norm else q
            k = project("h g d", "b t g d", "k_proj")
            k = at.norm(k, "k_norm", f"{module}k_norm", "d") if self.qk_norm else k
            v = project("h g d", "b t g d", "v_proj")
            how: dict[str, Any] = vars(self.rope)
            q, k = b.rope(q, name="rope_q", **how), b.rope(k, name="rope_k", **how)
            axes = ("batch", "cached", "kv_heads", "head_dim")
            kept = at.tensor(B, mask(self.mask).kept(C), self.kv_heads, self.head_dim)
            keys = b.append(b.cache(kept, name="k_cache", axes=axes), k, name="append_k")
            values = b.append(b.cache(kept, name="v_cache", axes=axes), v, name="append_v")
        with b.block("attention_core"):
            scores = b.attention_scores(q, keys, scale=self.head_dim**-0.5, name="scores")
            masked = b.attention_mask(scores, mask=self.mask, name="mask")
            probabilities = b.softmax(at.cast(masked, FP32), name="softmax")
            mixed = b.attention_mix(at.cast(probabilities, at.dtype), values, name="mix")
        with b.block("attention"):
            how = {"bias": self.out_bias}
            return at.linear(mixed, "b t g r d", "g r d h", "b t h", "o_proj", f"{module}o_proj", **how)


@dataclass(frozen=True)
class Mlp:
    """down(silu(gate(x)) · up(x)), which checkpoints call `module`; its ops' names begin with `prefix`.

    `matrices` are what they call gate, up and down.
    """

    kind: ClassVar[str] = "dense"

    intermediate: int
    bias: bool = False
    module: str = "mlp"
    block: str = "mlp"
    prefix: str = ""
    matrices: tuple[str, str, str] = _GATED

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        b, at, own = blocks.b, blocks.sized(f=self.intermediate), self.prefix
        stored = dict(zip(_GATED, self.matrices, strict=True))

        def project(x: Value, term: str, weight: str, out: str, name: str) -> Value:
            param = f"{LAYER}{self.module}.{stored[name]}"
            return at.linear(x, term, weight, out, own + name, param, bias=self.bias)

        with b.block(self.block):
            gate = b.silu(project(x, "b t h", "h f", "b t f", "gate_proj"), name=f"{own}silu")
            up = project(x, "b t h", "h f", "b t f", "up_proj")
            return project(b.mul(gate, up, name=f"{own}gate_mul"), "b t f", "f h", "b t h", "down_proj")


@dataclass(frozen=True)
class Moe:
    """`count` experts, of which each token goes through `chosen`; outputs are summed by routing weight.

    `module` and `matrices` (gate, up, down) are what checkpoints call it and an expert's weights. All tokens
    go through the `shared` one, whose output a gate scales.
    """

    kind: ClassVar[str] = "moe"
    block: ClassVar[str] = "routed_experts"

    count: int
    chosen: int
    intermediate: int
    normalize: bool
    module: str = "mlp"
    matrices: tuple[str, str, str] = _GATED
    shared: Mlp | None = None

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        if not self.shared:
            return self._routed(blocks, x)
        b, module = blocks.b, f"{LAYER}{self.shared.module}_gate"
        always, routed = self.shared.build(blocks, x), self._routed(blocks, x)
        with b.block("router"):
            gate = blocks.linear(x, "b t h", "h", "b t", "shared_gate", module)
        with b.block(self.shared.block):
            scaled = b.sigmoid_mul(always, gate, name="shared_scaled")
            return b.add(scaled, routed, name="shared_add")

    def _routed(self, blocks: Blocks, x: Value) -> Value:
        b, at = blocks.b, blocks.sized(e=self.count, x=self.count, f=self.intermediate)
        stored = dict(zip(_GATED, self.matrices, strict=True))

        def grouped(rows: Value, chosen: Value, ins: str, outs: str, name: str) -> Value:
            param = f"{LAYER}{self.module}.experts.{{expert}}.{stored[name]}.weight"
            weight = at.weight(f"e {ins} {outs}", f"{name}.weight", param)
            einsum = f"s {ins}, [e] {ins} {outs}, s -> s {outs}"
            how: dict[str, Any] = {"einsum": einsum, "top_k": self.chosen, "experts": self.count}
            result: Value = b.grouped_linear(rows, weight, chosen, name=name, **how)
            return result

        with b.block("router"):
            logits = at.linear(x, "b t h", "h x", "b t x", "gate", f"{LAYER}{self.module}.gate")
            scores = b.softmax(at.cast(logits, FP32), name="route_softmax")
            weights, chosen = b.top_k(scores, k=self.chosen, normalize=self.normalize)
        with b.block(self.block):
            rows, chosen = b.dispatch(x, chosen)
            gate = b.silu(grouped(rows, chosen, "h", "f", "gate_proj"), name="silu")
            up = grouped(rows, chosen, "h", "f", "up_proj")
            down = grouped(b.mul(gate, up, name="gate_mul"), chosen, "f", "h", "down_proj")
            combined: Value = b.combine(down, weights)
            return combined


@dataclass(frozen=True)
class Layer:
    """Norm, mixer, residual; norm, mlp, residual."""

    mixer: Attention
    mlp: Mlp | Moe

    def graph(self, name: str, hidden: int, dtype: DType, eps: float) -> Graph:
        """The body: hidden state in, hidden state out."""
        b = Builder(name)
        blocks = Blocks(b, dtype, eps, h=hidden)
        x = b.input(blocks.tensor(B, T, hidden), name="hidden", axes=("batch", "seq", "embed"))
        mixed = self.mixer.build(blocks, blocks.norm(x, "input_norm", f"{LAYER}input_layernorm"))
        with b.block("attention"):
            x = b.add(x, mixed, name="attention_add")
        mixed = self.mlp.build(blocks, blocks.norm(x, "post_norm", f"{LAYER}post_attention_layernorm"))
        with b.block(self.mlp.block):
            b.output(b.add(x, mixed, name="mlp_add"))
        return b.graph()
