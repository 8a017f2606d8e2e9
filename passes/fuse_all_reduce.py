"""fuse-all-reduce: the sum over ranks in one kernel with the residual add, the norm and what narrows it."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .dce import DeadCode
from .defer import deferred
from .fuse_attention import rewrite_graphs


def _sum_norm(p: Any, x: Value, y: Value, w: Value) -> Any:
    total, normed = p.add_rms_norm(x, p.all_reduce(y, label="sum"), w, results=2, label="norm")
    return total, normed


def _summed_norm(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    norm: Any = match["norm"].op
    ranks: Any = match["sum"].op
    how = {"eps": norm.eps, "offset": norm.offset, "block": norm.block, "over": ranks.over}
    return b.all_reduce_add_rms_norm(y, x, w, name=f"all_reduce_{match['norm'].name}", **how)


def _sum_narrow(p: Any, x: Value, y: Value, w: Value) -> Any:
    total, normed = p.all_reduce_add_rms_norm(y, x, w, results=2, label="norm")
    return total, p.quantize(normed, label="narrow")


def _summed_narrow(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    norm: Any = match["norm"].op
    narrow: Any = match["narrow"].op
    how = {"eps": norm.eps, "offset": norm.offset, "block": norm.block, "over": norm.over}
    how |= {"to": narrow.to, "static": narrow.static, "name": f"{match['norm'].name}_quantize"}
    return b.all_reduce_add_rms_norm_quantize(y, x, w, **how)


RULES = (
    Rule("all-reduce-norm", _sum_norm, _summed_norm),
    Rule("all-reduce-norm-quantize", _sum_narrow, _summed_narrow),
)


@dataclass(frozen=True)
class FuseAllReduce(Pass):
    """An all_reduce, the residual add and the norm that follow it in one kernel; after `fuse` and `shard`.

    FlashInfer, vLLM and TensorRT-LLM have such a kernel, and one that narrows the norm for the product after
    it. Layers that `rotate` made end in partial sums, which the next one adds up beside its first norm.
    """

    name: ClassVar[str] = "fuse-all-reduce"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once; PassError where ranks have no sum to share."""
        if program.mesh.devices == 1:
            raise PassError(f"fuse-all-reduce: {program.name} runs on one rank; shard it first")
        return rewrite_graphs(DeadCode()(deferred(program)), RULES)
