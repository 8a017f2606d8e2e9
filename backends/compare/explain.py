"""Explanation of one row of a step: equation, sizes, limits, and the arithmetic of its kernel.

Order of the file: the terms of a row that is not an op, such as engine overhead or a bubble
(`overhead_terms`); the records of an explanation (`Explanation`); the arithmetic of a kernel (`arithmetic`);
and `explain`.

`arithmetic` evaluates the kernel law itself at one point, so the printed lines are the lines that are
computed. For a minimum, a maximum or a `where`, it shows only the chosen argument; terms that are zero are
omitted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from llmir.backends.cost.calibrated import FastestKernel, FusedAttentionPart, KernelTime, MultiNodeTime
from llmir.backends.cost.op_time import OpTime
from llmir.backends.cost.roofline import limits
from llmir.backends.kernels.base import Kernel, Shape, parameters
from llmir.backends.step.evaluate import BUBBLE, OVERHEAD, OpCost, collective_skew
from llmir.backends.step.report import Report
from llmir.backends.step.timing import OVERHEAD_ROWS
from llmir.backends.tape.python import TEXT
from llmir.backends.tape.record import Function, Tape
from llmir.backends.work.network import CollectiveRoute, NetworkLimit
from llmir.backends.work.rows import Basis, Limit, Row
from llmir.base.arguments import show_value
from llmir.base.array_namespace import SCALARS, Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.names import suggest
from llmir.base.values import Figures
from llmir.hw.device import Device
from llmir.ir.core.program import Instance, Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding, MixedBinding
from llmir.ir.sizes.polynomial import Size
from llmir.ir.tools.text import print_node

# Rows that are not ops


@dataclass(frozen=True)
class OverheadTerm:
    """An intermediate time of an overhead row: its name, its derivation, and seconds."""

    what: str
    says: str
    time_s: float


def find_overhead(report: Report, name: str) -> OpCost | None:
    """The row with this name, or with this name as its last part; InputError if several stages have such a
    row.
    """
    rows = [row for row in report.ops if row.kind == OVERHEAD]
    found = [row for row in rows if name in (row.name, row.name.rpartition(".")[2])]
    if len(found) > 1:
        raise InputError(f"op {name!r} is ambiguous: {', '.join(row.name for row in found)}")
    return found[0] if found else None


def overhead_terms(report: Report, row: OpCost) -> tuple[OverheadTerm, ...]:
    """Two times: the time of the row is the second time minus the first."""
    return _bubble(report, row) if row.bound == BUBBLE else _engine(report, row)


def _engine(report: Report, row: OpCost) -> tuple[OverheadTerm, OverheadTerm]:
    """For one micro-batch on its stage: the time without this part of the engine overhead, and the time with
    it.
    """
    plan, host = report.plan, report.plan.host
    assert host is not None, "an engine's row is there with its host only"
    added, ours = report.overheads[row.stage], [r for r in plan.rows if r.stage == row.stage]
    whole, kernels = float(report.stages[row.stage].time_s), sum(r.repeat for r in ours)
    launched = whole - float(added.host_s + added.skew_s)
    captured = bool(plan.captured(report.at))
    if row.name.endswith(OVERHEAD_ROWS["launching_s"]):
        how = f"in a graph that hides {100 * host.hidden:.3g}% of each launch" if captured else "one by one"
        return (
            OverheadTerm("kernels", f"{kernels:,}, {how}", launched - float(added.launching_s)),
            OverheadTerm(
                "as launched", "at once" if captured else f"by the CPU, {host.launch_text}", launched
            ),
        )
    together = whole - float(added.host_s)
    if row.name.endswith(OVERHEAD_ROWS["skew_s"]):
        calls = Counter[int]()
        for r in ours:
            calls[r.work.ranks] += r.repeat if collective_skew(r) else 0
        late = ", ".join(f"{n:,} collectives of {ranks} ranks" for ranks, n in sorted(calls.items()) if n)
        return (
            OverheadTerm("one rank", "kernels as launched", launched),
            OverheadTerm("ranks together", f"{late}, each is {host.skew_us:.3g} µs late", together),
        )
    return (
        OverheadTerm("GPU", "kernels, launch gaps and rank skew", together),
        OverheadTerm("with the CPU", host.cpu_text(plan.sequences(report.at)), whole),
    )


def _bubble(report: Report, row: OpCost) -> tuple[OverheadTerm, ...]:
    """For a step: the work of the stage, and the time of all stages."""
    parts, stage = report.program.micro_batches, report.stages[row.stage]
    each = f"{parts} micro-batch{'es' if parts > 1 else ''} of {1e3 * float(stage.time_s):.3g} ms"
    times = ", ".join(f"{1e3 * float(s.time_s):.3g}" for s in report.stages)
    return (
        OverheadTerm("stage works", each, parts * float(stage.time_s)),
        OverheadTerm("step", f"Σt + {parts - 1} · max t; stages take {times} ms", float(report.time_s)),
    )


# Records of an explanation


@dataclass(frozen=True)
class Axis:
    """An axis of the equation, its role and its size."""

    name: str
    role: str
    expression: str
    size: Number


@dataclass(frozen=True)
class Amount:
    """A counted amount: what it is, its role, its size in symbols, and its size as a number."""

    what: str
    role: str
    expression: str
    value: Number


@dataclass(frozen=True)
class TimeBound:
    """A limit on the time: `latency_s`, and `amount` at `rate` per second, a constant of the device."""

    bound: str
    what: str
    expression: str
    amount: Number
    latency_s: float
    rate: float
    time_s: float
    decides: bool
    constant: str
    source: str


@dataclass(frozen=True)
class LinkTraffic:
    """Bytes that a rank sends over one link, at `rate` per second."""

    link: str
    bytes: Number
    rate: float


@dataclass(frozen=True)
class NetworkRoute:
    """A route through the network with its time; the links of a route work in parallel."""

    name: str
    latency_s: float
    sends: tuple[LinkTraffic, ...]
    time_s: float
    fastest: bool


@dataclass(frozen=True)
class Constant:
    """A parameter of a calibrated kernel: its value, unit ("" for a ratio) and meaning."""

    name: str
    value: float
    unit: str
    meaning: str


@dataclass(frozen=True)
class FormulaLine:
    """A line of arithmetic: a formula of a kernel's parameters, its arguments and earlier lines."""

    name: str
    formula: str
    value: Number


@dataclass(frozen=True)
class KernelExplanation(Figures):
    """The calibrated kernel of an op: its source, its arguments, and its calibration.

    `lines` are its computation at this point; the last line is the time of the kernel alone. `alone_s` is
    this time, or the roofline if the roofline is longer. This time includes the launch, `launch_s`; the graph
    of the step hides the share `hidden` of it.
    """

    family: str
    engine: str
    device: str
    origin: str
    rows: int
    error: float
    strange: float  # error that is added for head sizes or ops to which the kernel was not fitted
    given: Mapping[str, Any]
    parameters: tuple[Constant, ...]
    lines: tuple[FormulaLine, ...]
    alone_s: float
    launch_s: float
    hidden: float


@dataclass(frozen=True)
class Explanation(Figures, Result):
    """All facts about one op in one step; sizes and costs are of one execution on one rank.

    For a row that is not an op, `terms` add up to its time, and it has no sizes. `share` is relative to a
    step of `step_time_s` over all pipeline stages.
    """

    phase: str
    model: str
    device: str
    cost_model: str
    name: str
    opcode: str
    kind: str
    block: str
    repeat: int
    layers: str
    ir: str
    equation: str
    axes: tuple[Axis, ...]
    binding: Mapping[str, Number]
    flops: tuple[Amount, ...]
    gemms: tuple[Mapping[str, str], ...]
    reads: tuple[Amount, ...]
    writes: tuple[Amount, ...]
    sends: tuple[Amount, ...]
    routes: tuple[NetworkRoute, ...]
    results: tuple[Amount, ...]
    limits: tuple[TimeBound, ...]
    basis: Basis
    error: float | None
    ideal_time_s: float
    kernel: KernelExplanation | None
    time_s: float
    total_time_s: float
    share: float
    stages: int
    step_time_s: float
    terms: tuple[OverheadTerm, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-compatible values."""
        return asdict(self) | {"basis": str(self.basis)}


# Arithmetic of a kernel

TIME = "kernel"  # the name of the last line: the seconds of a call
WIDEST = 64  # longest expression, in characters, that is not given a separate line
# Precedence of operators in the text; calls and names have the highest.
BINDS = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), 0),
    **dict.fromkeys(("less", "less_equal", "equal", "not_equal"), 0),
    **{"add": 1, "subtract": 1, "multiply": 2, "divide": 2, "floor_divide": 2, "negative": 3, "power": 4},
}
TIGHT = 5


def arithmetic(kernel: Kernel, part: str, device: Device, shape: Shape) -> tuple[FormulaLine, ...]:
    """The computation of a part of a kernel for one shape, line by line; the last line is the time in
    seconds.

    A line is a Python expression of the kernel's parameters, the numbers of the shape, and earlier lines.
    """
    tape, given = Tape(SCALARS), dict[str, Number]()

    def symbol(name: str, value: Number) -> Number:
        if value in (0, inf):
            return value
        given[name] = value
        return tape.symbol(name)

    own = {p.name: (getattr(kernel, p.name), p.choices) for p in parameters(type(kernel))}
    symbols = {name: value if choices else symbol(name, value) for name, (value, choices) in own.items()}
    numbers = {name: symbol(name, value) for name, value in shape.numbers().items()}
    time = getattr(type(kernel)(**symbols), part)(device, shape.put(numbers), tape.namespace)
    return _tape_lines(_chosen(Function.of(tape, given, [time]), given), given)


def _values(tape: Tape, given: Mapping[str, Number]) -> list[Number]:
    """The value of each node."""
    found: list[Number] = []
    for kind, of in tape.nodes:
        if kind in ("constant", "symbol"):
            found.append(of[0] if kind == "constant" else given[of[0]])
        else:
            found.append(tape.scalars[kind](*(found[n] for n in of)))
    return found


def _chosen(function: Function, given: Mapping[str, Number]) -> Function:
    """Keep only the parts of the computation that apply at this point."""
    nodes, values, kept = function.tape.nodes, _values(function.tape, given), dict[int, tuple[int, ...]]()
    for number in function.live:
        kind, of = nodes[number]
        if kind in ("minimum", "maximum"):
            kept[number] = (next(n for n in of if values[n] == values[number]),)
        elif kind == "where":
            kept[number] = (of[1 if values[of[0]] else 2],)
    nothing = {n: values[n] for n in function.live if values[n] in (0, inf)}
    tape = Tape(SCALARS)
    inputs = {**function.inputs, **dict.fromkeys(nothing, "")}
    operands = [*map(tape.symbol, function.inputs.values()), *nothing.values()]
    found = Function(function.tape, inputs, function.outputs).onto(tape, operands, kept)
    return Function.of(tape, given, found)


def _tape_lines(function: Function, given: Mapping[str, Number]) -> tuple[FormulaLine, ...]:
    nodes, values = function.tape.nodes, _values(function.tape, given)
    uses = Counter(n for number in function.live for n in nodes[number].of)
    said: dict[int, tuple[str, int]] = {}
    lines: list[FormulaLine] = []

    def say(number: int, binds: int) -> str:
        if number in said:
            text, tight = said[number]
            return text if tight >= binds else f"({text})"
        return function.inputs.get(number) or repr(nodes[number].of[0])

    last = function.outputs[0]
    for number in dict.fromkeys((*function.live, last)):
        kind, of = nodes[number]
        text = _text(kind, of, say) if number in function.live else say(number, 0)
        if number == last or uses[number] > 1 or len(text) > WIDEST:
            name = TIME if number == last else f"t{len(lines) + 1}"
            lines.append(FormulaLine(name, text, values[number]))
            said[number] = name, TIGHT
        else:
            said[number] = text, BINDS.get(kind, TIGHT)
    return tuple(lines)


def _text(kind: str, of: tuple[int, ...], say: Callable[[int, int], str]) -> str:
    if kind not in BINDS:
        inside = TIGHT if kind == "ceildiv" else 0
        return TEXT[kind].format(*(say(n, inside) for n in of))
    binds = BINDS[kind]
    # The right operand gets brackets even at equal precedence, because it is computed first.
    first = TIGHT if binds in (0, 4) else binds
    return TEXT[kind].format(say(of[0], first), *(say(n, max(first, binds + 1)) for n in of[1:]))


# Explanation of an op


def find_op(program: Program, name: str, rows: Iterable[str] = ()) -> Instance:
    """The op with this path, or the op whose path ends in this name; InputError if there is none or more than
    one.

    `rows` are the names of other rows that can be explained.
    """
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
    names = [*_short(ops), *rows]
    raise InputError(f"unknown op {show_value(name)}{suggest(wanted, names)} (list: {_some(names)})")


def _short(ops: list[Instance]) -> list[str]:
    return list(dict.fromkeys(i.path.rsplit(".", 1)[-1] for i in ops))


def _some(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def explain(report: Report, name: str, phase: str = "step") -> Explanation:
    """Explain the op `name` in the step of a report at one point; `phase` is the name of the step."""
    if report.shape:
        raise InputError(f"explain: expected a report of one point, got a grid of {report.shape}")
    if overhead := find_overhead(report, name):
        return _overhead(report, overhead, phase)
    at = find_op(report.program, name, (row.name for row in report.ops if row.kind == OVERHEAD))
    plan = report.plan
    priced = zip(plan.rows, plan.prices, plan.pads, report.work, strict=True)
    row, price, pads, cost = next(found for found in priced if found[0].name == at.path)
    hidden = float(plan.hidden(report.at)) * plan.model.device.hides_launches
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
        kernel=_kernel(price, plan.runs(report.at) if pads else report.at, hidden),
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
        terms=overhead_terms(report, row),
    )


def _sends(report: Report, row: Row) -> tuple[Amount, ...]:
    """The payload on the network: as `comm_bytes` counts it for a ring, and over each link on the fastest
    route.
    """
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


def _exchange(report: Report, row: Row) -> NetworkLimit | None:
    found = limits(report.plan.model.device, row)
    return next((limit for limit in found if isinstance(limit, NetworkLimit)), None)


def _routes(report: Report, row: Row) -> tuple[NetworkRoute, ...]:
    """The network algorithms that are fastest at some payload, from small to large payloads."""
    limit = _exchange(report, row)
    if limit is None:
        return ()
    best, payload = limit.fastest(report.at), report.at(limit.amount)

    def route(way: CollectiveRoute) -> NetworkRoute:
        legs = ((leg.span, report.at(leg.bytes(limit.amount))) for leg in way.legs)
        sends = tuple(LinkTraffic(span.name, size, span.link.Bps) for span, size in legs)
        return NetworkRoute(way.name, way.latency_s, sends, float(way.time(payload)), way is best)

    return tuple(map(route, limit.ways))


def _local(report: Report, at: Instance) -> tuple[Tensor, ...]:
    return tuple(t.local(report.program.mesh) for t in at.graph.operand_types(at.node))


def _equation(at: Instance) -> Any:
    return at.node.op.equation(at.graph.operand_types(at.node))


def _axes(report: Report, at: Instance) -> tuple[Axis, ...]:
    rule, operands = _equation(at), _local(report, at)
    # The number of rows of a rank may differ from its tokens times k, so the sizes of single axes are
    # printed.
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
    """The memory of each result, and the value that shares this memory, if any."""
    found = []
    for value, type in zip(at.node.values, at.node.results, strict=True):
        slot = at.node.op.aliases.get(value.result)
        where = "new" if slot is None else f"in the place of {at.node.operands[slot]}"
        found.append(_amount(report, str(value), where, type.local(report.program.mesh).bytes))
    return tuple(found)


def _op_time_at(price: OpTime, at: Binding, hidden: float) -> OpTime:
    """The op time that applies at a point: the time of the fastest kernel, or the lower bound that replaces
    it.
    """

    def time(one: OpTime) -> Number:
        return one.in_graph(at, hidden)[1]

    if isinstance(price, FusedAttentionPart) and time(price.own) == time(price):
        return _op_time_at(price.own, at, hidden)
    if not isinstance(price, FastestKernel) or isinstance(at, MixedBinding):
        return price
    fastest, floors = price.of(at, hidden), (one.contained for one in price.prices if one.contained)
    return next((one for one in (fastest, *floors) if time(one) == time(price)), fastest)


def _kernel(price: OpTime, at: Binding, hidden: float) -> KernelExplanation | None:
    """The terms of a calibrated op time; for attention, those of the fastest kernel."""
    price = _op_time_at(price, at, hidden)
    if not isinstance(price, KernelTime):
        return None
    fit, given = price.fit, price.call.at(at)
    constants = (
        Constant(p.name, getattr(fit.kernel, p.name), p.unit, p.meaning) for p in parameters(type(fit.kernel))
    )
    return KernelExplanation(
        family=fit.family,
        engine=fit.engine,
        device=fit.device.name,
        origin=fit.fitted.origin,
        rows=fit.fitted.rows,
        error=fit.fitted.error,
        strange=price.call.shape_error + price.call.kernel_error,
        given={name: value for name, value in vars(given).items() if value != math.inf},
        parameters=tuple(constants),
        lines=() if isinstance(price, MultiNodeTime) else _kernel_lines(price, given),
        alone_s=float(price.time(at)),
        launch_s=price.launch_s,
        hidden=hidden,
    )


def _kernel_lines(price: KernelTime, shape: Shape) -> tuple[FormulaLine, ...]:
    return arithmetic(price.fit.kernel, price.call.part, price.device, shape)


def _limits(report: Report, row: Row, cost: OpCost) -> tuple[TimeBound, ...]:
    found = limits(report.plan.model.device, row)
    times = [float(x.time(report.at)) for x in found]
    # If several limits are equal, use the one that the report names.
    first = max(range(len(found)), key=lambda i: (times[i], found[i].bound == cost.bound))
    return tuple(_bound(report, x, t, i == first) for i, (x, t) in enumerate(zip(found, times, strict=True)))


def _bound(report: Report, limit: Limit, time: float, decides: bool) -> TimeBound:
    what, amount, rate, constant, latency = limit.what, limit.amount, limit.rate, limit.constant, 0.0
    if isinstance(limit, NetworkLimit):
        way = limit.fastest(report.at)
        leg, latency = way.slowest, way.latency_s
        span = leg.span
        what, amount = f"{way.name}, bytes over {span.name}", leg.bytes(limit.amount)
        rate, constant = span.link.Bps, span.constant
    return TimeBound(
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
    """The source of a constant; a device made in Python may not have one."""
    device = report.plan.model.device
    return device.source(constant) if device.sources else "not stated"
