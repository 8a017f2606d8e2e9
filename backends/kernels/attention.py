"""What an attention kernel is given, and how many tiles of scores it must do."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.uneven import Uneven

from .base import Shape
from .call import bits


@dataclass(frozen=True)
class AttentionShape(Shape):
    """`new` tokens of each of `batch` sequences after `cached` ones, on one rank.

    `kv_heads` heads of keys and values, `group` query heads for each of them, all of size `head`. A query
    sees what is cached, new tokens up to itself if it is `causal` (else 0, and all keys count as cached), and
    `window` keys at most, itself included. Bits an element of q, of keys and values, of the output.
    """

    batch: Number
    new: Number
    cached: Number
    kv_heads: Number
    group: Number
    head: Number
    window: Number = np.inf
    q_bits: float = 16
    kv_bits: float = 16
    out_bits: float = 16
    dtype: str = "bf16"
    causal: Number = 1

    @property
    def most(self) -> Number:
        """Keys that a query sees at most: its window."""
        return self.window

    def keys(self, xp: Namespace) -> Number:
        """Keys of one sequence that some query sees."""
        return xp.minimum(self.cached + self.new * self.causal, self.window + self.new - 1)

    def uneven(self, at: Uneven) -> dict[str, Number]:
        """A window as wide as what sequences see within theirs, on average."""
        return {"window": at.capped(self.cached, self.window - 1) + 1} if self.window < np.inf else {}

    @property
    def rows_bytes(self) -> Number:
        """Bytes of q and of the output."""
        values = self.batch * self.new * self.kv_heads * self.group * self.head
        return values * (self.q_bits + self.out_bits) / 8

    def kv_elements(self, xp: Namespace) -> Number:
        """Elements of keys and values that some query sees."""
        return 2 * self.batch * self.kv_heads * self.keys(xp) * self.head


TINY, MANY = 1e-300, 1e15  # in place of a step of 0, where all rows see as much, and of an endless window


def seen(xp: Namespace, rows: Number, before: Number, most: Number, step: Number) -> Number:
    """Σ min(before + i·step, most) over i = 1 … rows: how much is seen by rows that each see `step` more.

    >>> from llmir.base.array_namespace import SCALARS as xp
    >>> seen(xp, 4, 0, np.inf, 1), seen(xp, 4, 10, np.inf, 1), seen(xp, 4, 0, 2, 1)
    (10.0, 50.0, 7.0)
    """
    until = xp.maximum((most - before) / xp.maximum(step, TINY), 0)
    growing = xp.minimum(xp.floor(xp.minimum(until, MANY)), rows)
    capped = (rows - growing) * xp.minimum(most, MANY)
    return growing * before + step * growing * (growing + 1) / 2 + capped


def has_cache(q: Tensor, k: Tensor) -> bool:
    """Whether there can be keys of others than the new tokens: a prompt alone has none."""
    return bool(k.shape[1] != q.shape[1])


def shape(row: Row) -> AttentionShape:
    """The shape of a fused attention: new tokens of each sequence, after those that the cache holds.

    Where the heads of keys and of values differ in size, the kernel is told their mean.
    """
    q, k, v, *_ = row.operands
    batch, new, groups, group, head = q.shape
    mean = head if v.shape[-1] == head else Binding()(head + v.shape[-1]) / 2
    op: Any = row.node.op
    by = op.pattern
    return AttentionShape(
        batch=batch,
        new=new,
        cached=k.shape[1] - new * by.step,
        kv_heads=groups,
        group=group,
        head=mean,
        q_bits=q.dtype.bits,
        kv_bits=bits(k.dtype),
        out_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
        window=by.most,
        causal=by.step,
    )
