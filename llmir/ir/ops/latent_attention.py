"""Multi-head latent attention (arXiv:2405.04434, section 2.1), and the indexer of its sparse form.

The cache stores, for each token, a latent row and one rotary key that all heads share. In the naive form, a
matrix product expands the latents to the keys and values of each head. In the absorbed form, this product
applies to the query and the output instead, and the latents serve as the keys and values of all heads. The
indexer (DeepSeek-V3.2, arXiv:2512.02556) selects the keys that a query sees.

Axes: `b` sequences, `t` new tokens, `c` all tokens so far, `g` heads, `d` the part of a query or key without
position (absorbed: the latent), `p` the rotary part, `e` head size of the values, `i` heads of the indexer,
`y` their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.masks import Mask, Selected, mask
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, ceildiv

from .attention import mask_scores
from .norm import softmax

# --- Indexer of sparse attention ---


def chosen(index: Array, k: int, by: Mask, at: ExecutionPlace) -> Array:
    """Whether each key is among a query's k visible keys with the highest scores; shape [b, t, c]."""
    ranked = mask_scores(index[:, None], by, {"g": 1}, at)[:, 0]
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., :k]
    found = np.zeros(index.shape, dtype=bool)
    np.put_along_axis(found, order, True, axis=-1)
    seen: Array = found & np.isfinite(ranked)  # a query that sees fewer than k keys also selects masked keys
    return seen


@dataclass(frozen=True)
class IndexScores(Op):
    """Σ over heads of weight · relu(q · kᵀ) · scale, with keys shared by all heads, in fp32.

    FLOPs: 2·m·n·k for the products, and 1 per head and pair for relu.
    """

    opcode = "index_scores"
    kind = "attention"
    rule = "b t i y, b c y, b t i -> b t c"
    takes = ("q", "k", "weights")
    alike = MappingProxyType({1: 0})

    scale: float = 1.0

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The product of q and k, and the product with the weights."""
        n = self.equation(operands).sizes(operands)
        return (
            Gemm(n["t"] * n["i"], n["c"], n["y"], n["b"]),
            Gemm(1, n["c"], n["i"], n["b"] * n["t"]),
        )

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """relu, 1 per head and pair."""
        return results[0].elements * operands[0].shape[2]

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        q, k, weights = operands
        scores = np.maximum(np.einsum("btiy,bcy->btic", q, k, optimize=True), 0)
        return (np.einsum("btic,bti->btc", scores, weights, optimize=True) * self.scale,)


@dataclass(frozen=True)
class SelectKeys(Op):
    """Set scores to −∞ except at each query's `top_k` visible keys with the highest index scores.

    1 FLOP (a comparison) for each candidate, and 1 for each score.
    """

    opcode = "select_keys"
    kind = "elementwise"
    rule = "b g t! c!, b t! c! -> b g t! c!"
    takes = ("scores", "index")

    top_k: int
    mask: str

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.top_k < 1:
            raise VerifyError(f"select_keys: cannot select {self.top_k} keys")
        return super().types(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 for each candidate, and 1 for each score."""
        return operands[0].elements + operands[1].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """−∞ elsewhere."""
        scores, index = operands
        return (np.where(chosen(index, self.top_k, mask(self.mask), at)[:, None], scores, -np.inf),)


# --- Latent attention ---


def _axes(x: Tensor, own: str, shared: str) -> str:
    """The axes of keys or values, which exist per head or are shared by all heads."""
    return own if len(x.shape) == 4 else shared


@dataclass(frozen=True)
class LatentScores(Op):
    """(q · kᵀ + rotary q · rotary kᵀ) · scale; k are keys of each head, or latents that all heads share."""

    opcode = "latent_scores"
    kind = "attention"
    takes = ("q", "q_rope", "k", "k_rope")
    alike = MappingProxyType({2: 0, 3: 1})

    scale: float = 1.0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        keys = _axes(operands[2], "b c g d", "b c d")
        return equation(f"b t g d, b t g p, {keys}, b c p -> b g t c")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each of the two terms."""
        rule = self.equation(operands)
        sizes = rule.sizes(operands)
        return tuple(operand_gemm(rule, sizes, i, i + 2, 0) for i in range(2))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum, scaled."""
        return (latent_scores(*operands) * self.scale,)


def latent_scores(q: Array, q_rope: Array, k: Array, k_rope: Array) -> Array:
    """The sum of two terms, unscaled: [b, g, t, c]."""
    keys = "bcgd" if k.ndim == 4 else "bcd"
    own = np.einsum(f"btgd,{keys}->bgtc", q, k, optimize=True)
    result: Array = own + np.einsum("btgp,bcp->bgtc", q_rope, k_rope, optimize=True)
    return result


@dataclass(frozen=True)
class LatentMix(Op):
    """probabilities · v; v are values of each head, or latents that all heads share."""

    opcode = "latent_mix"
    kind = "attention"
    takes = ("probabilities", "v")
    alike = MappingProxyType({1: 0})

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        return equation(f"b g t c, {_axes(operands[1], 'b c g e', 'b c e')} -> b t g e")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each sequence and head, or for each sequence."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)


@dataclass(frozen=True)
class LatentAttention(Op):
    """Latent attention over the pairs that a mask allows, without scores in memory.

    The naive form has keys of size d + p and values of size e for each head, as in flash attention. The
    absorbed form reads the latents once, as keys and as values, and returns rows of latents (FlashMLA).
    """

    opcode = "latent_attention"
    lowered = True
    kind = "attention"
    takes = ("q", "q_rope", "k", "k_rope", "*v")
    widens = frozenset({2, 3, 4})

    mask: str
    scale: float = 1.0

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mask(self.mask)
        return super().types(operands)

    def remark(self, operands: Sequence[Tensor]) -> str:
        """The form, and the mask if it is not the causal mask."""
        form = "absorbed" if len(self.core(operands)) == 4 else "naive"
        return form if self.mask == "causal" else f"{form}, {self.mask}"

    @property
    def pattern(self) -> Mask:
        """The mask, which determines the numbers of pairs and keys."""
        return mask(self.mask)

    def core(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """Queries, keys and values: all operands."""
        return operands

    def _pairs(self, n: Mapping[str, Size]) -> Size:
        """Twice the pairs of one head."""
        return self.pattern.pairs(n["t"], n["c"] - n["t"])

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The equation of the naive form if there are values, else of the absorbed form."""
        if len(self.core(operands)) == 4:
            return equation("b t g d, b t g p, b c! d, b c! p -> b t g d")
        return equation("b t g d, b t g p, b c! g d, b c! p, b c! g e -> b t g e")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The two full products of eager code; `matrix` counts only the FLOPs of visible pairs."""
        n = self.equation(operands).sizes(operands)
        absorbed = len(self.core(operands)) == 4
        batch, rows = (n["b"], n["g"] * n["t"]) if absorbed else (n["b"] * n["g"], n["t"])
        key, value = n["d"] + n["p"], n["d"] if absorbed else n["e"]
        return (Gemm(rows, n["c"], key, batch), Gemm(rows, value, n["c"], batch))

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """2·(d + p + e) for each visible pair and head; in the absorbed form, e is d."""
        n = self.equation(operands).sizes(operands)
        return n["b"] * n["g"] * (n["d"] + n["p"] + n.get("e", n["d"])) * self._pairs(n)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 for the softmax per visible pair and head; half pairs round up."""
        n = self.equation(operands).sizes(operands)
        return 5 * n["b"] * n["g"] * ceildiv(self._pairs(n), 2)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Only the keys and values that at least one query sees; latents count once."""
        n = self.equation(operands).sizes(operands)
        seen = self.pattern.keys(n["t"], n["c"] - n["t"])
        held = self.core(operands)[2:]
        return (*(x.bytes for x in operands[:2]), *(x.resized(1, seen).bytes for x in held))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unfused computation, as in eager code."""
        q, q_rope, k, k_rope, *values = operands
        scores = latent_scores(q, q_rope, k, k_rope) * self.scale
        scores = mask_scores(scores, mask(self.mask), {"g": Binding()(results[0].shape[2])}, at)
        v = values[0] if values else k
        return (_mixed(softmax(scores), v),)


def _mixed(probabilities: Array, v: Array) -> Array:
    """probabilities · v, with values per head or shared by all heads."""
    axes = "bcge" if v.ndim == 4 else "bce"
    result: Array = np.einsum(f"bgtc,{axes}->btge", probabilities, v, optimize=True)
    return result


@dataclass(frozen=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention of each query over the `top_k` visible keys with the highest index scores.

    The index scores are the last operand. The op selects the largest scores, with one comparison per
    candidate.
    """

    opcode = "sparse_latent_attention"
    kind = "attention"
    takes = ("q", "q_rope", "k", "k_rope", "*v_and_index")

    top_k: int = field(kw_only=True)

    @property
    def pattern(self) -> Mask:
        """A mask with as many pairs as a window, and with keys at any position."""
        return Selected(self.top_k)

    def core(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """All operands except the index scores."""
        return operands[:-1]

    def remark(self, operands: Sequence[Tensor]) -> str:
        return f"{super().remark(operands)}, {self.top_k} keys a query"

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The equation of latent attention, with the index scores as an additional operand."""
        return equation(super().equation(operands).text.replace(" ->", ", b t c! ->"))

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The softmax, and 1 for each candidate."""
        return super().vector(operands, results) + operands[-1].elements

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """At most the selected keys and values, and all index scores."""
        return (*super().reads(operands, results), operands[-1].bytes)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unfused computation, as in eager code."""
        q, q_rope, k, k_rope, *values, index = operands
        scores = latent_scores(q, q_rope, k, k_rope) * self.scale
        seen = chosen(index, self.top_k, mask(self.mask), at)[:, None]
        return (_mixed(softmax(np.where(seen, scores, -np.inf)), values[0] if values else k),)
