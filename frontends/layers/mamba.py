"""State-space mixers (Mamba, Mamba-2), short convolutions (LFM2), and parallel mixers (Falcon-H1)."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value

from .attention import Attention
from .blocks import Blocks, Norm

# --- Mamba and Mamba-2 ---


@dataclass(frozen=True)
class Mamba:
    """Mamba (arXiv:2312.00752): `channels` with a state of `state` numbers each, and steps of low `rank`.

    With a `norm`, the steps, and the projections into and out of the state, are normalized.
    """

    kind: ClassVar[str] = "mamba"
    block: ClassVar[str] = "ssm"

    channels: int
    state: int
    rank: int
    taps: int = 4
    bias: bool = False
    conv_bias: bool = True
    norm: Norm | None = None
    module: str = "mixer"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the scan to the program; return the summand for the hidden states."""
        at = blocks.sized(f=self.channels, n=self.state, k=self.rank, w=self.taps)
        b, module = blocks.b, self.module
        with b.block(self.block):
            parts = {"x_proj_in": "h f", "z_proj": "h f"}
            x, z = at.merged(x, parts, "in_proj", f"{module}.in_proj", bias=self.bias)
            x = b.silu(at.convolved(x, "f", "conv", f"{module}.conv1d", bias=self.conv_bias))
            inner = {"dt_low": "f k", "b_proj": "f n", "c_proj": "f n"}
            low, ins, outs = at.merged(x, inner, "x_proj", f"{module}.x_proj")
            if self.norm:
                low = self.norm.build(at, low, "dt_norm", f"{module}.dt_layernorm", "k", 1)
                ins = self.norm.build(at, ins, "b_norm", f"{module}.b_layernorm", "n", 1)
                outs = self.norm.build(at, outs, "c_norm", f"{module}.c_layernorm", "n", 1)
            dt = at.linear(low, "b t k", "k f", "b t f", "dt_proj", f"{module}.dt_proj", bias=True)
            a_log, skip = at.weight("f n", "a_log", f"{module}.A_log"), at.weight("f", "skip", f"{module}.D")
            kept = at.state("f n", "state", {}, FP32)
            y, _ = b.selective_scan(x, dt, ins, outs, a_log, skip, kept, name="scan")
            y = b.mul(y, b.silu(z), name="gate_mul")
            return at.linear(y, "b t f", "f h", "b t h", "out_proj", f"{module}.out_proj", bias=self.bias)


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (arXiv:2405.21060): `heads` in `groups` that share the projections b and c of their states.

    The output passes through a gate and then through RMSNorm per group (`gated`), through the norm and then
    the gate (`before`), or only through the gate (""). `least` is the smallest step. `scales` multiply the
    projections to gate, x, b, c and steps.
    """

    kind: ClassVar[str] = "mamba2"
    block: ClassVar[str] = "ssm"

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int = 4
    bias: bool = False
    conv_bias: bool = True
    norm: str = "gated"
    eps: float = 1e-5
    least: float = 0.0
    scales: tuple[float, ...] = (1.0,) * 5
    module: str = "mixer"
    out_bias: bool | None = None  # unlike `bias`

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the scan to the program; return the summand for the hidden states."""
        sizes = {"g": self.groups, "r": self.heads // self.groups, "d": self.head_dim, "n": self.state}
        at, b, module = blocks.sized(**sizes, w=self.taps), blocks.b, self.module
        wide = "g r d"
        with b.block(self.block):
            parts = {"z_proj": wide, "x_proj": wide, "b_proj": "g n", "c_proj": "g n", "dt_proj": "g r"}
            into = {part: f"h {axes}" for part, axes in parts.items()}
            found = at.merged(x, into, "in_proj", f"{module}.in_proj", bias=self.bias)
            scaled = zip(found, self.scales, parts, strict=True)
            z, *rows, dt = (at.scale(row, scale, f"{part}_scale") for row, scale, part in scaled)
            x, ins, outs = (
                self._convolved(at, row, parts[f"{part}_proj"], part, i)
                for i, (part, row) in enumerate(zip("xbc", rows, strict=True))
            )
            a_log, dt_bias, skip = (
                at.weight("g r", name, f"{module}.{name}") for name in ("A_log", "dt_bias", "D")
            )
            kept = at.state("g r d n", "state", {}, FP32)
            given = (x, dt, ins, outs, a_log, dt_bias, skip, kept)
            y, _ = b.ssd_scan(*given, least=self.least, name="scan")
            y = self._normed(at, y, z)
            bias = self.bias if self.out_bias is None else self.out_bias
            stored = f"{module}.out_proj"
            return at.linear(y, f"b t {wide}", f"{wide} h", "b t h", "out_proj", stored, bias=bias)

    def _convolved(self, at: Blocks, x: Value, axes: str, part: str, piece: int) -> Value:
        y = at.convolved(x, axes, f"conv_{part}", f"{self.module}.conv1d", bias=self.conv_bias, piece=piece)
        result: Value = at.b.silu(y, name=f"silu_{part}")
        return result

    def _normed(self, at: Blocks, y: Value, z: Value) -> Value:
        """The output, gated and normalized."""
        b = at.b
        if self.norm != "before":
            y = b.mul(y, b.silu(z, name="silu_z"), name="gate_mul")
        if self.norm:
            weight = at.weight("g r d", "norm.weight", f"{self.module}.norm.weight")
            y = b.group_norm(y, b.square_sum(y, name="squares"), weight, eps=self.eps, name="norm")
        if self.norm == "before":
            y = b.mul(y, b.silu(z, name="silu_z"), name="gate_mul")
        return y


# --- Short convolutions ---


@dataclass(frozen=True)
class ShortConv:
    """c · conv(b · x) over the last `taps` tokens; b and c are gates from the input projection."""

    kind: ClassVar[str] = "conv"
    block: ClassVar[str] = "conv"

    channels: int
    taps: int
    bias: bool = False
    module: str = "conv"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the gated convolution to the program; return the summand for the hidden states."""
        at, b, module = blocks.sized(f=self.channels, w=self.taps), blocks.b, self.module
        with b.block(self.block):
            parts = dict.fromkeys(("b_proj", "c_proj", "x_proj"), "h f")
            before, after, x = at.merged(x, parts, "in_proj", f"{module}.in_proj", bias=self.bias)
            x = b.mul(before, x, name="gate_before")
            y = at.convolved(x, "f", "conv", f"{module}.conv", bias=self.bias)
            y = b.mul(after, y, name="gate_after")
            return at.linear(y, "b t f", "f h", "b t h", "out_proj", f"{module}.out_proj", bias=self.bias)


# --- Parallel mixers ---


@dataclass(frozen=True)
class ParallelMixers:
    """Two mixers of the same hidden states; their outputs are added. Factors may scale all of them."""

    one: Mamba2
    other: Attention
    into: float = 1.0  # factors for `other`
    out: tuple[float, float] = (1.0, 1.0)
    block: str = "attention"

    @property
    def kind(self) -> str:
        """The kinds of both mixers, joined."""
        return f"{self.one.kind}_{self.other.kind}"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add both mixers to the program; return the sum of their outputs."""
        found = []
        for mixer, into, out in ((self.one, 1.0, self.out[0]), (self.other, self.into, self.out[1])):
            with blocks.b.block(mixer.block):
                given = blocks.scale(x, into, f"{mixer.kind}_in_scale")
            mixed = mixer.build(blocks, given)
            with blocks.b.block(mixer.block):
                found.append(blocks.scale(mixed, out, f"{mixer.kind}_out_scale"))
        with blocks.b.block(self.block):
            total: Value = blocks.b.add(*found, name="sides_add")
            return total
