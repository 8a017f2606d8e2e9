"""Ops that reduce over an axis which must therefore stay whole."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ..op import Op


@dataclass(frozen=True)
class RmsNorm(Op):
    """x / rms(x) · w over the last axis; 4 FLOPs an element (square, sum, scale, weight)."""

    opcode = "rms_norm"
    kind = "norm"
    rule = "* h!, h! -> * h!"
    vector_flops = 4

    eps: float = 1e-6


@dataclass(frozen=True)
class AddRmsNorm(Op):
    """(x + y, rms_norm(x + y)): the residual is updated in place."""

    opcode = "add_rms_norm"
    kind = "norm"
    rule = "* h!, * h!, h! -> * h!, * h!"
    vector_flops = 5
    aliases = MappingProxyType({0: 0})

    eps: float = 1e-6


@dataclass(frozen=True)
class Softmax(Op):
    """Over the last axis; 5 FLOPs an element (max, subtract, exp, sum, divide)."""

    opcode = "softmax"
    kind = "elementwise"
    rule = "* c! -> * c!"
    vector_flops = 5
