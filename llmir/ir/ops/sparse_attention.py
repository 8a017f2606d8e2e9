"""Attention over compressed keys (DeepSeek-V4) and over selected blocks of keys (MiniMax-M3).

A compressed entry replaces several tokens, and is the key and the value of all heads. It is the mean of the
tokens' rows, weighted per channel by gates. The index that selects blocks has one head for each key/value
head.

Axes: `b` sequences, `t` new tokens, `g` key/value heads or groups of heads, `r` heads per group, `d` head
size. Axes of compressed keys: `c` window tokens and new tokens, `p` tokens of incomplete entries and new
tokens, `n` entries, `s` series of rows, `w` tokens per entry. Axes of blocks: `c` all tokens so far, `n`
blocks, `y` head size of the index, `e` head size of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.masks import ChosenBlocks, ChosenEntries, Entries, Mask, mask
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Size, T, ceildiv

from .attention import FlashAttention, mask_scores
from .latent_attention import chosen
from .norm import softmax

# --- Compressed keys ---


@dataclass(frozen=True)
class CompressRows(Op):
    """Compute entries that new tokens complete: Σ softmax(gate + bias) · row over the tokens of an entry.

    With two series of rows, an entry combines the first series of the previous entry's tokens and the second
    series of its own tokens. FLOPs per row and channel: 5 for the softmax, 1 for the bias, 2 for the sum.
    """

    opcode = "compress_rows"
    kind = "elementwise"
    rule = "b p! s! d, b p! s! d, w! s! d -> b n d"
    takes = ("rows", "gates", "bias")
    alike = MappingProxyType({1: 0})

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """The number of entries that end among the new tokens."""
        bias = operands[2].shape
        tokens = bias[0] if len(bias) == 3 else None
        if not isinstance(tokens, int) or bias[1] not in (1, 2):
            raise VerifyError(f"compress_rows: a bias {operands[2]}, expected tokens by 1 or 2 series by d")
        return {"n": Entries(tokens).kept(C + T) - Entries(tokens).kept(C)}

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axis of series flattened with its neighbor."""
        return (shape[0], prod(shape[1:]))

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """8 for each row of an entry."""
        tokens, series, _ = operands[2].shape
        return 8 * tokens * series * results[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Compute entry by entry."""
        rows, gates, bias = operands
        width, series, size = bias.shape
        first, end = at.cached // width, (at.cached + at.new) // width
        start = at.cached + at.new - rows.shape[1]  # the position of the first row
        found = np.zeros((len(rows), end - first, size))
        for i, entry in enumerate(range(first, end)):
            before = range(series - 1 if entry else 0)
            parts = [(entry - 1, 0)] * len(before) + [(entry, series - 1)]
            place = [(slice(e * width - start, (e + 1) * width - start), s) for e, s in parts]
            own = np.concatenate([rows[:, at, s] for at, s in place], axis=1)
            by = np.concatenate([gates[:, at, s] + bias[:, s] for at, s in place], axis=1)
            weights = np.moveaxis(softmax(np.moveaxis(by, 1, -1)), -1, 1)
            found[:, i] = (weights * own).sum(axis=1)
        return (found,)


@dataclass(frozen=True)
class CompressedAttention(Op):
    """Attention with sinks over a window; all heads share the keys, which are also the values.

    With a `stride`, there are also compressed entries of `stride` tokens each. A query sees the entries that
    end at or before its position. With index scores, a query sees only the `top_k` entries with the highest
    index scores; the selection takes one comparison per candidate. Scores are not written to memory.
    """

    opcode = "compressed_attention"
    kind = "attention"
    takes = ("q", "keys", "sinks", "*entries_and_index")
    widens = frozenset({1, 3})

    mask: str
    scale: float = 1.0
    stride: int = 0
    top_k: int = 0

    @cached_property
    def masks(self) -> list[Mask]:
        """The mask of the window, and the mask of the entries if there are entries."""
        chosen = [ChosenEntries(self.stride, self.top_k)] if self.top_k else [Entries(self.stride or 1)]
        return [mask(self.mask), *(chosen if self.stride else [])]

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        due = 3 + bool(self.stride) + bool(self.stride and self.top_k)
        if len(self.masks) > 2 or len(operands) != due:
            fact = f"stride {self.stride} and top_k {self.top_k}"
            raise VerifyError(f"compressed_attention: {len(operands)} operands for {fact}, expected {due}")
        return super().types(operands)

    def remark(self, operands: Sequence[Tensor]) -> str:
        which = f"{self.top_k} of the entries" if self.top_k else "all entries"
        return f"{self.mask}, {which} of {self.stride} tokens" if self.stride else self.mask

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """With or without entries and an index."""
        more = ("", ", b n! d!", ", b n! d!, b t n!")[len(operands) - 3]
        return equation(f"b t g r d!, b c! d!, g r{more} -> b t g r d!")

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sinks of all heads together."""
        return (prod(shape),)

    def pairs(self, operands: Sequence[Tensor]) -> Size:
        """Twice the number of pairs of the queries of one head with keys and entries."""
        return sum((by.pairs(operands[0].shape[1], C) for by in self.masks), start=0)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The two full products over keys and entries; `matrix` counts only the FLOPs of visible pairs."""
        n = self.equation(operands).sizes(operands)
        rows, keys = n["g"] * n["r"] * n["t"], n["c"] + n.get("n", 0)
        return (Gemm(rows, keys, n["d"], n["b"]), Gemm(rows, n["d"], keys, n["b"]))

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """4·d for each head and each pair that the masks allow."""
        n = self.equation(operands).sizes(operands)
        return 2 * n["b"] * n["g"] * n["r"] * n["d"] * self.pairs(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 for the softmax per pair and head (half pairs round up) and per sink; 1 per candidate."""
        n = self.equation(operands).sizes(operands)
        softmaxes = ceildiv(self.pairs(operands), 2) + n["t"]
        return 5 * n["b"] * n["g"] * n["r"] * softmaxes + sum((x.elements for x in operands[4:]), start=0)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Only keys and entries that at least one query sees, once each."""
        new, found = operands[0].shape[1], [x.bytes for x in operands]
        for slot, by in zip((1, 3), self.masks, strict=False):
            found[slot] = operands[slot].resized(1, by.keys(new, C)).bytes
        return tuple(found)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The result of one softmax over keys and entries."""
        q, keys, sinks, *more = operands
        g, r = map(Binding(), results[0].shape[2:4])
        held, scores = [keys, *more[:1]], []
        for x, by in zip(held, self.masks, strict=True):
            score = np.einsum("btgrd,bcd->bgrtc", q, x, optimize=True) * self.scale
            scores.append(mask_scores(score, by, {"g": g, "r": r}, at))
        if self.top_k:
            picked = chosen(more[1], self.top_k, self.masks[1], at)
            scores[1] = np.where(picked[:, None, None], scores[1], -np.inf)
        weights = softmax(np.concatenate(scores, axis=-1), sinks)
        return (np.einsum("bgrtc,bcd->btgrd", weights, np.concatenate(held, axis=1), optimize=True),)


# --- Selected blocks of keys ---


def chosen_blocks(blocks: Array, keys: int, by: ChosenBlocks, local: int, at: ExecutionPlace) -> Array:
    """Whether each key is in one of a query's blocks with the highest scores ([b, g, t, n]): [b, g, t, c].

    The selected blocks include the last `local` ones up to the block of the query.
    """
    own = ((at.cached + at.origin("t") + np.arange(blocks.shape[2])) // by.length)[:, None]
    number = np.arange(blocks.shape[3])
    ranked = np.where((number <= own) & (number > own - local), np.inf, blocks)
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., : by.width]
    found = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(found, order, True, axis=-1)
    seen: Array = np.repeat(found & (number <= own), by.length, axis=-1)[..., :keys]
    return seen


@dataclass(frozen=True)
class BlockScores(Op):
    """The largest visible q · kᵀ in each block of `length` keys, in fp32; heads share the keys.

    FLOPs: 2·m·n·k for the product, and 1 (a comparison) per head and pair.
    """

    opcode = "block_scores"
    kind = "attention"
    rule = "b t g y, b c! y -> b g t n"
    takes = ("q", "k")

    length: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """The number of blocks; the last may be incomplete."""
        if self.length < 1:
            raise VerifyError(f"block_scores: expected keys from 1 up, got {self.length}")
        return {"n": ceildiv(operands[1].shape[1], self.length)}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """All heads at once, because they share the keys."""
        n = self.equation(operands).sizes(operands, n=0)
        return (Gemm(n["t"] * n["g"], n["c"], n["y"], n["b"]),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per head and pair."""
        n = self.equation(operands).sizes(operands, n=0)
        return n["b"] * n["t"] * n["g"] * n["c"]

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The scores; −∞ for later blocks."""
        q, k = operands
        scores = mask_scores(np.einsum("btgy,bcy->bgtc", q, k, optimize=True), mask("causal"), {"g": 1}, at)
        fill = [(0, 0)] * 3 + [(0, -scores.shape[-1] % self.length)]
        padded = np.pad(scores, fill, constant_values=-np.inf)
        return (padded.reshape((*scores.shape[:3], -1, self.length)).max(axis=-1),)


@dataclass(frozen=True)
class SelectBlocks(Op):
    """Set scores to −∞ except in the `top_k` blocks of `length` keys with the highest index scores.

    The last `local` blocks up to the block of a query are always selected. 1 FLOP (a comparison) for each
    candidate, and 1 for each score.
    """

    opcode = "select_blocks"
    kind = "elementwise"
    rule = "b g r t! c!, b g t! n! -> b g r t! c!"
    takes = ("scores", "index")

    length: int
    top_k: int
    local: int = 1

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        checked(self.opcode, self.length, self.top_k, self.local)
        return super().types(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 for each candidate, and 1 for each score."""
        return operands[0].elements + operands[1].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """−∞ elsewhere."""
        scores, index = operands
        seen = chosen_blocks(index, scores.shape[-1], ChosenBlocks(self.length, self.top_k), self.local, at)
        return (np.where(seen[:, :, None], scores, -np.inf),)


def checked(opcode: str, length: int, top_k: int, local: int) -> None:
    """Raise VerifyError if the op cannot select blocks of these sizes."""
    if length < 1 or not 1 <= local <= top_k:
        raise VerifyError(
            f"{opcode}: cannot choose {top_k} blocks of {length} keys, {local} of them the last"
        )


@dataclass(frozen=True)
class BlockSparseAttention(FlashAttention):
    """Attention of each query over the blocks of keys with the highest index scores (`select_blocks`).

    The index scores are the last operand. The op selects the largest scores, with one comparison per
    candidate.
    """

    opcode = "block_sparse_attention"
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e, b g t n! -> b t g r e"
    takes = ("q", "k", "v", "index")

    length: int = field(kw_only=True)
    top_k: int = field(kw_only=True)
    local: int = field(default=1, kw_only=True)

    @property
    def pattern(self) -> Mask:
        """A mask of the query's own block up to its position, and of the other selected blocks."""
        return ChosenBlocks(self.length, self.top_k)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        checked(self.opcode, self.length, self.top_k, self.local)
        return super().types(operands)

    def remark(self, operands: Sequence[Tensor]) -> str:
        return f"{self.top_k} blocks of {self.length} keys a query"

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The rule; the last axes belong to the index scores."""
        return equation(self.rule)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 for the softmax per pair and query head (half pairs round up); 1 per candidate."""
        n = self.equation(operands).sizes(operands)
        return 5 * n["b"] * n["g"] * n["r"] * ceildiv(self._pairs(n), 2) + operands[3].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unfused computation, as in eager code."""
        q, k, v, index = operands
        scores = np.einsum("btgrd,bcgd->bgrtc", q, k, optimize=True) * self.scale
        scores = mask_scores(scores, mask(self.mask), {"g": 1, "r": 1}, at)
        seen = chosen_blocks(index, k.shape[1], ChosenBlocks(self.length, self.top_k), self.local, at)
        weights = softmax(np.where(seen[:, :, None], scores, -np.inf))
        return (np.einsum("bgrtc,bcge->btgre", weights, v, optimize=True),)
