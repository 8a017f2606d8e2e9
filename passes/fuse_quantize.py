"""fuse-quantize: merge a norm and the quantization of its result into one kernel."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.ops.norm import AddRmsNorm, RmsNorm
from llmir.ir.ops.quant import Quantize
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .fuse_attention import rewrite_graphs


def _how(match: Match, norm: RmsNorm | AddRmsNorm) -> dict[str, Any]:
    narrow = match.op("narrow", Quantize)
    about = {"eps": norm.eps, "offset": norm.offset, "to": narrow.to, "static": narrow.static}
    return about | {"block": norm.block, "name": f"{match['norm'].name}_quantize"}


def _norm(p: Any, x: Value, w: Value) -> Any:
    return p.quantize(p.rms_norm(x, w, over=1, label="norm"), label="narrow")


def _narrow_norm(b: Builder, match: Match, x: Value, w: Value) -> Any:
    return b.rms_norm_quantize(x, w, **_how(match, match.op("norm", RmsNorm)))


def _add_norm(p: Any, x: Value, y: Value, w: Value) -> Any:
    total, normed = p.add_rms_norm(x, y, w, results=2, label="norm")
    return total, p.quantize(normed, label="narrow")


def _narrow_add_norm(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    return b.add_rms_norm_quantize(x, y, w, **_how(match, match.op("norm", AddRmsNorm)))


RULES = (
    Rule("norm-quantize", _norm, _narrow_norm),
    Rule("add-norm-quantize", _add_norm, _narrow_add_norm),
)


@dataclass(frozen=True)
class FuseQuantize(Pass):
    """Fuse a norm (after `fuse`, with its residual add) with the quantization of its result."""

    name: ClassVar[str] = "fuse-quantize"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph; norms whose unquantized result has other users stay unchanged."""
        return rewrite_graphs(program, RULES)
