"""The `calibrated` cost model: kernel laws with parameters fitted to measurements of a device.

`CalibratedModel.price(row)` returns the op time. It is a `KernelTime` for a calibrated kernel (never below
the roofline), a `FastestKernel` if several kernels can run the op, a `MultiNodeTime` for ranks in several
nodes, a `FusedAttentionPart` for a product of unfused attention, and an `UnmeasuredTime` for an op without a
kernel law. `FastLaunchModel` has shorter launches; the sensitivity report uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from math import inf
from operator import or_
from typing import Any, ClassVar

import numpy as np

from llmir.backends.kernels.base import Call, Kernel, kernel_calls
from llmir.backends.kernels.collective import CollectiveShape, NetworkKernel, internode_calls
from llmir.backends.kernels.eager_attention import fused_share
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.kernels.stream import FAMILIES as STREAM
from llmir.backends.work.network import one_node, split_group
from llmir.backends.work.rows import BETWEEN_NODES, BOUNDS, CALIBRATED, UNMEASURED, Basis, Row
from llmir.base.array_namespace import Number
from llmir.hw.calibration import LIBRARIES
from llmir.hw.device import Device
from llmir.hw.engine import Engine
from llmir.hw.engine_sections import JoinedKernels, KernelVariants
from llmir.ir.sizes.binding import Binding, MixedBinding
from llmir.ir.sizes.polynomial import Dim, maximum, minimum, monomials

from . import transfer
from .op_time import DeviceCostModel, OpTime, Roofline
from .roofline import DeratedRoofline, IdealModel
from .transfer import KernelFit, first_engine, kernel_engine, kernel_sources, nearest_fit, same_chip

# Products of unfused attention


@dataclass(frozen=True)
class FusedAttentionPart(OpTime):
    """The time of a product of unfused attention, at least its share of the fused attention's time.

    The product for scores and the product with values are each half of the fused work, and each reads half of
    the keys and values. Without this bound, the estimate of an ordinary matrix product could be shorter than
    the optimized fused kernel.
    """

    own: OpTime
    fused: OpTime
    share: float = 0.5

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The sizes that the time depends on."""
        both: Any = (self.own, self.fused)
        return tuple(size for price in both for size in price.sizes)

    @property
    def basis(self) -> Basis:
        return self.own.basis

    @property
    def error(self) -> float | None:
        return self.own.error

    @property
    def lent(self) -> float:
        return self.own.lent

    @property
    def beyond(self) -> float:
        return self.own.beyond

    def time(self, at: Binding) -> Number:
        """The longer."""
        return at.xp.maximum(self.own.time(at), self.share * self.fused.time(at))

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """The longer of the two times: of the kernel alone, and in a graph."""
        pairs = zip(self.own.in_graph(at, hidden), self.fused.in_graph(at, hidden), strict=True)
        alone, together = (at.xp.maximum(time, self.share * whole) for time, whole in pairs)
        return alone, together

    def least(self, at: Binding) -> Number:
        """Seconds of the product's roofline."""
        return self.own.least(at)

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """The longer of the two times, with the bound of the matrix product."""
        return self.in_graph(at, hidden)[1], self.own.due(at, hidden)[1]


# Ops without a measured kernel

# Measured with `llmir validate --cost ideal` on attention_decode, mla and linear_attention (36 kinds of calls
# above 20 µs, on A100, H100, B200 and L40S). The first number is roofline time / measured time: the median
# over the calls of a kind, and then the median over kinds. The second number is the mean error of an estimate
# of roofline time / 0.36, for the median kind.
UNMEASURED_SHARE = 0.36
UNMEASURED_ERROR = 0.72


@dataclass(frozen=True)
class UnmeasuredTime(DeratedRoofline):
    """The roofline at the median share of its rates that kernels reach, plus one launch."""

    basis: Basis = UNMEASURED

    @property
    def error(self) -> float:
        """The error is large, because the kernel is not known."""
        return UNMEASURED_ERROR


def unmeasured_time(roofline: Roofline, stream: KernelFit) -> UnmeasuredTime:
    """The time of an op without a kernel law; its launch is the launch of the device's stream kernels."""
    reached = tuple(replace(limit, rate=limit.rate * UNMEASURED_SHARE) for limit in roofline.limits)
    launch_us = float(getattr(stream.kernel, "launch_us", 0.0))
    return UnmeasuredTime(roofline.limits, reached=reached, launch_s=launch_us * 1e-6)


def sent_between_two(row: Row) -> Call:
    """A call for a collective of unknown kind, estimated as an exchange between two ranks."""
    return Call(("all_to_all",), CollectiveShape(2 * row.work.wire, 2))


def collective_within(call: Call, most: int) -> Call:
    """A collective with the same payload among at most `most` ranks."""
    shape = call.shape
    if not isinstance(shape, CollectiveShape) or shape.ranks <= most:
        return call
    return replace(call, shape=replace(shape, ranks=most))


# Calibrated op times and their cost model

# Number of points whose results are cached. A matrix product depends on B·T only, while contexts change.
_POINTS = 512
NCCL = "nccl"


@dataclass(frozen=True)
class KernelTime(OpTime):
    """The time of a calibrated kernel, but at least the roofline.

    `basis` names the source of the measurements; `error` is the mean relative error on held-out shapes.
    """

    device: Device
    call: Call
    fit: KernelFit
    roofline: Roofline
    engine: str = ""
    by: str = ""

    @cached_property
    def basis(self) -> Basis:
        """`calibrated`, or the source device or engine if the calibration was transferred."""
        own = self.fit.engine in (self.engine, kernel_engine(self.engine))
        device = "" if self.fit.device == self.device else self.fit.device.name
        return Basis("calibrated", device, "" if own else self.fit.engine, self.by)

    @cached_property
    def error(self) -> float | None:
        """The mean relative error on held-out shapes, plus transfer and shape errors."""
        return transfer.combine_errors(
            self.fit.fitted.error + self.call.shape_error + self.call.kernel_error, self.lent
        )

    @cached_property
    def lent(self) -> float:
        """The error of transfer from another device and another engine."""
        family, engine = self.fit.family, self.basis.engine
        device = transfer.device_error(self.device, self.fit.device, family)
        called = engine in LIBRARIES and self.engine not in LIBRARIES  # by engines, not by another library
        lent = engine and not called and not self.fit.kernel.library
        other = transfer.engine_error(family) if lent else 0.0
        return transfer.combine_errors(device, other)

    @cached_property
    def beyond(self) -> float:
        """The whole error; but on a chip for which engine CPU times were fitted, only the part due to changed
        rates.
        """
        if not same_chip(self.device):
            return self.lent
        return transfer.rate_error(self.device, self.fit.device, self.fit.family)

    @cached_property
    def launch_s(self) -> float:
        """Seconds of an empty call, the fixed cost."""
        return float(getattr(self.fit.kernel, "launch_us", 0.0)) * 1e-6

    def time(self, at: Binding) -> Number:
        """Seconds; for sequences of several kinds in one step, of their joint call."""
        return self._times(at)[0]

    @cached_property
    def sizes(self) -> tuple[Dim, ...]:
        """All values on which a time depends."""
        return monomials((*self.call.sizes, *self.roofline.sizes))

    @cached_property
    def _known(self) -> dict[tuple[Number, ...], tuple[Number, Number]]:
        return {}

    def _times(self, at: Binding) -> tuple[Number, Number]:
        """The seconds, and the seconds of the roofline; points with equal sizes are evaluated once."""
        if at.uneven:  # the shape of the next family may need more numbers
            return self._fresh(at)
        point = tuple(map(at, self.sizes))
        if not all(isinstance(value, (int, float)) for value in point):
            return self._fresh(at)
        if (times := self._known.get(point)) is None:
            if len(self._known) >= _POINTS:
                self._known.clear()
            times = self._known[point] = self._fresh(at)
        return times

    def _fresh(self, at: Binding) -> tuple[Number, Number]:
        least = self.roofline.time(at)
        return self.call.seconds(self.fit.kernel, self.device, at, least), least

    def supports(self, at: Binding) -> Any:
        """Whether the kernel supports the call at this point."""
        return self.fit.kernel.supports(self.call.at(at))

    @cached_property
    def contained(self) -> KernelTime | None:
        """The time of a contained call, which is a lower bound for any kernel; None if there is no contained
        call.
        """
        part = self.call.contained
        return replace(self, call=replace(self.call, shape=part, contained=None)) if part else None

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """Seconds of the kernel alone, and seconds without the hidden share of its launch; both are at least
        the roofline.

        On a device without CUDA graphs, no launch is hidden.
        """
        time, least = self._times(at)
        if not self.device.hides_launches or (isinstance(hidden, float) and not hidden):
            return time, time
        return time, maximum(time - hidden * self.launch_s, least)

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.roofline.time(at)

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds of the roofline and their bound; the bound is overhead if the remaining launch takes at
        least half of the time.
        """
        time, (_, bound) = self.in_graph(at, hidden)[1], self.roofline.due(at)
        launch = 2 * (1 - hidden * self.device.hides_launches) * self.launch_s
        return time, at.xp.where((time <= launch) & (launch > 0), BOUNDS.index("overhead"), bound)


@dataclass(frozen=True)
class MultiNodeTime(KernelTime):
    """The time of a collective across nodes: the slowest kernel in `inside`, plus the time in the network.

    `network` is the fitted kernel, or NCCL's if the engine was not measured across nodes.
    """

    inside: tuple[KernelTime, ...] = ()
    over: tuple[Call, ...] = ()  # the algorithms of the network
    network: Kernel | None = None

    def _fresh(self, at: Binding) -> tuple[Number, Number]:
        least = self.roofline.time(at)
        near = reduce(maximum, (one.call.seconds(one.fit.kernel, one.device, at, 0.0) for one in self.inside))
        ways = (way.seconds(self.network or NetworkKernel(), self.device, at, 0.0) for way in self.over)
        return maximum(near + reduce(minimum, ways), least), least

    @property
    def basis(self) -> Basis:
        """The source of the network kernel; the roofline if no kernel was measured across nodes."""
        return super().basis if self.network else BETWEEN_NODES

    @property
    def error(self) -> float | None:
        return super().error if self.network else None


@dataclass(frozen=True)
class FastestKernel(OpTime):
    """The time of an op that several kernels can run, such as attention: the fastest kernel that supports the
    shape.

    The last kernel supports all shapes. Sequences of different kinds in one step are evaluated separately.
    """

    prices: tuple[KernelTime, ...]
    apart: ClassVar[bool] = True

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The sizes on which the times of all kernels depend."""
        return tuple(size for price in self.prices for size in price.sizes)

    @property
    def basis(self) -> Basis:
        """The basis of the first kernel, if the bases differ."""
        return self.prices[0].basis

    @property
    def error(self) -> float | None:
        """The largest."""
        return max((price.error for price in self.prices if price.error is not None), default=None)

    @property
    def lent(self) -> float:
        """The largest."""
        return max(price.lent for price in self.prices)

    @property
    def beyond(self) -> float:
        """The largest."""
        return max(price.beyond for price in self.prices)

    def held(self, which: Number) -> OpTime:
        """The fastest kernel; all kernels, if it depends on the point which one is fastest."""
        if isinstance(which, int):
            return self.prices[which] if which >= 0 else self
        first = int(np.min(which))
        if first >= 0 and np.all(which == first):
            return self.prices[first]
        by_point = _FastestByPoint if self.apart else _VariantByPoint
        return self if first < 0 else by_point(self.prices, which)

    def _separate(self, at: Binding) -> bool:
        """Whether the kernel runs sequences of different kinds one after another."""
        return self.apart and isinstance(at, MixedBinding)

    def which(self, at: Binding, hidden: Number = 0.0) -> Number:
        """The index of the fastest kernel; the first one if several are equal."""
        if self._separate(at):
            return -1
        (least, *others), found = [time for _, time in self._each(at, lambda p: p.in_graph(at, hidden))], 0
        for i, time in enumerate(others, 1):
            found, least = at.xp.where(time < least, i, found), at.xp.minimum(least, time)
        return found

    @cached_property
    def _floors(self) -> tuple[tuple[KernelTime, tuple[KernelTime, ...]], ...]:
        """Lower bounds of the op: a contained call, and earlier kernels in case none of them supports the
        op.
        """
        pairs = ((price.contained, self.prices[:i]) for i, price in enumerate(self.prices))
        return tuple(
            (less, tuple(replace(one, call=replace(one.call, shape=less.call.shape)) for one in others))
            for less, others in pairs
            if less
        )

    def _each(self, at: Binding, value: Callable[[KernelTime], tuple[Number, ...]]) -> list[list[Number]]:
        """The value of each kernel by `value`; infinite if the kernel does not support the op.

        No time is below the time of a kernel for a contained call, if no earlier kernel supports this call.
        """
        first = self.prices[0]
        if first.contained and first.call.whole(at):
            # The first kernel supports the op, and its time is a lower bound for all.
            return [[*value(first)]]
        every = [
            [at.xp.where(price.supports(at), time, inf) for time in value(price)] for price in self.prices
        ]
        for price, others in self._floors:
            taken = reduce(or_, (other.supports(at) for other in others), False)
            floors = [at.xp.where(taken, 0.0, time) for time in value(price)]
            every = [[maximum(t, floor) for t, floor in zip(x, floors, strict=True)] for x in every]
        return every

    def _least(self, at: Binding, value: Callable[[KernelTime, Binding], tuple[Number, ...]]) -> list[Number]:
        """The minimum over kernels, of each time that `value` returns."""
        if isinstance(at, MixedBinding) and self.apart:
            return at.each(self, lambda part: self._least(part, value))
        every = self._each(at, lambda price: value(price, at))
        return [reduce(at.xp.minimum, times) for times in zip(*every, strict=True)]

    def time(self, at: Binding) -> Number:
        """Seconds of the sequences of all kinds together."""
        (time,) = self._least(at, lambda price, point: (price.time(point),))
        return time

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """Seconds of the fastest kernel alone, and of the fastest kernel in a graph; these may be different
        kernels.
        """
        alone, together = self._least(at, lambda price, point: price.in_graph(point, hidden))
        return alone, together

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.prices[0].least(at)

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds, with the bound of the fastest kernel."""
        _, time = self.in_graph(at, hidden)
        if self._separate(at):
            return time, self.prices[-1].due(at, hidden)[1]
        which, (bound, *others) = self.which(at, hidden), (one.due(at, hidden)[1] for one in self.prices)
        for i, other in enumerate(others, 1):
            bound = at.xp.where(which == i, other, bound)
        return time, bound


@dataclass(frozen=True)
class FastestVariant(FastestKernel):
    """The time of a call by the fastest of an engine's kernels; each of them supports all shapes.

    One call covers the sequences of all kinds in a step.
    """

    apart: ClassVar[bool] = False


def _fastest(prices: list[KernelTime]) -> KernelTime | FastestKernel:
    return FastestKernel(tuple(prices)) if len(prices) > 1 else prices[0]


@dataclass(frozen=True, eq=False)
class _FastestByPoint(FastestKernel):
    """`FastestKernel` on a grid where the fastest kernel at each point is known, given by its index."""

    fastest: Number

    @property
    def error(self) -> Any:
        """The error of the fastest kernel; the largest error if it is not known which one is fastest."""
        errors = [price.error for price in self.prices]
        return super().error if None in errors else np.array(errors)[self.fastest]

    @property
    def lent(self) -> Any:
        return np.array([price.lent for price in self.prices])[self.fastest]

    @property
    def beyond(self) -> Any:
        return np.array([price.beyond for price in self.prices])[self.fastest]


@dataclass(frozen=True, eq=False)
class _VariantByPoint(_FastestByPoint):
    """`FastestVariant` on a grid where the fastest kernel at each point is known."""

    apart: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class CalibratedModel(DeviceCostModel):
    """The `calibrated` cost model on one device, with the kernels of an engine (None: the device's default
    engine).
    """

    device: Device
    engine: str | None = None
    host: EngineCpu | None = None
    host_error: float | None = None
    runs: Engine | None = None

    name = "calibrated"

    @property
    def kernels(self) -> str:
        """The engine whose kernels are preferred: the device's default engine if the requested engine has no
        kernels.
        """
        named = self.engine if self.engine and self.engine in kernel_sources(self.device) else None
        return named or first_engine(self.device) or "no"

    def price(self, row: Row) -> OpTime:
        """The time of a measured kernel, or the roofline at a share of its rates if no law covers the op."""
        roofline = IdealModel(self.device).price(row)
        if not (row.read or row.write or row.flops or row.work.wire):
            return replace(roofline, basis=CALIBRATED)  # the op is a view, or the receiving end of a send
        known = [price for call in kernel_calls(row) if (price := self._measured(call, roofline))]
        if self._joins(row):
            known = [replace(price, fit=_sooner(price.fit, inf)) for price in known]
        over = internode_calls(row, self.device)
        if not known and row.work.wire:
            sent = sent_between_two(row)
            known = [price for price in (self._measured(sent, roofline, sent.families[0]),) if price]
        if not known:
            stream = None if row.work.wire else self.fit(self.device, STREAM, self.engine)
            if stream:
                return unmeasured_time(roofline, stream)
            return replace(roofline, basis=BETWEEN_NODES) if over else roofline
        if over:
            known = [self._crossing(price, over, row) for price in known]
        one = self._variants(known[0]) if len(known) == 1 and not over else _fastest(known)
        share, parts = fused_share(row)
        whole = [price for call in parts if (price := self._measured(call, roofline))]
        return FusedAttentionPart(one, _fastest(whole), share) if whole else one

    def fit(self, device: Device, families: Sequence[str], engine: str | None) -> KernelFit | None:
        """The kernel of the first of these families for which the device has a kernel."""
        return nearest_fit(device, families, engine)

    def _crossing(self, one: KernelTime, over: tuple[Call, ...], row: Row) -> MultiNodeTime:
        """The time inside a node, with up to the number of ranks in it; more ranks can be faster if switches
        add up values.

        Engines use NCCL between nodes, but the time is never below that of their own kernels inside a node.
        """
        device, most = one_node(self.device, row.work.ranks)
        calls = {
            collective_within(one.call, n)
            for n in (most, max(2, len(split_group(self.device, row.work.group)[0])))
        }
        fits = [self.fit(device, one.call.families, engine) for engine in (self.engine, NCCL)]
        inside = [replace(one, device=device, call=call, fit=fit) for call in calls for fit in fits if fit]
        made = MultiNodeTime(**vars(one), inside=tuple(inside), over=over)
        fit = self.fit(self.device, over[0].families, self.engine)
        known = fit and self.engine and kernel_engine(self.engine) == kernel_engine(fit.engine)
        return replace(made, fit=fit, network=fit.kernel) if fit and known else made

    def _joins(self, row: Row) -> bool:
        """Whether the engine's release runs this op inside the kernel of another op."""
        joined = self.runs.section(JoinedKernels) if self.runs else None
        return joined is not None and joined.contains(row.node.op.opcode, row.block)

    def _variants(self, one: KernelTime) -> KernelTime | FastestKernel:
        """The fastest of the kernels of one family that the engine's release calls on this device."""
        known = self.runs.section(KernelVariants) if self.runs else None
        names = known.kernels if known else ()
        found = [one]
        for name in (f"{self.engine}-{name}" for name in names):
            fit = self.fit(self.device, (one.fit.family,), name)
            if fit and fit.engine == name and fit.device == one.fit.device:
                found.append(replace(one, fit=fit))
        return FastestVariant(tuple(found)) if len(found) > 1 else one

    def _measured(self, made: Call, roofline: Roofline, by: str = "") -> KernelTime | None:
        found = self.fit(self.device, made.families, made.engine or self.engine)
        if not found:
            return None
        by = by or found.family * bool(made.shape_error)
        return KernelTime(self.device, made, found, roofline, self.engine or self.kernels, by)


# Shorter launches


@dataclass(frozen=True, eq=False)
class FastLaunchModel(CalibratedModel):
    """The calibrated model with kernel launches that are `times` times as fast."""

    times: float = 1.0

    def fit(self, device: Device, families: Sequence[str], engine: str | None) -> KernelFit | None:
        """The fitted kernel with a shorter launch."""
        found = super().fit(device, families, engine)
        return _sooner(found, self.times) if found else None


@lru_cache(maxsize=1024)
def _sooner(fit: KernelFit, times: float) -> KernelFit:
    launch = getattr(fit.kernel, "launch_us", None)
    return replace(fit, kernel=replace(fit.kernel, **{"launch_us": launch / times})) if launch else fit
