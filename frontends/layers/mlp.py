"""Gated MLPs, mixtures of experts with their routers, and both in parallel."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32, INT64, DType
from llmir.ir.core.graph import Value

from .blocks import Blocks


def _clamp(numbers: tuple[float, ...]) -> dict[str, Any]:
    """The attributes of the op."""
    return dict(zip(("limit", "slope", "offset"), numbers, strict=False))


_GATED = ("gate_proj", "up_proj", "down_proj")  # the most common names of the matrices of a gated MLP


@dataclass(frozen=True)
class Mlp:
    """down(act(gate(x)) · up(x)); `module` is the name in checkpoints, and `prefix` begins the names of ops.

    - `matrices`: The names of gate, up and down. Two names mean up and down of down(act(up(x))), without a
      gate.
    - `activation`: An opcode; `learned` names its parameters.
    - `scales`: The factors of the activation's result and of the output.
    - `clamp`: Limit, slope and offset of `clamped_glu`, which replaces the activation and the product.
    - `sparsity`: The fraction of activations that is set to 0; only the largest activations remain.
    - `norm`: The name of a norm of the input of `down`, "" for none.
    """

    intermediate: int
    bias: bool = False
    module: str = "mlp"
    block: str = "mlp"
    prefix: str = ""
    matrices: tuple[str, ...] = _GATED
    activation: str = "silu"
    learned: tuple[str, ...] = ()
    scales: tuple[float, float] = (1.0, 1.0)
    clamp: tuple[float, ...] | None = None
    sparsity: float = 0.0
    norm: str = ""

    @property
    def kind(self) -> str:
        """`sparse` if some activations are set to 0, else `dense`."""
        return "sparse" if self.sparsity else "dense"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the MLP to the program; return the summand for the hidden states."""
        b, at, own = blocks.b, blocks.sized(f=self.intermediate, a=1), self.prefix
        *gate, up, down = self.matrices

        def project(x: Value, term: str, weight: str, out: str, name: str, stored: str) -> Value:
            param = f"{self.module}.{stored}".lstrip(".")
            return at.linear(x, term, weight, out, own + name, param, bias=self.bias)

        def act(x: Value) -> Value:
            x = at.scale(x, self.scales[0], f"{own}act_scale")
            if self.sparsity:
                x = b.gaussian_top(x, b.moments(x), sparsity=self.sparsity, name=f"{own}gaussian_top")
            numbers = [at.weight("a", own + name, f"{self.module}.{name}") for name in self.learned]
            result: Value = getattr(b, self.activation)(x, *numbers, name=f"{own}{self.activation}")
            return result

        with b.block(self.block):
            if gate and self.clamp:
                pair = zip(("gate_proj", "up_proj"), (*gate, up), strict=True)
                both = [project(x, "b t h", "h f", "b t f", name, stored) for name, stored in pair]
                wide = b.clamped_glu(*both, name=f"{own}clamped_glu", **_clamp(self.clamp))
            elif gate:
                acted = act(project(x, "b t h", "h f", "b t f", "gate_proj", gate[0]))
                wide = project(x, "b t h", "h f", "b t f", "up_proj", up)
                wide = b.mul(acted, wide, name=f"{own}gate_mul")
            else:
                wide = act(project(x, "b t h", "h f", "b t f", "up_proj", up))
            if self.norm:
                wide = at.norm(wide, f"{own}down_norm", f"{self.module}.{self.norm}".lstrip("."), "f")
            out = project(wide, "b t f", "f h", "b t h", "down_proj", down)
            return at.scale(out, self.scales[1], f"{own}down_scale")


@dataclass(frozen=True)
class Routing:
    """The choice of experts with the largest scores; scores are a softmax or an activation of router logits.

    - `normalize`, `scale`: The weights of chosen experts are divided by their sum and multiplied by `scale`.
    - `groups`, `kept`, `best`: Experts come from `kept` of `groups` groups: the groups with the largest sums
      of their `best` highest scores.
    - `correction`: The name of an fp32 bias that affects only the choice: a buffer, or a parameter if
      `learned`.
    - `jitter`: Choose two experts as `sparse_mixer` does.
    - `table`, `rows`: The name and the size of a table that gives the experts of each token id.
    - `expert_scale`: The name of a learned factor per expert, which multiplies the routing weights.
    """

    score: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    best: int = 1
    correction: str = ""
    learned: bool = False
    jitter: float = 0.0
    table: str = ""
    rows: int = 0
    expert_scale: str = ""

    def build(self, blocks: Blocks, logits: Value, chosen: int) -> tuple[Value, Value]:
        """The weights and the indices of the experts of each token."""
        b = blocks.b
        if self.jitter:
            return b.sparse_mixer(blocks.cast(logits, FP32), jitter=self.jitter)
        scores = getattr(b, self.score)(blocks.cast(logits, FP32), name=f"route_{self.score}")
        if self.table:
            at = blocks.sized(z=self.rows, k=chosen)
            table = at.weight("z k", "expert_table", self.table, dtype=INT64, buffer=True)
            return b.hash_top_k(scores, table, blocks.beside["tokens"], scale=self.scale)
        how: dict[str, Any] = {name: getattr(self, name) for name in ("groups", "kept", "best", "scale")}
        added = []
        if self.correction:
            held: dict[str, Any] = {"dtype": FP32, "buffer": not self.learned}
            added = [blocks.weight("x", "correction", self.correction, **held)]
        weights, experts = b.top_k(scores, *added, k=chosen, normalize=self.normalize, **how)
        if self.expert_scale:
            scales = blocks.weight("x", "expert_scale.weight", self.expert_scale)
            weights = b.expert_scale(weights, experts, scales, name="expert_scale")
        return weights, experts


def expert_tensor_names(*matrices: str) -> tuple[str, ...]:
    """The names of an expert's matrices in checkpoints that store each expert separately."""
    return tuple(f"experts.{{expert}}.{name}.weight" for name in matrices or _GATED)


@dataclass(frozen=True)
class Moe:
    """`count` experts; each token uses `chosen` experts, and sums their outputs by routing weight.

    - `module`, `router`, `matrices`, `biases`: Names in checkpoints. The matrices are gate, up and down, or
      up and down.
    - `clamp`: Limit, slope and offset of `clamped_glu`, which replaces the product of gate and up.
    - `scaled_inputs`: Routing weights scale the inputs of experts instead of the outputs.
    - `shared`, `shared_gate`: An expert that all tokens use, and the name of its output gate.
    - `norm`, `router_scale`: A separate norm of the experts' inputs, and the weight of the router's scaled
      norm.
    - `latent`, `latent_projections`: The size and modules of a smaller space in which the experts compute
      (LatentMoE).
    """

    block: ClassVar[str] = "routed_experts"

    count: int
    chosen: int
    intermediate: int
    routing: Routing
    module: str = "mlp"
    router: str = "gate"
    router_bias: bool = False
    router_dtype: DType | None = None
    matrices: tuple[str, ...] = expert_tensor_names()
    biases: tuple[str, ...] | None = None
    activation: str = "silu"
    clamp: tuple[float, ...] | None = None
    scaled_inputs: bool = False
    shared: Mlp | None = None
    shared_gate: str = ""
    norm: str = ""
    router_scale: str = ""
    latent: int | None = None
    latent_projections: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")

    @property
    def kind(self) -> str:
        """`hash_moe` if a table selects the experts, else `moe`."""
        return "hash_moe" if self.routing.table else "moe"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the experts to the program; return the summand for the hidden states."""
        if not self.shared:
            return self._routed(blocks, x)
        b, always, routed = blocks.b, self.shared.build(blocks, x), self._routed(blocks, x)
        if self.shared_gate:
            with b.block("router"):
                gate = blocks.linear(x, "b t h", "h", "b t", "shared_gate", self.shared_gate)
            with b.block(self.shared.block):
                always = b.sigmoid_mul(always, gate, name="shared_scaled")
        with b.block(self.shared.block):
            return b.add(always, routed, name="shared_add")

    def _routed(self, blocks: Blocks, x: Value) -> Value:
        b, at = blocks.b, blocks.sized(e=self.count, x=self.count, f=self.intermediate, l=self.latent or 1)
        with b.block("router"):
            name = self._named(self.router)
            how: dict[str, Any] = {"bias": self.router_bias, "dtype": self.router_dtype}
            seen = self._scaled(at, x) if self.router_scale else x
            logits = at.linear(seen, "b t h", "h x", "b t x", "gate", name, **how)
            weights, chosen = self.routing.build(at, logits, self.chosen)
        x = at.norm(x, "experts_norm", self.norm) if self.norm else x
        into, back = map(self._named, self.latent_projections)
        with b.block(self.block):
            if self.latent:
                x = at.linear(x, "b t h", "h l", "b t l", "latent_in_proj", into)
            if self.scaled_inputs:
                rows, chosen = b.scaled_dispatch(x, chosen, weights, experts=self.count)
            else:
                rows, chosen = b.dispatch(x, chosen, experts=self.count)
            down = self._project(at, self._gated(at, rows, chosen), chosen, 2)
            total: Value = (b.sum_experts if self.scaled_inputs else b.combine)(down, weights)
            if self.latent:
                total = at.linear(total, "b t l", "l h", "b t h", "latent_out_proj", back)
            return total

    def _named(self, part: str) -> str:
        """The name of a part in checkpoints."""
        return f"{self.module}.{part}".lstrip(".")

    def _scaled(self, at: Blocks, x: Value) -> Value:
        """The input of the router: rows normalized to a sum of squares of 1, times a weight."""
        weight = at.weight("h", "router_scale", self._named(self.router_scale))
        normed = at.b.rms_norm(x, weight, eps=at.normal.eps, name="router_norm")
        return at.scale(normed, at.hidden**-0.5, "router_root")

    def _gated(self, at: Blocks, rows: Value, chosen: Value) -> Value:
        """act(gate) · up of the rows, or act(up) without a gate."""
        b, gated = at.b, len(self.matrices) == 3
        gate = self._project(at, rows, chosen, 0 if gated else 1)
        if self.clamp:
            up = self._project(at, rows, chosen, 1)
            clamped: Value = b.clamped_glu(gate, up, name="clamped_glu", **_clamp(self.clamp))
            return clamped
        acted: Value = getattr(b, self.activation)(gate, name=self.activation)
        if not gated:
            return acted
        product: Value = b.mul(acted, self._project(at, rows, chosen, 1), name="gate_mul")
        return product

    def _project(self, at: Blocks, rows: Value, chosen: Value, which: int) -> Value:
        """Rows times the gate, up or down of their experts."""
        h = "l" if self.latent else "h"
        name, ins, outs = (("gate_proj", h, "f"), ("up_proj", h, "f"), ("down_proj", "f", h))[which]
        param = self._named(self.matrices[which - 3])
        operands = [rows, at.weight(f"e {ins} {outs}", f"{name}.weight", param), chosen]
        terms = [f"s {ins}", f"[e] {ins} {outs}", "s"]
        if self.biases:
            operands.append(at.weight(f"e {outs}", f"{name}.bias", self._named(self.biases[which - 3])))
            terms.append(f"[e] {outs}")
        how: dict[str, Any] = {"top_k": self.chosen, "experts": self.count, "name": name}
        result: Value = at.b.grouped_linear(*operands, einsum=f"{', '.join(terms)} -> s {outs}", **how)
        return result


@dataclass(frozen=True)
class ParallelMlpMoe:
    """A dense MLP and experts in parallel, with separate norms (Gemma 4).

    Norms come before and after the MLP, and after the experts.
    """

    kind: ClassVar[str] = "moe"
    block: ClassVar[str] = "mlp"

    mlp: Mlp
    experts: Moe
    norms: tuple[str, str, str]

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the MLP and the experts to the program; return the sum of their outputs."""
        before, after, behind = self.norms
        dense = self.mlp.build(blocks, blocks.norm(x, "post_norm", before))
        dense = blocks.norm(dense, "dense_norm", after)
        routed = blocks.norm(self.experts.build(blocks, x), "routed_norm", behind)
        with blocks.b.block(self.block):
            total: Value = blocks.b.add(dense, routed, name="mixture_add")
            return total
