"""What follows the mixer in a layer: gated MLPs and mixtures of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from llmir.dtype import FP32
from llmir.graph import Value

from .blocks import Blocks

_GATED = ("gate_proj", "up_proj", "down_proj")  # what most call the matrices of a gated MLP


@dataclass(frozen=True)
class Mlp:
    """down(act(gate(x)) · up(x)), which checkpoints call `module`; its ops' names begin with `prefix`.

    `matrices` are what they call gate, up and down; two of them are up and down of down(act(up(x))), without
    a gate. `activation` is an opcode. What is activated and what comes out are scaled by `scales`.
    """

    kind: ClassVar[str] = "dense"

    intermediate: int
    bias: bool = False
    module: str = "mlp"
    block: str = "mlp"
    prefix: str = ""
    matrices: tuple[str, ...] = _GATED
    activation: str = "silu"
    scales: tuple[float, float] = (1.0, 1.0)

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        b, at, own = blocks.b, blocks.sized(f=self.intermediate), self.prefix
        *gate, up, down = self.matrices

        def project(x: Value, term: str, weight: str, out: str, name: str, stored: str) -> Value:
            param = f"{self.module}.{stored}".lstrip(".")
            return at.linear(x, term, weight, out, own + name, param, bias=self.bias)

        def act(x: Value) -> Value:
            x = at.scale(x, self.scales[0], f"{own}act_scale")
            result: Value = getattr(b, self.activation)(x, name=f"{own}{self.activation}")
            return result

        with b.block(self.block):
            if gate:
                acted = act(project(x, "b t h", "h f", "b t f", "gate_proj", gate[0]))
                wide = project(x, "b t h", "h f", "b t f", "up_proj", up)
                wide = b.mul(acted, wide, name=f"{own}gate_mul")
            else:
                wide = act(project(x, "b t h", "h f", "b t f", "up_proj", up))
            out = project(wide, "b t f", "f h", "b t h", "down_proj", down)
            return at.scale(out, self.scales[1], f"{own}down_scale")


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts: by `softmax` or `sigmoid` of the router's logits, the largest of them.

    With `normalize` the weights of those chosen add up to one, as by a softmax over their logits alone; they
    are multiplied by `scale`. Of `groups` of experts those `kept` are chosen from whose `best` largest scores
    sum highest. A `correction`, so called in checkpoints, is added for the choice alone; it is a buffer or,
    if `learned`, a parameter.
    """

    score: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    best: int = 1
    correction: str = ""
    learned: bool = False

    def build(self, blocks: Blocks, logits: Value, chosen: int) -> tuple[Value, Value]:
        """The weights of the experts that each token takes, and which they are."""
        b = blocks.b
        scores = getattr(b, self.score)(blocks.cast(logits, FP32), name=f"route_{self.score}")
        how: dict[str, Any] = {name: getattr(self, name) for name in ("groups", "kept", "best", "scale")}
        added = []
        if self.correction:
            source = blocks.weight if self.learned else blocks.buffer
            added = [source("x", "correction", self.correction)]
        weights, experts = b.top_k(scores, *added, k=chosen, normalize=self.normalize, **how)
        return weights, experts


@dataclass(frozen=True)
class Moe:
    """`count` experts, of which each token goes through `chosen`; outputs are summed by routing weight.

    `module` and `matrices` (gate, up, down) are what checkpoints call it and an expert's weights, `router`
    the module that the choice is by. All tokens go through the `shared` one, whose output is scaled by a gate
    if checkpoints have one, called `shared_gate`.
    """

    kind: ClassVar[str] = "moe"
    block: ClassVar[str] = "routed_experts"

    count: int
    chosen: int
    intermediate: int
    routing: Routing
    module: str = "mlp"
    router: str = "gate"
    matrices: tuple[str, str, str] = _GATED
    shared: Mlp | None = None
    shared_gate: str = ""

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        if not self.shared:
            return self._routed(blocks, x)
        b, always, routed = blocks.b, self.shared.build(blocks, x), self._routed(blocks, x)
        if self.shared_gate:
            with b.block("router"):
                name = "shared_gate"
                gate = blocks.linear(x, "b t h", "h", "b t", name, self.shared_gate)
            with b.block(self.shared.block):
                always = b.sigmoid_mul(always, gate, name="shared_scaled")
        with b.block(self.shared.block):
            return b.add(always, routed, name="shared_add")

    def _routed(self, blocks: Blocks, x: Value) -> Value:
        b, at = blocks.b, blocks.sized(e=self.count, x=self.count, f=self.intermediate)
        stored = dict(zip(_GATED, self.matrices, strict=True))

        def grouped(rows: Value, chosen: Value, ins: str, outs: str, name: str) -> Value:
            param = f"{self.module}.experts.{{expert}}.{stored[name]}.weight"
            weight = at.weight(f"e {ins} {outs}", f"{name}.weight", param)
            einsum = f"s {ins}, [e] {ins} {outs}, s -> s {outs}"
            how: dict[str, Any] = {"einsum": einsum, "top_k": self.chosen, "experts": self.count}
            result: Value = b.grouped_linear(rows, weight, chosen, name=name, **how)
            return result

        with b.block("router"):
            module = f"{self.module}.{self.router}"
            logits = at.linear(x, "b t h", "h x", "b t x", "gate", module)
            weights, chosen = self.routing.build(at, logits, self.chosen)
        with b.block(self.block):
            rows, chosen = b.dispatch(x, chosen)
            gate = b.silu(grouped(rows, chosen, "h", "f", "gate_proj"), name="silu")
            up = grouped(rows, chosen, "h", "f", "up_proj")
            down = grouped(b.mul(gate, up, name="gate_mul"), chosen, "f", "h", "down_proj")
            combined: Value = b.combine(down, weights)
            return combined
