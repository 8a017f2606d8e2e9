"""concat-caches: caches grow by a copy in every step, as in eager transformers."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .fuse_attention import rewrite_graphs


def _append(p: Any, cache: Value, rows: Value) -> Any:
    return p.append(cache, rows, label="append")


def _concat(b: Builder, match: Match, cache: Value, rows: Value) -> Any:
    append = match["append"]
    return b.concat(cache, rows, block=append.op.block, name=append.name)


@dataclass(frozen=True)
class ConcatCaches(Pass):
    """Append new rows to each cache by reading and writing the whole cache.

    transformers' DynamicCache does this (`torch.cat`, transformers/cache_utils.py).
    """

    name: ClassVar[str] = "concat-caches"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once; caches that a fused kernel appends to stay in place."""
        return rewrite_graphs(program, (Rule("concat", _append, _concat),))
