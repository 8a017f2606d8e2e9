"""Base classes of kernel laws, and the kernel calls for an op of a program.

A `Kernel` estimates a time from a `Shape` and about a dozen physical parameters (`parameter`); it may also
have parameters that were fixed when the library was built (`choice`). `families` registers a class under the
names that calibrations use.

A `Call` is one execution of an op by a kernel: names of families, best first, and a shape with symbolic
sizes. The file of a kernel registers a function with `kernel_call` that turns a row into a call.
`kernel_calls(row)` returns all possible calls of an op.
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

DRAFTS = 8  # most new tokens that engines verify with decode kernels; they fit in one tile of queries

# The kernel families of calibrations.
KERNELS: Kind[type[Kernel]] = Kind("kernel", "llmir.backends.kernels")


class Parameter(NamedTuple):
    """One physical parameter: its default, range, unit and meaning.

    `choices` lists the values of a parameter that is not continuous. If `usual` is true, a fit changes the
    default only if this reduces the error.
    """

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
    """Declare a kernel parameter with a few possible values, one of which was chosen when the library was
    built.

    A fit tries each value.

    Args:
        default: The value without a fit.
        choices: The possible values.
        unit: The unit; "" for a ratio.
        meaning: One line for `explain` and for tables of fits.
        usual: Whether a fit changes the default only if this reduces the error, as for other parameters.
    """
    about = {"low": min(choices), "high": max(choices), "unit": unit, "meaning": meaning}
    return field(default=default, metadata=about | {"choices": choices, "usual": usual})


def parameter(default: float, low: float, high: float, unit: str, meaning: str) -> Any:
    """Declare a kernel parameter: a field with a default, a range, a unit and a meaning.

    Args:
        default: The value without a fit, and the first starting point of a fit.
        low, high: The range.
        unit: The unit; "" for a ratio, which transfers best to similar devices.
        meaning: One line for `explain` and for tables of fits.
    """
    about = {"low": low, "high": high, "unit": unit, "meaning": meaning}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Shape:
    """The inputs of a kernel: numbers or arrays of one broadcast shape.

    Fields in `words` are text or flags.
    """

    words: ClassVar[frozenset[str]] = frozenset({"dtype"})

    def numbers(self, prefix: str = "") -> dict[str, Number]:
        """The numeric fields by name; the name of a nested shape is the prefix of its fields."""
        found: dict[str, Number] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Shape):
                found |= value.numbers(f"{prefix}{f.name}_")
            elif f.name not in self.words:
                found[prefix + f.name] = value
        return found

    def put(self: S, numbers: Mapping[str, Number], prefix: str = "") -> S:
        """Return a copy with other numbers."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        inner = {n: v.put(numbers, f"{prefix}{n}_") for n, v in own.items() if isinstance(v, Shape)}
        others = {n: numbers[prefix + n] for n in own.keys() - inner.keys() - self.words}
        return replace(self, **others, **inner)

    def take(self: S, index: Any) -> S:
        """Return a copy with each array indexed, for example to select rows of a table."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        some = {n: v[index] for n, v in held.items() if isinstance(v, np.ndarray)}
        inner = {n: v.take(index) for n, v in held.items() if isinstance(v, Shape)}
        return replace(self, **some, **inner)

    def uneven(self, at: UnevenBinding) -> dict[str, Number]:
        """The sizes that must not be replaced by means over the sequences, for a call with sequences of
        different lengths.
        """
        return {}

    def spread(self: S, count: int) -> S:
        """Return a copy with each number as an array of `count` elements."""
        numbers = {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), str)}
        return replace(self, **{n: np.broadcast_to(np.asarray(v, float), count) for n, v in numbers.items()})


def stack_shapes(shapes: Sequence[S]) -> S:
    """Concatenate shapes with equal words into one shape."""
    columns: dict[str, Any] = {}
    for name, value in vars(shapes[0]).items():
        parts = [getattr(shape, name) for shape in shapes]
        if isinstance(value, Shape):
            columns[name] = stack_shapes(parts)
        elif not isinstance(value, str):
            columns[name] = np.concatenate([np.atleast_1d(np.asarray(part, float)) for part in parts])
    return replace(shapes[0], **columns)


def overlap_time(xp: Namespace, first: Number, *others: Number) -> Number:
    """Combine two times that overlap: the longer one, plus up to a quarter if both are equal, because work is
    uneven.

    The formula is the cube root of the sum of cubes.
    """
    return xp.cbrt(sum((t * t * t for t in others), start=first * first * first))


def cache_miss_share(footprint: Number, kept: float) -> Number:
    """Share of reused data that a cache of `kept` bytes no longer has after `footprint` bytes of traffic."""
    ratio = kept / footprint
    square = ratio * ratio
    return 1 / (1 + square * square)


def multiprocessors(device: Device) -> int:
    """Number of multiprocessors of the device, or of cores; HardwareError if its file states neither."""
    found = device.multiprocessors or device.cores
    if not found:
        raise HardwareError(f"{device.name} states no multiprocessors, which kernel models require")
    return found


@dataclass(frozen=True)
class KernelTransfer:
    """The transfer of a kernel from `home`, where it was measured, to another `device`.

    `matrix` and `memory` are the shares of the datasheet's rates that matrix products reach on the device,
    relative to the shares at home. `dtype` is the dtype of the arithmetic.
    """

    device: Device
    home: Device
    dtype: str = "bf16"
    matrix: float = 1.0
    memory: float = 1.0

    @property
    def slower(self) -> Number:
        """Ratio of the matrix rate to the fp32 rate on the device, relative to this ratio on the measured
        device; at most 1.
        """
        here, there = (
            d.matrix_peak(self.dtype)[0] / d.vector_flops["fp32"] for d in (self.home, self.device)
        )
        return minimum(1.0, there / here)

    def share(self, share: float) -> Number:
        """The share of the matrix peak on the device, given the share on the measured device.

        A slower matrix unit reaches a larger share, because other work takes the same time.
        """
        return self.matrix * (share / (share + (1 - share) * self.slower) if share < 1 else share)


@dataclass(frozen=True)
class Kernel(ABC):
    """A family of kernels on one device. Its fields are its parameters.

    A fit to measured rows (`silicon/calibrate/fit.py`) starts from `starts` points. A prior of weight `prior`
    pulls it to the defaults, and `loss` limits the effect of outliers. A kernel with `separate` is fitted
    while the other kernels of its rows stay fixed. Kernels in the same `group` share their transfer error
    (`cost/transfer.py`). Kernels of a `library` are the same in all engines.
    """

    group: ClassVar[str] = ""

    starts: ClassVar[int] = 3
    prior: ClassVar[float] = 0.1
    loss: ClassVar[str] = "soft_l1"
    separate: ClassVar[bool] = False
    library: ClassVar[bool] = False

    @abstractmethod
    def seconds(self, device: Device, shape: Any, xp: Namespace = ARRAYS) -> Number:
        """Estimate the time of one call in seconds, as a number or an array.

        Args:
            device: The device.
            shape: The inputs. Its values are numbers, arrays or symbols, so formulas use only operators and
                functions of `xp`.
            xp: The array namespace.

        Raises:
            HardwareError: The file of the device lacks a required number.
        """

    @staticmethod
    def supports(shape: Any) -> Any:
        """Whether the kernel supports the shape, computed with operators only.

        At least one kernel of an op supports all shapes.
        """
        return True

    def transfer_parameters(self, travel: KernelTransfer) -> dict[str, float]:
        """The parameters on another device. Only shared parameters that depend on the chip change."""
        values = dict(vars(self))
        for name in {"rate", "matrix"} & values.keys():  # shares of the matrix peak
            values[name] = travel.share(values[name])
        if "bandwidth" in values:
            values["bandwidth"] *= travel.memory
        return values

    @classmethod
    def transfer_class(cls) -> type[Kernel]:
        """The class that estimates the kernel on a device where it was not measured."""
        return cls

    @classmethod
    def of(cls: type[K], values: Mapping[str, float], where: str) -> K:
        """Build a kernel from its parameters.

        Args:
            values: Parameters by name; missing ones have their defaults.
            where: The location of the parameters, for error messages.

        Raises:
            HardwareError: A parameter is unknown or out of range.
        """
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
    """Register a kernel class under the names of its calibrated families."""

    def register(kernel: type[K]) -> type[K]:
        for name in names:
            KERNELS.add(name, kernel, kernel)
        return kernel

    return register


def parameters(kernel: type[Kernel]) -> tuple[Parameter, ...]:
    """The parameters of a kernel class, in order."""
    return tuple(_parameter(f) for f in fields(kernel))


def _parameter(f: Field[Any]) -> Parameter:
    if f.default is MISSING:
        raise TypeError(f"{f.name}: declare the field of a kernel with parameter(...)")
    return Parameter(f.name, f.default, **f.metadata)


# Calls of ops

_MANY = 1 << 14  # rows and columns of a matrix, to count scales of whole rows or columns per element


@dataclass(frozen=True)
class Call:
    """One execution of an op by a kernel: the names of its kernel `families`, the best first, and its shape.

    - `part`: The method that estimates the time. If an op is one part of a layer's kernel, it has its own
      method.
    - `shape_error`: Added to the mean relative error if the kernels were fitted to other shapes.
    - `kernel_error`: Added to the mean relative error if the kernels were fitted to other ops.
    - `contained`: A smaller shape that is part of the shape. No kernel runs the whole shape faster than this
      kernel runs the part.
    - `engine`: The engine that provides the kernel for all engines; empty if each engine has its own.
    """

    families: tuple[str, ...]
    shape: Shape
    part: str = "seconds"
    shape_error: float = 0.0
    kernel_error: float = 0.0
    contained: Shape | None = None
    engine: str = ""

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The symbolic sizes in the shape."""
        return tuple(size for size in vars(self.shape).values() if isinstance(size, Dim))

    def at(self, binding: Binding) -> Shape:
        """The shape with symbolic sizes evaluated."""
        return evaluate_shape(self.shape, binding)

    def whole(self, binding: Binding) -> bool:
        """Whether `contained` is the whole shape for these sizes."""
        pairs = ((value, getattr(self.contained, name)) for name, value in vars(self.shape).items())
        return all(always(_number(a, binding) == _number(b, binding)) for a, b in pairs if a is not b)

    def seconds(self, kernel: Kernel, device: Device, at: Binding, least: Number) -> Number:
        """Time of the call in seconds, but at least `least` (the roofline)."""
        return at.xp.maximum(self.of(kernel, device, self.at(at), at.xp), least)

    def of(self, kernel: Kernel, device: Device, shape: Shape, xp: Namespace) -> Number:
        """Time in seconds by the kernel alone, for a shape of numbers, arrays or symbols."""
        numbers = {} if xp in (SCALARS, ARRAYS) else shape.numbers()
        tape, fitted = tape_of(numbers.values()), tape_of(vars(kernel).values())
        if tape is None or fitted is not None:
            return getattr(kernel, self.part)(device, shape, xp)
        recorded = recording(kernel, self.part, device, shape.put(dict.fromkeys(numbers)))
        return tape.call(recorded, *numbers.values())


@lru_cache(maxsize=1 << 10)
def recording(kernel: Kernel, part: str, device: Device, words: Shape) -> Function:
    """Record a kernel on a device as a function of the numbers of a shape; recordings are cached by the texts
    of the shape.
    """
    tape = Tape(SCALARS)
    symbols = {name: tape.symbol(name) for name in words.numbers()}
    time = getattr(kernel, part)(device, words.put(symbols), tape.namespace)
    return Function.of(tape, symbols, [time])


Maker = Callable[[Row], "Call | None"]
MAKERS: dict[tuple[str, str], list[Maker]] = {}  # by opcode or kind of an op, and its block or none


def kernel_call(*ops: str, block: str = "") -> Callable[[Maker], Maker]:
    """Register a function that makes calls of ops, by opcode, or by kind for opcodes without a function.

    A function for a `block` of the model has priority.
    """

    def register(maker: Maker) -> Maker:
        for op in ops:
            MAKERS.setdefault((op, block), []).append(maker)
        return maker

    return register


def kernel_calls(row: Row) -> tuple[Call, ...]:
    """The possible calls of an op.

    The first call whose kernel supports the shape is used. Empty if no kernel is known.
    """
    kernels = KERNELS.own()
    keys = ((name, block) for name in (row.node.op.opcode, row.kind) for block in (row.block, ""))
    makers = next((MAKERS[key] for key in keys if key in MAKERS), [])
    known = [call for make in makers if (call := make(row))]
    return tuple(
        sorted(known, key=lambda call: kernels.get(call.families[0], Kernel).supports is Kernel.supports)
    )


def evaluate_shape(shape: S, at: Binding) -> S:
    """Evaluate the symbolic sizes of a shape."""
    sizes = {f.name: v for f in fields(shape) if isinstance(v := getattr(shape, f.name), Dim)}
    if not sizes:
        return shape
    numbers = {name: at(size) for name, size in sizes.items()}
    return replace(shape, **numbers | (shape.uneven(at) if isinstance(at, UnevenBinding) else {}))


def _number(size: Number, at: Binding) -> Number:
    return at(size) if isinstance(size, Dim) else size


def bits(type: DType) -> float:
    """Bits per element, including scales."""
    if not type.scale_bits:
        return type.bits
    rows, along = type.block
    each = (rows or _MANY) * (along or _MANY)
    return type.bits + type.scale_bits / each


def rows_of(type: Tensor) -> Dim | int:
    """Number of rows of a tensor: rows with separate scales, or all dimensions except the last."""
    if roles := type.dtype.roles:
        return product(size for size, role in zip(type.shape, roles, strict=True) if role != "k")
    return product(type.shape[:-1]) if len(type.shape) > 1 else 1
