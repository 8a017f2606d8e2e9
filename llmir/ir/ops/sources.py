"""Sources: inputs, weights, buffers and caches, and the ops `concat` and `zeros`.

No op computes a source: it exists before the step. `Concat` grows a cache by a copy, and `Zeros` is the first
summand of a rotated residual.
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

SPARED = ("vocab", "expert")  # axes along which a rank may hold more than the model has


@dataclass(frozen=True)
class Source(Op):
    """A value without operands, of a stated `type`; `axes` are the logical names of its dimensions."""

    source = True

    takes = ()

    type: Tensor
    axes: tuple[str, ...] = ()

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """Its type."""
        return {"type": results[0]}

    @property
    def own(self) -> Tensor:
        """The type in the model."""
        return self.type

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """Names its own dimensions, since a source has nothing to derive them from."""
        return equation(f"-> {' '.join(self.axes or [f'i{n}' for n in range(len(self.type.shape))])}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The stated type."""
        return (self.type,)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The stated element type."""
        return (self.type.dtype,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Nothing: it is there already."""
        return (0,)

    def typed(self, type: Tensor) -> Op:
        """Of that type."""
        return replace(self, type=type)

    def giving(self, to: DType, x: DType) -> Op:
        """The same shape in that type."""
        return replace(self, type=self.type.to(to))


@dataclass(frozen=True)
class Input(Source):
    """A value that the caller passes: token ids, or the hidden state that enters a layer."""

    opcode = "input"
    kind = "gather"


@dataclass(frozen=True)
class Weight(Source):
    """A parameter; `param` is its name in an HF checkpoint.

    There, `{layer}` is the layer's number, `{layer:6.12}` its place among those, counted from 0, and
    `{expert}` runs over the axis `expert`; without `{layer}` all layers have that tensor. `[i]` at the end is
    the i-th of several weights that lie one below another in that tensor, `[i/n]` so in each of n equal
    blocks, `^T` says that it is stored as [in, out], and `^F` that the experts' matrices are one
    (`llmir.base.names.checkpoint_place`). `turns` is how many weights like it a benchmark multiplies by one
    after another, so that some may still lie in a cache; 0 is as in a model, where all other weights of the
    step come between.
    Of its axis `vocab` or `expert` the last `spare` places are no parameters: engines pad vocabularies, and
    hold experts twice. There lies once more what lies in the first places.
    """

    opcode = "weight"
    kind = "gather"
    role = "weight"

    param: str = ""
    turns: int = 0
    spare: int = 0

    def numbered(self, layer: int) -> Op:
        """Under the name of that layer's tensor."""
        name = layer_name(self.param, layer)
        return self if name == self.param else replace(self, param=name)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The stated type; VerifyError if it has not so many places to spare."""
        pairs = zip(self.axes, self.type.shape, strict=False)
        places = next((size for axis, size in pairs if axis in SPARED), 0)
        if self.spare and isinstance(places, int) and not 0 < self.spare < places:
            known = f"fewer than its {places:,} places" if places else "none, without an axis vocab or expert"
            raise VerifyError(f"spare: expected {known}, got {self.spare:,}")
        return (self.type,)

    def widened(self, axis: str, by: int) -> Weight:
        """With so many spare places more along that axis; itself if it has no such axis."""
        if axis not in self.axes:
            return self
        dim = self.axes.index(axis)
        return replace(self, type=self.type.resized(dim, self.type.shape[dim] + by), spare=self.spare + by)

    @property
    def own(self) -> Tensor:
        """Its type in the model, without what is spare."""
        if not self.spare:
            return self.type
        dim = next(i for i, axis in enumerate(self.axes) if axis in SPARED)
        return self.type.resized(dim, self.type.shape[dim] - self.spare)

    @property
    def parameters(self) -> Size:
        """Its elements in the model."""
        return self.own.elements

    def filled(self, values: Array) -> Array:
        """Its numbers, given those in the model."""
        for dim, size in enumerate(self.type.shape if self.spare else ()):
            values = np.take(values, range(Binding()(size)), dim, mode="wrap")
        return values


@dataclass(frozen=True)
class Buffer(Weight):
    """Numbers that lie in a checkpoint beside its parameters: bytes as a weight's, but no parameters."""

    opcode = "buffer"

    @property
    def parameters(self) -> Size:
        """None."""
        return 0


@dataclass(frozen=True)
class Cache(Source):
    """What earlier steps left behind, such as keys `[B, C, g, d]`; it outlives the step."""

    opcode = "cache"
    kind = "gather"
    role = "cache"


# --- Caches that grow by copies ---


@dataclass(frozen=True)
class Concat(Append):
    """A cache with the new tokens' rows behind it, all in new memory, as `torch.cat` does.

    What a step finds in place of the old cache is the copy; that both are held for a while is not counted.
    """

    opcode = "concat"

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, and the new rows."""
        return tuple(x.bytes for x in operands)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, new rows included."""
        return (results[0].bytes,)


# --- Zeros ---


@dataclass(frozen=True)
class Zeros(Op):
    """As large as x, which is not read, and nothing but zeros: what is added to a first residual.

    They may be a partial sum over the mesh axes `over`. No kernel makes them: an engine's first layer is told
    that there is nothing to add.
    """

    opcode = "zeros"
    kind = "elementwise"
    rule = "* -> *"
    zero = True

    linear = frozenset({0})  # x, of which the shape alone counts, may be a partial sum

    over: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """It does not."""
        return False

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """That of x, whole or partial as stated."""
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
