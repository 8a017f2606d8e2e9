"""One op explained: its equation, its costs in symbols and in numbers, and why it takes the time it takes."""

from __future__ import annotations

import math
from typing import Any

from llmir.backends.cost.calibrated import Crossing, Fastest, Measured
from llmir.backends.cost.ideal import limits
from llmir.backends.cost.op_time import Price
from llmir.backends.cost.part import Part
from llmir.backends.kernels.base import Shape, parameters
from llmir.backends.step.costs import OpCost
from llmir.backends.step.report import Report
from llmir.backends.work.limit import Limit
from llmir.backends.work.network import Exchange, Way
from llmir.backends.work.rows import Row
from llmir.base.errors import InputError
from llmir.base.names import suggest
from llmir.ir.core.program import Instance, Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import Size
from llmir.ir.tools.text import print_node

from .arithmetic import arithmetic
from .explanation import Amount, Axis, Bound, Constant, Explanation, Kernel, Line, Route, Sent
from .overhead import find as find_overhead
from .overhead import terms


def find(program: Program, name: str) -> Instance:
    """The op of that path, or whose path ends in that name; `InputError` lists what is near or ambiguous."""
    ops = [i for i in program.instances() if i.node.op.runs]
    wanted = name.removeprefix("%")
    exact = [i for i in ops if i.path == wanted]
    found = exact or [i for i in ops if i.path.endswith(f".{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"op {name!r} is ambiguous: {_some([i.path for i in found])}")
    others = {i.path: i.node.op.opcode for i in program.instances()}
    for path, opcode in others.items():
        if wanted and (path == wanted or path.endswith(f".{wanted}")):
            known = f"explain takes one of {_some(_short(ops))}"
            raise InputError(f"{path}: of kind {opcode}, which takes no time; {known}")
    near = suggest(wanted, _short(ops)) or f"; there are {_some(_short(ops))}"
    raise InputError(f"unknown op {name!r}{near}")


def _short(ops: list[Instance]) -> list[str]:
    return list(dict.fromkeys(i.path.rsplit(".", 1)[-1] for i in ops))


def _some(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def explain(report: Report, name: str, phase: str = "step") -> Explanation:
    """The op called `name` in the step that `report` prices, at one point; the step is called `phase`."""
    if report.shape:
        raise InputError(f"an op is explained at one point, not on a grid of {report.shape}")
    if overhead := find_overhead(report, name):
        return _overhead(report, overhead, phase)
    at = find(report.program, name)
    plan = report.plan
    priced = zip(plan.rows, plan.prices, plan.pads, report.work, strict=True)
    row, price, pads, cost = next(found for found in priced if found[0].name == at.path)
    return Explanation(
        phase=phase,
        model=report.program.name,
        device=report.device.name,
        cost_model=report.cost_model,
        name=row.name,
        opcode=row.node.op.opcode,
        kind=row.kind,
        block=row.block,
        repeat=cost.repeat,
        layers="" if at.graph.name in report.program.entries else str(at.layers),
        ir=print_node(row.node),
        equation=str(_equation(at)),
        axes=_axes(report, at),
        binding=dict(report.at.symbols),
        flops=_flops(report, row),
        gemms=tuple({k: str(v) for k, v in g._asdict().items()} for g in row.work.gemms),
        reads=_amounts(report, row.reads, [str(v) for v in at.node.operands]),
        writes=_amounts(report, row.writes, [str(v) for v in at.node.values]),
        sends=_sends(report, row),
        routes=_routes(report, row),
        results=_results(report, at),
        limits=_limits(report, row, cost),
        basis=cost.basis,
        error=cost.error,
        ideal_time_s=cost.ideal_time_s,
        kernel=_kernel(price, plan.runs(report.at) if pads else report.at),
        time_s=cost.time_s,
        total_time_s=cost.time_s * cost.repeat,
        share=cost.share,
        stages=len(report.program.entries),
        step_time_s=report.time_s,
    )


def _overhead(report: Report, row: OpCost, phase: str) -> Explanation:
    return Explanation(
        phase=phase,
        model=report.program.name,
        device=report.device.name,
        cost_model=report.cost_model,
        name=row.name,
        opcode=row.kind,
        kind=row.kind,
        block=row.block,
        repeat=row.repeat,
        layers="",
        ir="",
        equation="",
        axes=(),
        binding=dict(report.at.symbols),
        flops=(),
        gemms=(),
        reads=(),
        writes=(),
        sends=(),
        routes=(),
        results=(),
        limits=(),
        basis=row.basis,
        error=row.error,
        ideal_time_s=row.ideal_time_s,
        kernel=None,
        time_s=row.time_s,
        total_time_s=row.total_s,
        share=row.share,
        stages=len(report.program.entries),
        step_time_s=report.time_s,
        terms=terms(report, row),
    )


def _sends(report: Report, row: Row) -> tuple[Amount, ...]:
    """What is sent: in a ring, which `comm_bytes` counts, and over each link in the way that is fastest."""
    op, done = row.node.op, row.work
    if not done.wire:
        return ()
    found = []
    if op.share:
        found.append(_amount(report, f"{op.share} of the payload", f"ring of n = {done.ranks},", done.wire))
    if limit := _exchange(report, row):
        way = limit.fastest(report.at)
        sent = [(leg.span.name, leg.bytes(limit.amount)) for leg in way.legs]
        found += [_amount(report, f"over {name}", f"{way.name},", size) for name, size in sent]
    return tuple(found)


def _exchange(report: Report, row: Row) -> Exchange | None:
    found = limits(report.plan.model.device, row)
    return next((limit for limit in found if isinstance(limit, Exchange)), None)


def _routes(report: Report, row: Row) -> tuple[Route, ...]:
    """The ways to send that are fastest at some size, from small to large."""
    limit = _exchange(report, row)
    if limit is None:
        return ()
    best, payload = limit.fastest(report.at), report.at(limit.amount)

    def route(way: Way) -> Route:
        legs = ((leg.span, report.at(leg.bytes(limit.amount))) for leg in way.legs)
        sends = tuple(Sent(span.name, size, span.link.Bps) for span, size in legs)
        return Route(way.name, way.latency_s, sends, float(way.time(payload)), way is best)

    return tuple(map(route, limit.ways))


def _local(report: Report, at: Instance) -> tuple[Tensor, ...]:
    return tuple(t.local(report.program.mesh) for t in at.graph.operand_types(at.node))


def _equation(at: Instance) -> Any:
    return at.node.op.equation(at.graph.operand_types(at.node))


def _axes(report: Report, at: Instance) -> tuple[Axis, ...]:
    rule, operands = _equation(at), _local(report, at)
    # A rank's rows need not be its tokens times k, so sizes are those of axes that stand alone.
    sizes = at.node.op.new_axes(operands)
    for term, operand in zip(rule.operands, operands, strict=True):
        sizes |= {d.axes[0]: n for d, n in zip(term, operand.shape, strict=True) if len(d.axes) == 1}
    names = rule.axes([*rule.operands, *rule.results])
    return tuple(Axis(n, rule.role(n), str(sizes[n]), report.at(sizes[n])) for n in names)


def _amount(report: Report, what: str, role: str, size: Size) -> Amount:
    return Amount(what, role, str(size), report.at(size))


def _flops(report: Report, row: Row) -> tuple[Amount, ...]:
    dtype = row.work.dtype.name
    pairs = (("matrix", row.work.matrix), ("vector", row.work.vector))
    return tuple(_amount(report, f"{unit} FLOPs", dtype, size) for unit, size in pairs)


def _amounts(report: Report, sizes: tuple[tuple[str, Size], ...], names: list[str]) -> tuple[Amount, ...]:
    return tuple(_amount(report, name, role, n) for name, (role, n) in zip(names, sizes, strict=True))


def _results(report: Report, at: Instance) -> tuple[Amount, ...]:
    """The memory of each result, and where that memory is another value's."""
    found = []
    for value, type in zip(at.node.values, at.node.results, strict=True):
        slot = at.node.op.aliases.get(value.result)
        where = "new" if slot is None else f"in the place of {at.node.operands[slot]}"
        found.append(_amount(report, str(value), where, type.local(report.program.mesh).bytes))
    return tuple(found)


def _held(price: Price, at: Binding) -> Price:
    """The price whose time it is at a point: of kernels the fastest, or what none takes less than."""
    if isinstance(price, Part) and price.own.time(at) == price.time(at):
        return _held(price.own, at)
    if not isinstance(price, Fastest) or isinstance(at, Mixed):
        return price
    floors = (one.less for one in price.prices if one.less)
    return next((one for one in (price.of(at), *floors) if one.time(at) == price.time(at)), price.of(at))


def _kernel(price: Price, at: Binding) -> Kernel | None:
    """What a calibrated price is made of, of attention that of the kernel which holds."""
    price = _held(price, at)
    if not isinstance(price, Measured):
        return None
    fit, given = price.fit, price.call.at(at)
    constants = (
        Constant(p.name, getattr(fit.kernel, p.name), p.unit, p.meaning) for p in parameters(type(fit.kernel))
    )
    return Kernel(
        family=fit.family,
        engine=fit.engine,
        device=fit.device.name,
        origin=fit.fitted.origin,
        rows=fit.fitted.rows,
        error=fit.fitted.error,
        strange=price.call.strange + price.call.doubt,
        given={name: value for name, value in vars(given).items() if value != math.inf},
        parameters=tuple(constants),
        lines=() if isinstance(price, Crossing) else _lines(price, given),
    )


def _lines(price: Measured, shape: Shape) -> tuple[Line, ...]:
    return arithmetic(price.fit.kernel, price.call.part, price.device, shape)


def _limits(report: Report, row: Row, cost: OpCost) -> tuple[Bound, ...]:
    found = limits(report.plan.model.device, row)
    times = [float(x.time(report.at)) for x in found]
    # Of limits that tie, the one that the report names.
    first = max(range(len(found)), key=lambda i: (times[i], found[i].bound == cost.bound))
    return tuple(_bound(report, x, t, i == first) for i, (x, t) in enumerate(zip(found, times, strict=True)))


def _bound(report: Report, limit: Limit, time: float, decides: bool) -> Bound:
    what, amount, rate, constant, latency = limit.what, limit.amount, limit.rate, limit.constant, 0.0
    if isinstance(limit, Exchange):
        way = limit.fastest(report.at)
        leg, latency = way.slowest, way.latency_s
        span = leg.span
        what, amount = f"{way.name}, bytes over {span.name}", leg.bytes(limit.amount)
        rate, constant = span.link.Bps, span.constant
    return Bound(
        bound=limit.bound,
        what=what,
        expression=str(amount),
        amount=report.at(amount),
        latency_s=latency,
        rate=rate,
        time_s=time,
        decides=decides,
        constant=constant,
        source=_source(report, constant),
    )


def _source(report: Report, constant: str) -> str:
    """Where a constant comes from; a device made in Python need not say."""
    device = report.plan.model.device
    return device.source(constant) if device.sources else "not stated"
