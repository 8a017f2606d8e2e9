"""What engines do to scans: the convolution before one ends in its activation, and tokens go in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmir.build import Builder
from llmir.graph import Value
from llmir.op import OPS, Op
from llmir.rewrite import Match, Rule


def _conv_silu(p: Any, x: Value) -> Any:
    y, state = p.causal_conv(x, ..., results=2, label="conv")
    return p.silu(y), state


def _fused_conv(b: Builder, match: Match, x: Value) -> Any:
    conv = match["conv"]
    return b.causal_conv_silu(*conv.operands, block=conv.op.block, name=conv.name)


def _scan(opcode: str) -> Callable[..., Any]:
    def pattern(p: Any, x: Value) -> Any:
        y, state = getattr(p, opcode)(x, ..., results=2, label="scan")
        return y, state

    return pattern


def _in_chunks(b: Builder, match: Match, x: Value) -> Any:
    node = match["scan"]
    chunked = node.op.chunked
    return chunked and b.apply(chunked, *node.operands, name=node.name)


_SCANS = sorted(kind.opcode for kind in OPS.matching(lambda kind: kind.chunked is not Op.chunked))
RULES = (
    Rule("conv-silu", _conv_silu, _fused_conv),
    *(Rule(f"chunk-{opcode}", _scan(opcode), _in_chunks) for opcode in _SCANS),
)
