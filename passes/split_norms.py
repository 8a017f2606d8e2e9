"""split-norms: RMSNorm as one kernel per step, as in eager transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.ops.norm import RmsNorm
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


@dataclass(frozen=True)
class SplitNorms(Pass):
    """Split each RMSNorm over one axis into cast, square, mean, scale, cast back, and weight.

    LlamaRMSNorm (transformers/models/llama/modeling_llama.py) computes these steps in fp32. LayerNorm, a
    kernel of torch, remains one op.
    """

    name: ClassVar[str] = "split-norms"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once."""
        return rewrite_graphs(program, (Rule("split-norms", _norm, _steps),))
