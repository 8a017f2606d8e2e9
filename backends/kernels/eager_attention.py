"""Products of unfused attention as shares of the fused attention kernel.

In a program without fusion, each product over the keys of a sequence takes at least its share of the fused
kernel's time. `fused_share(row)` returns the share, and the calls of the fused kernel. `@part` registers the
function for an opcode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmir.backends.work.rows import Row
from llmir.ir.core.tensor import Tensor

from .attention import AttentionShape, decode_call, prefill_call
from .base import Call, bits
from .latent import LatentShape

Whole = tuple[float, tuple[Call, ...]]  # the share of the fused kernel's time, and the possible calls
MAKERS: dict[str, Callable[[Row], Whole]] = {}  # by opcode


def part(opcode: str) -> Callable[[Callable[[Row], Whole]], Callable[[Row], Whole]]:
    """Register the function that returns the share of an op in the fused kernel."""

    def register(maker: Callable[[Row], Whole]) -> Callable[[Row], Whole]:
        return MAKERS.setdefault(opcode, maker)

    return register


def fused_share(row: Row) -> Whole:
    """The share of an op in the fused kernel, and the calls of that kernel; (0, ()) for other ops.

    All earlier keys count as visible, because an unfused product does not know the mask.
    """
    make = MAKERS.get(row.node.op.opcode)
    return make(row) if make else (0.0, ())


@part("attention_scores")
def scores(row: Row) -> Whole:
    """Half of the fused time: the product of queries and keys."""
    q, k, *_ = row.operands
    batch, new, groups, group, head = q.shape
    return _halves(row, k, (), batch=batch, new=new, kv_heads=groups, group=group, head=head)


@part("attention_mix")
def mix(row: Row) -> Whole:
    """Half of the fused time: the product of probabilities and values."""
    p, v, *_ = row.operands
    batch, groups, group, new, _ = p.shape
    return _halves(row, v, (), batch=batch, new=new, kv_heads=groups, group=group, head=v.shape[-1])


@part("latent_scores")
def latent_scores(row: Row) -> Whole:
    """The product of queries and keys: half of the fused time if keys are per head; with latents, its share
    of the FLOPs.
    """
    q, q_rope, k, _ = row.operands
    batch, new, heads, size = q.shape
    rotary: Any = q_rope.shape[-1]
    return _latents(row, k, size, rotary, batch=batch, new=new, heads=heads)


@part("latent_mix")
def latent_mix(row: Row) -> Whole:
    """Half of the fused time: the product of probabilities and values, which have no rotary part."""
    p, v = row.operands
    batch, heads, new, _ = p.shape
    return _latents(row, v, v.shape[-1], 0, batch=batch, new=new, heads=heads)


def _latents(row: Row, keys: Tensor, size: Any, rotary: Any, *, heads: Any, **of: Any) -> Whole:
    narrow = keys.dtype.bits <= 8
    if len(keys.shape) > 3:
        naive = (*("mla_naive_kv8",) * narrow, "mla_naive")
        return _halves(row, keys, naive, kv_heads=heads, group=1, head=size + rotary, **of)
    cached = keys.shape[1] - of["new"]
    shape = LatentShape(**_words(row, keys), heads=heads, latent=size, rotary=rotary, cached=cached, **of)
    share = (size + rotary) / (2 * size + rotary) if rotary else 0.5
    return share, (Call((*("mla_absorbed_kv8",) * narrow, "mla_absorbed"), shape),)


def _halves(row: Row, keys: Tensor, own: tuple[str, ...], **of: Any) -> Whole:
    """Half of the time of a fused kernel; the kernel families in `own` come first."""
    new, tokens = of["new"], keys.shape[1]
    if new == tokens:  # without a cache: an encoder, with full attention
        shape = AttentionShape(**_words(row, keys), cached=tokens, causal=0, **of)
        return 0.5, (prefill_call(shape, own or ("attention_encoder",)),)
    shape = AttentionShape(**_words(row, keys), cached=tokens - new, **of)
    return 0.5, (decode_call(shape), prefill_call(shape, own))


def _words(row: Row, keys: Tensor) -> dict[str, Any]:
    first = row.operands[0].dtype.bits
    own = {"q_bits": first, "kv_bits": bits(keys.dtype), "out_bits": row.shape.dtype.bits}
    return {**own, "dtype": row.work.dtype.name}
