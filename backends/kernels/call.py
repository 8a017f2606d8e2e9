"""Which kernels an op may be a call of, and what they are given: sizes that numbers enter last.

A kernel's file says both, beside its class: `families` are the names that it is calibrated by, and `prices`
makes its shape of an op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from typing import TypeVar

from llmir.backends.tape.record import Function, Tape, tape_of
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, SCALARS, Namespace, Number, always
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.dtype import DType
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, product
from llmir.ir.sizes.uneven import Uneven

from .base import KERNELS, Kernel, Shape

S = TypeVar("S", bound=Shape)
_MANY = 1 << 14  # elements of a square matrix whose scales say how many bits an element has


@dataclass(frozen=True)
class Call:
    """One execution of an op as a kernel sees it: `families` of kernels, the best first, and its shape.

    `part` is the method of a kernel that is a whole layer's, of which the op is a part. Kernels that were
    fitted to other shapes than the op's are `strange` to it: that is added to their mean relative error, as
    is the `doubt` of a physics that was fitted to others of the ops that it is of. No kernel takes less than
    this one for the shape `less`, which is a part of the op's. `engine` is whose kernel all engines call.
    """

    families: tuple[str, ...]
    shape: Shape
    part: str = "seconds"
    strange: float = 0.0
    doubt: float = 0.0
    less: Shape | None = None
    engine: str = ""

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The sizes in its shape."""
        return tuple(size for size in vars(self.shape).values() if isinstance(size, Dim))

    def at(self, binding: Binding) -> Shape:
        """The shape with numbers put in."""
        return bound(self.shape, binding)

    def whole(self, binding: Binding) -> bool:
        """Whether `less`, if there is one, is all of the shape there."""
        pairs = ((value, getattr(self.less, name)) for name, value in vars(self.shape).items())
        return all(always(_number(a, binding) == _number(b, binding)) for a, b in pairs if a is not b)

    def seconds(self, kernel: Kernel, device: Device, at: Binding, least: Number) -> Number:
        """Time of the call by a kernel, and never less than the roofline's."""
        return at.xp.maximum(self.of(kernel, device, self.at(at), at.xp), least)

    def of(self, kernel: Kernel, device: Device, shape: Shape, xp: Namespace) -> Number:
        """Time of a shape of numbers, of arrays or of symbols, by the kernel alone."""
        numbers = {} if xp in (SCALARS, ARRAYS) else shape.numbers()
        tape, fitted = tape_of(numbers.values()), tape_of(vars(kernel).values())
        if tape is None or fitted is not None:
            return getattr(kernel, self.part)(device, shape, xp)
        recorded = recording(kernel, self.part, device, shape.put(dict.fromkeys(numbers)))
        return tape.call(recorded, *numbers.values())


@lru_cache(maxsize=1 << 10)
def recording(kernel: Kernel, part: str, device: Device, words: Shape) -> Function:
    """A kernel on a device, recorded once, as a function of the numbers of a shape with these words."""
    tape = Tape(SCALARS)
    symbols = {name: tape.symbol(name) for name in words.numbers()}
    time = getattr(kernel, part)(device, words.put(symbols), tape.namespace)
    return Function.of(tape, symbols, [time])


Maker = Callable[[Row], "Call | None"]
MAKERS: dict[tuple[str, str], list[Maker]] = {}  # by opcode or kind of an op, and its block or none


def prices(*ops: str, block: str = "") -> Callable[[Maker], Maker]:
    """Registers what makes calls of ops, by opcode or, where nothing is of that opcode, by kind.

    What is of a `block` of the model goes before.
    """

    def register(maker: Maker) -> Maker:
        for op in ops:
            MAKERS.setdefault((op, block), []).append(maker)
        return maker

    return register


def calls(row: Row) -> tuple[Call, ...]:
    """The calls that an op may be, the first whose kernel takes the shape; none where no kernel is known."""
    KERNELS.load()
    keys = ((name, block) for name in (row.node.op.opcode, row.kind) for block in (row.block, ""))
    makers = next((MAKERS[key] for key in keys if key in MAKERS), [])
    known = [call for make in makers if (call := make(row))]
    return tuple(sorted(known, key=lambda call: KERNELS.get(call.families[0], Kernel).takes is Kernel.takes))


def bound(shape: S, at: Binding) -> S:
    """`shape` with the sizes in it evaluated."""
    sizes = {f.name: v for f in fields(shape) if isinstance(v := getattr(shape, f.name), Dim)}
    if not sizes:
        return shape
    numbers = {name: at(size) for name, size in sizes.items()}
    return replace(shape, **numbers | (shape.uneven(at) if isinstance(at, Uneven) else {}))


def _number(size: Number, at: Binding) -> Number:
    return at(size) if isinstance(size, Dim) else size


def bits(type: DType) -> float:
    """Bits an element, with its share of scales."""
    if not type.scale_bits:
        return type.bits
    rows, along = type.block
    each = (rows or _MANY) * (along or _MANY)
    return type.bits + type.scale_bits / each


def rows_of(type: Tensor) -> Dim | int:
    """Rows of a tensor: those that its scales tell apart, else all its dimensions but the last."""
    if roles := type.dtype.roles:
        return product(size for size, role in zip(type.shape, roles, strict=True) if role != "k")
    return product(type.shape[:-1]) if len(type.shape) > 1 else 1
