"""Lightning attention (MiniMax-01, arXiv:2501.08313): linear, and each head forgets at a rate of its own."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .blocks import Blocks

_CORE = "linear_attention_core"
_WIDE = "g r d"


@dataclass(frozen=True)
class Lightning:
    """Heads that a state each keeps, normalized together and gated; `layers` are all of the model's."""

    kind: ClassVar[str] = "lightning"
    block: ClassVar[str] = "attention"

    heads: int
    head_dim: int
    layers: int
    eps: float = 1e-6
    module: str = "self_attn"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        at = blocks.sized(g=1, r=self.heads, d=self.head_dim, u=self.head_dim)
        b, module = blocks.b, self.module
        with b.block(self.block):
            parts = {f"{part}_proj": f"h {_WIDE}" for part in "qkv"}
            rows = at.merged(x, parts, "qkv_proj", f"{module}.qkv_proj", self.heads)
            q, k, v = (b.silu(row, name=f"silu_{part}") for row, part in zip(rows, "qkv", strict=True))
        with b.block(_CORE):
            kept = at.state("g r d u", "state", {}, at.dtype)
            y, _ = b.lightning_attention(q, k, v, kept, layers=self.layers, name="scan")
        with b.block("norm"):
            weight = at.weight(_WIDE, "norm.weight", f"{module}.norm.weight")
            y = b.group_norm(y, b.square_sum(y, name="squares"), weight, eps=self.eps, name="norm")
        with b.block(self.block):
            gate = at.linear(x, "b t h", f"h {_WIDE}", f"b t {_WIDE}", "gate", f"{module}.output_gate")
            y = b.sigmoid_mul(y, gate, name="gated")
            return at.linear(y, f"b t {_WIDE}", f"{_WIDE} h", "b t h", "out_proj", f"{module}.out_proj")
