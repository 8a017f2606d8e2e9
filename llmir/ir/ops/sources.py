"""Sources: inputs, weights, buffers and caches, and the ops `concat` and `zeros`.

No op computes a source: its value exists before the step. `Concat` extends a cache by a copy. `Zeros` is the
first summand of the residual after the pass `rotate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import layer_name
from llmir.ir.core.dtype import DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .rope import Append

# --- Inputs, weights, buffers and caches ---

# A rank may store padding or copies along these axes.
SPARED = ("vocab", "expert")


@dataclass(frozen=True)
class Source(Op):
    """Base class of values without operands; `type` is declared, and `axes` names its dimensions."""

    source = True

    takes = ()

    type: Tensor
    axes: tuple[str, ...] = ()

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """The declared type."""
        return {"type": results[0]}

    @property
    def own(self) -> Tensor:
        """The type in the model, without padding and copies."""
        return self.type

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """An equation with one new axis per dimension, because a source has no operands."""
        return equation(f"-> {' '.join(self.axes or [f'i{n}' for n in range(len(self.type.shape))])}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The stated type."""
        return (self.type,)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The stated element type."""
        return (self.type.dtype,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No bytes: the value is in memory."""
        return (0,)

    def typed(self, type: Tensor) -> Op:
        return replace(self, type=type)

    def giving(self, to: DType, x: DType) -> Op:
        """The same shape in this dtype."""
        return replace(self, type=self.type.to(to))


@dataclass(frozen=True)
class Input(Source):
    """A value that the caller passes: token ids, or the hidden state that enters a layer."""

    opcode = "input"
    kind = "gather"


@dataclass(frozen=True)
class Weight(Source):
    """A parameter; `param` is its name in an HF checkpoint.

    In the name, `{layer}` is the layer number, `{layer:6.12}` is the layer's index in the range 6 to 12, and
    `{expert}` iterates over the axis `expert`. Without `{layer}`, all layers share the tensor. A suffix `[i]`
    means the i-th of several weights that are stored one after another in one tensor. `[i/n]` means the i-th
    weight in each of n equal blocks, `^T` storage as [in, out], and `^F` one matrix for all experts
    (`llmir.base.names.checkpoint_place`).

    `turns` is the number of equal weights that a benchmark uses in rotation; some of them may remain in a
    hardware cache. 0 means a model, where a step reads all other weights before it reads this weight again.
    The last `spare` entries of the axis `vocab` or `expert` are not parameters, because engines pad
    vocabularies and store redundant experts. These entries repeat the first entries.
    """

    opcode = "weight"
    kind = "gather"
    role = "weight"

    param: str = ""
    turns: int = 0
    spare: int = 0

    def numbered(self, layer: int) -> Op:
        """The weight with the name of this layer's tensor."""
        name = layer_name(self.param, layer)
        return self if name == self.param else replace(self, param=name)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pairs = zip(self.axes, self.type.shape, strict=False)
        places = next((size for axis, size in pairs if axis in SPARED), 0)
        if self.spare and isinstance(places, int) and not 0 < self.spare < places:
            known = f"fewer than its {places:,} places" if places else "none, without an axis vocab or expert"
            raise VerifyError(f"spare: expected {known}, got {self.spare:,}")
        return (self.type,)

    def widened(self, axis: str, by: int) -> Weight:
        if axis not in self.axes:
            return self
        dim = self.axes.index(axis)
        return replace(self, type=self.type.resized(dim, self.type.shape[dim] + by), spare=self.spare + by)

    @property
    def own(self) -> Tensor:
        """The type in the model, without padding and copies."""
        if not self.spare:
            return self.type
        dim = next(i for i, axis in enumerate(self.axes) if axis in SPARED)
        return self.type.resized(dim, self.type.shape[dim] - self.spare)

    @property
    def parameters(self) -> Size:
        """The number of elements in the model, without padding and copies."""
        return self.own.elements

    def filled(self, values: Array) -> Array:
        """Extend the model's values by the padding or the copies."""
        for dim, size in enumerate(self.type.shape if self.spare else ()):
            values = np.take(values, range(Binding()(size)), dim, mode="wrap")
        return values


@dataclass(frozen=True)
class Buffer(Weight):
    """Constants of a checkpoint, which take memory like a weight but are not parameters."""

    opcode = "buffer"

    @property
    def parameters(self) -> Size:
        """None."""
        return 0


@dataclass(frozen=True)
class Cache(Source):
    """Values from earlier steps, such as keys `[B, C, g, d]`; they outlive the step."""

    opcode = "cache"
    kind = "gather"
    role = "cache"


# --- Caches that grow by copies ---


@dataclass(frozen=True)
class Concat(Append):
    """Concatenate a cache and the rows of new tokens in new memory, as `torch.cat` does.

    The next step uses the copy. Memory estimates do not count the short time in which both caches exist.
    """

    opcode = "concat"

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, and the new rows."""
        return tuple(x.bytes for x in operands)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, including the new rows."""
        return (results[0].bytes,)


# --- Zeros ---


@dataclass(frozen=True)
class Zeros(Op):
    """Zeros in the shape of x, whose values are not read: the summand of the first residual.

    The result may be a partial sum over the mesh axes `over`. No kernel writes the zeros, because an engine's
    first layer skips the addition.
    """

    opcode = "zeros"
    kind = "elementwise"
    rule = "* -> *"
    zero = True

    linear = frozenset({0})  # x, whose values are not used, may be a partial sum

    over: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """False: a source does not run as a kernel."""
        return False

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (y,) = super().types(operands)
        return (y.laid(y.placements, self.over, y.tokens),)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Nothing."""
        return (0,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Nothing."""
        return (0,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Zeros."""
        return (np.zeros_like(operands[0]),)
