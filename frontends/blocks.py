"""What layers are built with: weights, products and norms by the axes of an equation, on a Builder.

Axes: `b` sequences, `t` new tokens, `h` hidden, `g` key/value heads, `r` query heads for each of them,
`d` head size, `f` intermediate, `v` vocabulary, `e` experts. Of latent attention, `q` latent of queries,
`l` of keys and values, and of a head's elements `n` those without position, `p` with, `m` of values. Ops come in the order in which
transformers' eager code runs them, so that live memory is that code's.
"""

from __future__ import annotations

from llmir.build import Builder
from llmir.dim import Size
from llmir.dtype import FP32, DType
from llmir.graph import Value
from llmir.tensor import Tensor

LAYER = "model.layers.{layer}."  # what checkpoints call a layer

_AXES = {
    "h": "embed",
    "f": "mlp",
    "g": "kv_heads",
    "r": "heads",
    "d": "head_dim",
    "v": "vocab",
    "e": "expert",
    "x": "route",
    "q": "q_latent",
    "l": "latent",
    "n": "head_dim",
    "p": "head_dim",
    "m": "head_dim",
}


class Blocks:
    """One model's on one builder: its element type, the epsilon of its norms, and the lengths of axes."""

    def __init__(self, b: Builder, dtype: DType, eps: float, **sizes: Size) -> None:
        self.b, self.dtype, self.eps, self.sizes = b, dtype, eps, sizes

    def sized(self, **sizes: Size) -> Blocks:
        """The same with lengths of further axes."""
        return Blocks(self.b, self.dtype, self.eps, **{**self.sizes, **sizes})

    def tensor(self, *shape: Size, dtype: DType | None = None) -> Tensor:
        """A tensor of the model's element type."""
        return Tensor(shape, dtype or self.dtype)

    def weight(self, axes: str, name: str, param: str) -> Value:
        """A parameter with the axes of an equation term such as `h g r d`."""
        letters = axes.split()
        shape = self.tensor(*(self.sizes[x] for x in letters))
        return self.b.weight(shape, name=name, axes=tuple(_AXES[x] for x in letters), param=param)

    def buffer(self, axes: str, name: str, param: str) -> Value:
        """Numbers in fp32 beside the parameters, with the axes of an equation term."""
        letters = axes.split()
        type = self.tensor(*(self.sizes[x] for x in letters), dtype=FP32)
        return self.b.buffer(type, name=name, axes=tuple(_AXES[x] for x in letters), param=param)

    def linear(
        self, x: Value, term: str, weight: str, out: str, name: str, param: str, *, bias: bool = False
    ) -> Value:
        """x · W (+ bias) by `term, weight -> out`; `param` is the module, and the bias has W's own axes."""
        module, bracket, piece = param.partition("[")  # of a merged one
        stored = f"{module}.weight{bracket}{piece}", f"{module}.bias{bracket}{piece}"
        operands, terms = [x, self.weight(weight, f"{name}.weight", stored[0])], [term, weight]
        if bias:
            added = " ".join(a for a in weight.split() if a not in term.split())
            operands.append(self.weight(added, f"{name}.bias", stored[1]))
            terms.append(added)
        result: Value = self.b.linear(*operands, einsum=f"{', '.join(terms)} -> {out}", name=name)
        return result

    def norm(self, x: Value, name: str, param: str, axis: str = "h") -> Value:
        """RMSNorm over `axis`."""
        with self.b.block("norm"):
            weight = self.weight(axis, f"{name}.weight", f"{param}.weight")
            normed: Value = self.b.rms_norm(x, weight, eps=self.eps, name=name)
            return normed

    def cast(self, x: Value, to: DType) -> Value:
        """x in another element type; x itself if it has it."""
        if self.b.type(x).dtype == to:
            return x
        result: Value = self.b.cast(x, to=to.name)
        return result
