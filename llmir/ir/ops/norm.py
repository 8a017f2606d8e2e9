"""Ops that reduce over an axis which must therefore stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, Op, Place, spelled
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size, product


def rms_norm(x: Array, weight: Array | float, eps: float, over: int = 1) -> Array:
    """x / √(mean(x²) + eps) · weight, over the last axes."""
    axes = tuple(range(-over, 0))
    result: Array = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + eps) * weight
    return result


def softmax(x: Array, sinks: Array | None = None) -> Array:
    """Over the last axis; −∞ is a probability of 0. `sinks` are of [g, r], and x of [b, g, r, t, c] then."""
    if sinks is not None:
        column = np.broadcast_to(sinks[..., None, None], (*x.shape[:-1], 1))
        return softmax(np.concatenate([x, column], axis=-1))[..., :-1]
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = powers / np.sum(powers, axis=-1, keepdims=True)
    return result


def _over(operands: Sequence[Tensor], over: int, inputs: int = 1) -> Equation:
    """Of rows, of which the last `over` axes are normalized, and what they are multiplied by and added to."""
    rank = len(operands[0].shape)
    learned = max((len(t.shape) for t in operands[inputs:]), default=over)
    if not over <= learned <= rank:
        raise VerifyError(f"a norm over {over} axes has weights of {learned}, and rows of {rank}")
    names = ["h", *(f"h{i}" for i in range(1, rank))]
    axes = [f"{name}!" if i < over else name for i, name in enumerate(names)][::-1]
    rows, weight = " ".join(axes), " ".join(axes[rank - learned :])
    terms = [rows] * inputs + [weight] * (len(operands) - inputs)
    return equation(f"{', '.join(terms)} -> {', '.join([rows] * inputs)}")


def _stored(over: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a weight of that shape, those axes together, and those before them."""
    heads = shape[: len(shape) - over]
    return (*((prod(heads),) if heads else ()), prod(shape[len(shape) - over :]))


@dataclass(frozen=True)
class RmsNorm(Op):
    """x / rms(x) · (w + offset) over the last `over` axes; 4 FLOPs an element (square, sum, scale, weight).

    `w` may have axes before those, and need not be there (3 FLOPs then). Gemma's offset is 1.
    """

    opcode = "rms_norm"
    kind = "norm"
    takes = ("x", "*weight")

    eps: float = 1e-6
    offset: float = 0.0
    over: int = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h!, h! -> * h!`."""
        return _over(operands, self.over)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """3 an element, and 1 for the weight."""
        return (2 + len(operands)) * results[0].elements

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes that it is over together, and those before them: heads."""
        return _stored(self.over, shape)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        x, *weight = operands
        return (rms_norm(x, weight[0] + self.offset if weight else 1.0, self.eps, self.over),)


@dataclass(frozen=True)
class MatchRms(Op):
    """x · rms(y) / rms(x), of mean squares of at least `least`; 6 FLOPs an element."""

    opcode = "match_rms"
    kind = "norm"
    rule = "* h!, * h! -> * h!"
    takes = ("x", "y")
    vector_flops = 6

    least: float = 1e-5

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The quotient."""
        ours, due = (np.mean(x * x, axis=-1, keepdims=True) for x in operands)
        return (operands[0] * np.sqrt(due / np.maximum(ours, self.least)),)


@dataclass(frozen=True)
class AddRmsNorm(Op):
    """(x + y, rms_norm(x + y)): the residual is updated in place."""

    opcode = "add_rms_norm"
    kind = "norm"
    rule = "* h!, * h!, h! -> * h!, * h!"
    takes = ("x", "y", "weight")
    vector_flops = 5
    aliases = MappingProxyType({0: 0})

    eps: float = 1e-6
    offset: float = 0.0

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sum, and its norm."""
        total = operands[0] + operands[1]
        return total, rms_norm(total, operands[2] + self.offset, self.eps)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x − mean) / deviation · (w + offset) + b over the last `over` axes; 7 FLOPs an element.

    Those of a sum, a difference, a square and its sum, a scale, the weight and the bias; `b`, or both, need
    not be there. They may have axes before those.
    """

    opcode = "layer_norm"
    kind = "norm"
    takes = ("x", "*learned")

    eps: float = 1e-5
    offset: float = 0.0
    over: int = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h!, h!, h! -> * h!`."""
        return _over(operands, self.over)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 an element, and 1 for each of weight and bias."""
        return (4 + len(operands)) * results[0].elements

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes that it is over together, and those before them: heads."""
        return _stored(self.over, shape)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        x, *learned = operands
        axes = tuple(range(-self.over, 0))
        centred = x - np.mean(x, axis=axes, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + self.eps)
        scaled = normed * (learned[0] + self.offset) if learned else normed
        return (scaled + learned[1] if learned[1:] else scaled,)


@dataclass(frozen=True)
class Softmax(Op):
    """Over the last axis; 5 FLOPs an element (max, subtract, exp, sum, divide).

    Of attention scores, `sinks` are a further element of each row, one for each head, which takes its part of
    the sum and is left out of the result (arXiv:2309.17453, as gpt-oss learns it).
    """

    opcode = "softmax"
    kind = "elementwise"
    takes = ("x", "*sinks")
    _rules = ("* c! -> * c!", "b g r t c!, g r -> b g r t c")

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* c! -> * c!`."""
        return spelled(self._rules[len(operands) - 1], len(operands[0].shape))

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of sinks, all heads together."""
        return (prod(shape),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 an element, the sinks' included."""
        *rows, columns = results[0].shape
        return 5 * product(rows) * (columns + len(operands) - 1)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (softmax(*operands),)
