"""Linear attention: gated delta nets, KDA and lightning attention.

Gated delta nets (arXiv:2412.06464) and KDA (arXiv:2510.26692) update their states by the delta rule.
Lightning attention (MiniMax-01, arXiv:2501.08313) decays the state of each head at a constant rate.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value

from .blocks import Blocks, Norm

# --- Delta rule ---

_CORE = "linear_attention_core"
_AXES = {"q": "g d", "k": "g d", "v": "g r u", "z": "g r u", "b": "g r", "a": "g r"}


@dataclass(frozen=True)
class DeltaNet:
    """A mixer whose heads have states that decay by a gate and are updated by the delta rule.

    - `projections`: The modules for q, k, v, the output gate z, the write strength b and the decay a; each
      module with its number of blocks and its parts. Two modules in sequence are a projection of rank
      `key_dim`.
    - One convolution covers q, k and v, or each `{part}` has a separate convolution.
    - `decays`: The axes of decays: one decay per head, or per element of a head's keys.
    - `negative`: Write strengths range up to 2 instead of 1.
    - `norm_block`, `gate`: The output is normalized per head and gated by the activation `gate` of z.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    eps: float
    projections: tuple[tuple[str, int, str], ...]
    norms: str = "norm"
    out: str = "out_proj"
    negative: bool = False
    module: str = "linear_attn"
    block: str = "attention"
    norm_block: str = "norm"
    kind: str = "delta"
    conv: str = "conv1d"
    decays: str = "g r"
    gate: str = "silu"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the linear attention to the program; return the summand for the hidden states."""
        sizes = {"g": self.key_heads, "r": self.value_heads // self.key_heads}
        sizes |= {"d": self.key_dim, "u": self.value_dim, "k": self.key_dim, "w": self.taps}
        at, b = blocks.sized(**sizes), blocks.b
        with b.block(self.block):
            rows = self._rows(at, x)
            q, k, v = (self._convolved(at, rows[part], part, i) for i, part in enumerate("qkv"))
            decay, beta, z = self._gates(at, rows)
        with b.block(_CORE):
            q, k = b.l2_norm(q, name="q_l2"), b.l2_norm(k, name="k_l2")
            kept = at.state("g r d u", "state", {}, FP32)
            y, _ = b.gated_delta(q, k, v, decay, beta, kept, scale=self.key_dim**-0.5, name="scan")
        with b.block(self.norm_block):
            y = Norm(self.eps).build(at, y, "output_norm", f"{self.module}.{self.norms}", "u", 1)
        with b.block(self.block):
            y = self._gated(at, y, z)
            return at.linear(y, "b t g r u", "g r u h", "b t h", "out_proj", f"{self.module}.{self.out}")

    def _rows(self, at: Blocks, x: Value) -> dict[str, Value]:
        """The projections of x by part."""
        rows: dict[str, Value] = {}
        for modules, count, letters in self.projections:
            *low, module = modules.split()
            name = module if len(letters) > 1 else f"{letters}_proj"
            given = x
            if low:
                given = at.linear(x, "b t h", "h k", "b t k", f"{letters}_low", f"{self.module}.{low[0]}")
            axes = {**_AXES, "a": self.decays}
            parts = {f"{part}_proj": f"{'k' if low else 'h'} {axes[part]}" for part in letters}
            found = at.merged(given, parts, name, f"{self.module}.{module}", count)
            rows |= zip(letters, found, strict=True)
        return rows

    def _convolved(self, at: Blocks, x: Value, part: str, piece: int) -> Value:
        stored = f"{self.module}.{self.conv.format(part=part)}"
        own = None if "{part}" in self.conv else piece
        y = at.convolved(x, _AXES[part], f"conv_{part}", stored, bias=False, piece=own, block=_CORE)
        with at.b.block(_CORE):
            result: Value = at.b.silu(y, name=f"silu_{part}")
            return result

    def _gates(self, at: Blocks, rows: dict[str, Value]) -> tuple[Value, Value, Value]:
        """The logarithm of the decay, the write strength, and the output gate."""
        b, own = at.b, f"{self.module}."
        a_log = at.weight("g r", "A_log", f"{own}A_log")
        bias = at.weight(self.decays, "dt_bias", f"{own}dt_bias")
        by = b.decay_gate if self.decays == "g r" else b.key_decay_gate
        decay: Value = by(rows["a"], a_log, bias, name="decay")
        beta = at.scale(b.sigmoid(rows["b"], name="beta"), 2.0 if self.negative else 1.0, "beta_scale")
        return decay, beta, rows["z"]

    def _gated(self, at: Blocks, y: Value, z: Value) -> Value:
        b = at.b
        gated: Value = (
            b.sigmoid_mul(y, z, name="gated")
            if self.gate == "sigmoid"
            else b.mul(y, b.silu(z, name="silu_z"), name="gate_mul")
        )
        return gated


def kda(heads: int, size: int, taps: int, *, eps: float) -> DeltaNet:
    """Kimi Delta Attention, with low-rank projections for the output gate and for a decay per key element."""
    low = ("f_a_proj f_b_proj", 1, "a"), ("g_a_proj g_b_proj", 1, "z")
    return DeltaNet(
        *(heads, heads, size, size, taps, eps),
        (*((f"{part}_proj", 1, part) for part in "qkvb"), *low),
        norms="o_norm",
        out="o_proj",
        module="self_attn",
        kind="kda",
        conv="{part}_conv1d",
        decays="g r d",
        gate="sigmoid",
    )


# --- Lightning attention ---

_WIDE = "g r d"


@dataclass(frozen=True)
class Lightning:
    """Lightning attention with a norm over all heads and a gate; `layers` is the number of layers."""

    kind: ClassVar[str] = "lightning"
    block: ClassVar[str] = "attention"

    heads: int
    head_dim: int
    layers: int
    eps: float = 1e-6
    module: str = "self_attn"

    def build(self, blocks: Blocks, x: Value) -> Value:
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
