"""Base classes of kernel laws, and the calls that an op of a program makes.

A `Kernel` is a time as a function of a `Shape` and about a dozen physical parameters (`parameter`), plus
build choices of the library (`choice`). `families` registers a class under the names that calibrations use.

A `Call` is one execution of an op as a kernel sees it: names of families, best first, and a shape with
symbolic sizes. A kernel's file registers with `kernel_call` the function that makes the call of a row;
`kernel_calls(row)` returns all calls that an op may be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from llmir.backends.tape.record import Function, Tape, tape_of
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, SCALARS, Namespace, Number, always
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.names import bounded, suggest
from llmir.base.registry import Kind
from llmir.hw.device import Device
from llmir.ir.core.dtype import DType
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding, UnevenBinding
from llmir.ir.sizes.polynomial import Dim, minimum, product

# Kernels and their parameters

Array = np.ndarray[Any, np.dtype[Any]]
S = TypeVar("S", bound="Shape")
K = TypeVar("K", bound="Kernel")

DRAFTS = 8  # new tokens that engines verify by the kernels of a step: few enough for a tile of queries

# Each family that a calibration may name.
KERNELS: Kind[type[Kernel]] = Kind("kernel", "llmir.backends.kernels")


class Parameter(NamedTuple):
    """One physical parameter: where a fit starts, the least and the most it may be, its unit and meaning."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str
    choices: tuple[float, ...] = ()
    usual: bool = False


def choice(
    default: float, choices: tuple[float, ...], unit: str, meaning: str, *, usual: bool = False
) -> Any:
    """A field of a kernel that is one of a few numbers, as it was built; a fit tries them all.

    Where the default is `usual`, a fit leaves it for what pays only, as it does other parameters' defaults.
    """
    about = {"low": min(choices), "high": max(choices), "unit": unit, "meaning": meaning}
    return field(default=default, metadata=about | {"choices": choices, "usual": usual})


def parameter(default: float, low: float, high: float, unit: str, meaning: str) -> Any:
    """A field of a kernel; `unit` is "" for a ratio, which a sibling device shares most easily."""
    about = {"low": low, "high": high, "unit": unit, "meaning": meaning}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Shape:
    """What a kernel is given: numbers or arrays that broadcast together, and `words` that stay words."""

    words: ClassVar[frozenset[str]] = frozenset({"dtype"})

    def numbers(self, prefix: str = "") -> dict[str, Number]:
        """All but words by name, those of a shape within it by both names."""
        found: dict[str, Number] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Shape):
                found |= value.numbers(f"{prefix}{f.name}_")
            elif f.name not in self.words:
                found[prefix + f.name] = value
        return found

    def put(self: S, numbers: Mapping[str, Number], prefix: str = "") -> S:
        """The same with other numbers."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        inner = {n: v.put(numbers, f"{prefix}{n}_") for n, v in own.items() if isinstance(v, Shape)}
        others = {n: numbers[prefix + n] for n in own.keys() - inner.keys() - self.words}
        return replace(self, **others, **inner)

    def take(self: S, index: Any) -> S:
        """The same with each array indexed: some rows of a table."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        some = {n: v[index] for n, v in held.items() if isinstance(v, np.ndarray)}
        inner = {n: v.take(index) for n, v in held.items() if isinstance(v, Shape)}
        return replace(self, **some, **inner)

    def uneven(self, at: UnevenBinding) -> dict[str, Number]:
        """What is not the mean over sequences of what the shape has, in a call of sequences that differ."""
        return {}

    def spread(self: S, count: int) -> S:
        """The same with each number as an array of so many."""
        numbers = {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), str)}
        return replace(self, **{n: np.broadcast_to(np.asarray(v, float), count) for n, v in numbers.items()})


def stack_shapes(shapes: Sequence[S]) -> S:
    """One shape of all rows of others, which are alike in their words."""
    columns: dict[str, Any] = {}
    for name, value in vars(shapes[0]).items():
        parts = [getattr(shape, name) for shape in shapes]
        if isinstance(value, Shape):
            columns[name] = stack_shapes(parts)
        elif not isinstance(value, str):
            columns[name] = np.concatenate([np.atleast_1d(np.asarray(part, float)) for part in parts])
    return replace(shapes[0], **columns)


def overlap_time(xp: Namespace, first: Number, *others: Number) -> Number:
    """The longest of times that overlap, and a quarter more where two are equal: all are uneven."""
    return xp.cbrt(sum((t * t * t for t in others), start=first * first * first))


def cache_miss_share(footprint: Number, kept: float) -> Number:
    """Share of what is used again that a cache for `kept` bytes no longer holds after `footprint` bytes."""
    ratio = kept / footprint
    square = ratio * ratio
    return 1 / (1 + square * square)


def multiprocessors(device: Device) -> int:
    """How many the device has, or cores, to lay tiles over; HardwareError if its file does not say."""
    found = device.multiprocessors or device.cores
    if not found:
        raise HardwareError(f"{device.name} states no multiprocessors, over which tiles are laid")
    return found


@dataclass(frozen=True)
class KernelTransfer:
    """From `home`, where a kernel was measured, to another `device`, where it computes in this dtype.

    `matrix` and `memory` are the shares of its datasheet's rates that products reach there, to those at home.
    """

    device: Device
    home: Device
    dtype: str = "bf16"
    matrix: float = 1.0
    memory: float = 1.0

    @property
    def slower(self) -> Number:
        """The rate of the matrix units there beside that of fp32, to that at home; 1 if it is higher."""
        here, there = (
            d.matrix_peak(self.dtype)[0] / d.vector_flops["fp32"] for d in (self.home, self.device)
        )
        return minimum(1.0, there / here)

    def share(self, share: float) -> Number:
        """The share of its peak that a matrix unit reaches if it is slower and the work beside it is not."""
        return self.matrix * (share / (share + (1 - share) * self.slower) if share < 1 else share)


@dataclass(frozen=True)
class Kernel(ABC):
    """A family of kernels on one device; its fields are its parameters.

    A fit to its rows (`silicon/calibrate/fit.py`) begins from `starts` points, keeps to the defaults by
    `prior`, and passes over outliers by `loss`. A `separate` kernel is fitted while the others of its rows
    stay fixed. Kernels of a `group` share their transfer error (`cost/transfer.py`); those of a `library` are
    the same in all engines.
    """

    group: ClassVar[str] = ""

    starts: ClassVar[int] = 3
    prior: ClassVar[float] = 0.1
    loss: ClassVar[str] = "soft_l1"
    separate: ClassVar[bool] = False
    library: ClassVar[bool] = False

    @abstractmethod
    def seconds(self, device: Device, shape: Any, xp: Namespace = ARRAYS) -> Number:
        """Time of one call, of the shape of what `shape` holds; a price is never below the op's roofline.

        What `shape` holds may be a number, an array or a symbol: it meets operators and functions of `xp`
        alone.
        """

    @staticmethod
    def takes(shape: Any) -> Any:
        """Whether it can do this shape, by operators alone; of an op's kernels one takes all."""
        return True

    def moved(self, travel: KernelTransfer) -> dict[str, float]:
        """Its parameters on another device: of those that kernels share, what depends on the chip."""
        values = dict(vars(self))
        for name in {"rate", "matrix"} & values.keys():  # shares of the matrix peak
            values[name] = travel.share(values[name])
        if "bandwidth" in values:
            values["bandwidth"] *= travel.memory
        return values

    @classmethod
    def elsewhere(cls) -> type[Kernel]:
        """What prices it on a device where it was not measured."""
        return cls

    @classmethod
    def of(cls: type[K], values: Mapping[str, float], where: str) -> K:
        """The kernel with these parameters; HardwareError names one that is unknown or out of range."""
        known = {p.name: p for p in parameters(cls)}
        for name, value in values.items():
            if name not in known:
                near = suggest(name, known) or f", known are {', '.join(known)}"
                raise HardwareError(f"{where}: unknown parameter {name!r}{near}")
            low, high, choices = known[name].low, known[name].high, known[name].choices
            if choices and value not in choices:
                allowed = ", ".join(f"{c:g}" for c in choices)
                raise HardwareError(f"{where}.{name} must be one of {allowed}, got {value:g}")
            if not low <= value <= high:
                raise HardwareError(f"{where}.{name} must be {bounded('a number', low, high)}, got {value:g}")
        return cls(**values)


def families(*names: str) -> Callable[[type[K]], type[K]]:
    """Registers a class under the names that its parameters are fitted by."""

    def register(kernel: type[K]) -> type[K]:
        for name in names:
            KERNELS.add(name, kernel, kernel)
        return kernel

    return register


def parameters(kernel: type[Kernel]) -> tuple[Parameter, ...]:
    """The parameters of a family, in order."""
    return tuple(_parameter(f) for f in fields(kernel))


def _parameter(f: Field[Any]) -> Parameter:
    if f.default is MISSING:
        raise TypeError(f"{f.name}: a field of a kernel is a parameter(...)")
    return Parameter(f.name, f.default, **f.metadata)


# Calls of ops

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
        return evaluate_shape(self.shape, binding)

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


def kernel_call(*ops: str, block: str = "") -> Callable[[Maker], Maker]:
    """Registers what makes calls of ops, by opcode or, where nothing is of that opcode, by kind.

    What is of a `block` of the model goes before.
    """

    def register(maker: Maker) -> Maker:
        for op in ops:
            MAKERS.setdefault((op, block), []).append(maker)
        return maker

    return register


def kernel_calls(row: Row) -> tuple[Call, ...]:
    """The calls that an op may be, the first whose kernel takes the shape; none where no kernel is known."""
    kernels = KERNELS.own()
    keys = ((name, block) for name in (row.node.op.opcode, row.kind) for block in (row.block, ""))
    makers = next((MAKERS[key] for key in keys if key in MAKERS), [])
    known = [call for make in makers if (call := make(row))]
    return tuple(sorted(known, key=lambda call: kernels.get(call.families[0], Kernel).takes is Kernel.takes))


def evaluate_shape(shape: S, at: Binding) -> S:
    """`shape` with the sizes in it evaluated."""
    sizes = {f.name: v for f in fields(shape) if isinstance(v := getattr(shape, f.name), Dim)}
    if not sizes:
        return shape
    numbers = {name: at(size) for name, size in sizes.items()}
    return replace(shape, **numbers | (shape.uneven(at) if isinstance(at, UnevenBinding) else {}))


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
