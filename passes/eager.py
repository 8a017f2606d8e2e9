"""eager: replaces RMSNorm and rotary positions by the kernels that PyTorch launches without a compiler."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.ops.norm import RmsNorm
from llmir.ir.ops.rope import Rope
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .fuse_attention import rewrite_graphs


def _norm(p: Any, x: Value) -> Any:
    return p.rms_norm(x, ..., label="norm")


def _steps(b: Builder, match: Match, x: Value) -> Any:
    norm, name = match.op("norm", RmsNorm), match["norm"].name
    weights = match["norm"].operands[1:]
    if norm.over > 1 or any(len(b.type(w).shape) > 1 for w in weights):
        return None  # such as those of Mamba-2, which transformers implements differently
    own, to = {"block": norm.block}, match["norm"].results[0].dtype.name
    wide = _cast(b, x, "fp32", own)
    mean = b.row_mean(b.square(wide, **own), **own)
    y = b.scale_rows(wide, b.inverse_root(b.shift(mean, amount=norm.eps, **own), **own), **own)
    if norm.offset:  # Gemma multiplies before the cast, by a weight that is stored minus the offset
        for w in weights:
            y = b.scale_by(y, b.shift(_cast(b, w, "fp32", own), amount=norm.offset, **own), **own)
        return _cast(b, y, to, own)
    y = _cast(b, y, to, own)
    for w in weights:
        y = b.scale_by(y, w, name=name, **own)
    return y


def _cast(b: Builder, x: Value, to: str, own: dict[str, Any]) -> Value:
    if b.type(x).dtype.name == to:
        return x
    result: Value = b.cast(x, to=to, **own)
    return result


def _rope(p: Any, x: Value) -> Any:
    return p.rope(x, label="rope")


def _rotation(b: Builder, match: Match, x: Value) -> Any:
    rope, name = match.op("rope", Rope), match["rope"].name
    if rope.size not in (0, b.type(x).shape[-1]) or rope.interleaved or rope.stride > 1:
        return None  # parts of a head, and neighbors, are rotated by other code
    how: dict[str, Any] = {
        "theta": rope.theta,
        "scaling": rope.scaling,
        "factors": rope.factors,
        "block": rope.block,
    }
    turned = b.join_half(x, b.negate_half(x, block=rope.block), block=rope.block)
    cosine, sine = b.scale_by_cosine(x, **how), b.scale_by_sine(turned, **how)
    return b.add(cosine, sine, block=rope.block, name=name)


@dataclass(frozen=True)
class Eager(Pass):
    """Split RMSNorms over one axis, and rotary positions of whole heads, into one kernel per step.

    LlamaRMSNorm (transformers/models/llama/modeling_llama.py) casts to fp32, squares, averages, scales, casts
    back, and multiplies by the weight. `apply_rotary_pos_emb` of this file adds the product with cosines and
    the product of the rotated halves (`rotate_half`) with sines. LayerNorm, a kernel of
    torch, remains one op.
    """

    name: ClassVar[str] = "eager"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once."""
        rules = Rule("eager-norm", _norm, _steps), Rule("eager-rope", _rope, _rotation)
        return rewrite_graphs(program, rules)
