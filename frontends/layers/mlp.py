"""Gated MLPs, mixtures of experts with their routers, and both in parallel."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32, INT64, DType
from llmir.ir.core.graph import Value

from .blocks import Blocks


def _clamp(numbers: tuple[float, ...]) -> dict[str, Any]:
    """As attributes of the op."""
    return dict(zip(("limit", "slope", "offset"), numbers, strict=False))


_GATED = ("gate_proj", "up_proj", "down_proj")  # what most call the matrices of a gated MLP


@dataclass(frozen=True)
class Mlp:
    """down(act(gate(x)) · up(x)), which checkpoints call `module`; its ops' names begin with `prefix`.

    `matrices` are what they call gate, up and down; two of them are up and down of down(act(up(x))), without
    a gate. `activation` is an opcode; numbers that it learns are called `learned` there. What is activated
    and what comes out are scaled by `scales`. With a `clamp`, act and the product are those of `clamped_glu`:
    limit, slope and offset. With a `sparsity`, of what is activated only the largest share is not 0.
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

    @property
    def kind(self) -> str:
        """Whether all of it is activated."""
        return "sparse" if self.sparsity else "dense"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
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
            out = project(wide, "b t f", "f h", "b t h", "down_proj", down)
            return at.scale(out, self.scales[1], f"{own}down_scale")


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts: by an activation of the router's logits, or softmax, the largest of them.

    With `normalize` the weights of those chosen add up to one, as by a softmax over their logits alone; they
    are multiplied by `scale`. Of `groups` of experts those `kept` are chosen from whose `best` largest scores
    sum highest. A `correction`, so called in checkpoints, is added for the choice alone; it is a buffer or,
    if `learned`, a parameter; either is in fp32. With a `jitter` two are chosen as `sparse_mixer` does; by a
    `table`, so called in checkpoints, of so many `rows`, a token's id chooses. The weights of those chosen
    are scaled by what checkpoints call `expert_scale`, one for each expert.
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
        """The weights of the experts that each token takes, and which they are."""
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
    """What checkpoints that store each expert by itself call its matrices."""
    return tuple(f"experts.{{expert}}.{name}.weight" for name in matrices or _GATED)


@dataclass(frozen=True)
class Moe:
    """`count` experts, of which each token goes through `chosen`; outputs are summed by routing weight.

    `module` is what checkpoints call it, `router` the module that the choice is by, `matrices` and `biases`
    gate, up and down of the experts, or up and down alone. With a `clamp` the product of gate and up is that
    of `clamped_glu`: limit, slope, offset; with `scaled_inputs` weights scale what goes to experts, not what
    they give. All tokens go through the `shared` one, whose output is scaled by a gate if checkpoints have
    one, called `shared_gate`. Experts may see hidden states by a `norm` of theirs, and the router by a scaled
    one, of the weight `router_scale`. With a `latent` size, one product takes hidden states into the experts'
    space and another takes the experts' sum back (LatentMoE): the modules `latent_projections`.
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
        """Whether a table chooses."""
        return "hash_moe" if self.routing.table else "moe"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
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
        """What checkpoints call a part of it."""
        return f"{self.module}.{part}".lstrip(".")

    def _scaled(self, at: Blocks, x: Value) -> Value:
        """What the router sees, of rows whose squares sum to 1 before the weight."""
        weight = at.weight("h", "router_scale", self._named(self.router_scale))
        normed = at.b.rms_norm(x, weight, eps=at.normal.eps, name="router_norm")
        return at.scale(normed, at.hidden**-0.5, "router_root")

    def _gated(self, at: Blocks, rows: Value, chosen: Value) -> Value:
        """Gate and up of the rows, multiplied; or up alone, activated."""
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
    """A dense MLP and experts side by side, each between norms of its own: those before and after the MLP,
    and after the experts (Gemma 4).
    """

    kind: ClassVar[str] = "moe"
    block: ClassVar[str] = "mlp"

    mlp: Mlp
    experts: Moe
    norms: tuple[str, str, str]

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of hidden states, what is added to them."""
        before, after, behind = self.norms
        dense = self.mlp.build(blocks, blocks.norm(x, "post_norm", before))
        dense = blocks.norm(dense, "dense_norm", after)
        routed = blocks.norm(self.experts.build(blocks, x), "routed_norm", behind)
        with blocks.b.block(self.block):
            total: Value = blocks.b.add(dense, routed, name="mixture_add")
            return total
