"""Compare two programs or devices, and find ops that replace others, are new, are gone, or change their cost.

Order of the file: the basis of the times of both sides (`ComparisonBases`), and cost models with one common
basis (`common_basis`). `matches` pairs each op of one program with the ops of the other program that do the
same work. `diff`, `StepDiff` and `WorkloadDiff` are the diff of steps and workloads, and `compare_steps` and
`compare_requests` include a closed loop.

Matching: the key of an op is its path, without numbers of unrolled layers, and its opcode. Ops that are in
both programs form pairs. The other ops are grouped by the weights and caches that they read, or by the
operand of a paired op that they feed. The rest is grouped by dataflow: neighbors of a group in one graph must
be neighbors in the other graph, too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.cost.models import CostModel, model, roofline_reason
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.transfer import calibration_source, first_engine, kernel_sources
from llmir.backends.request.closed_loop import (
    ENGINE_CPU_TERM,
    ClosedLoop,
    LoopSimulator,
    closed_loop_workload,
)
from llmir.backends.request.workload import Workload, cost_breakdown
from llmir.backends.step.evaluate import OVERHEAD, OpCost, step_evaluator
from llmir.backends.step.report import Report
from llmir.backends.work.rows import ROOFLINE, Basis
from llmir.base.arguments import integer, show_value
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import Figures
from llmir.hw.device import Device
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program

# Basis of the times of two sides


@dataclass(frozen=True)
class ComparisonSide(Figures):
    """One side of a comparison: its cost model, each basis of its ops' times with its share of the time, and
    the mean relative error.
    """

    model: DeviceCostModel
    shares: Mapping[Basis, float]
    error: float | None

    @property
    def kind(self) -> str:
        """calibrated, roofline or efficiency."""
        return "roofline" if self.model.name == "ideal" else self.model.name

    @property
    def engine(self) -> str | None:
        """The engine of the kernels, and of the CPU time if that differs."""
        if not isinstance(self.model, CalibratedModel):
            return None
        kernels, asked = self.model.kernels, self.model.engine
        return kernels if asked in (None, kernels) else f"{kernels}, CPU time of {asked}"

    @property
    def source(self) -> str:
        """The device on which most kernels were measured, and the error of these times."""
        device, whose = self.model.device, calibration_source(self.model.device)
        where = (
            f"transferred from {whose.name}" if whose and whose != device else f"measured on {device.name}"
        )
        return where + (f" ± {100 * self.error:.0f}%" if self.error is not None else "")

    @property
    def outside(self) -> float:
        """The share of time that comes from the roofline if other times are calibrated."""
        other = sum(share for basis, share in self.shares.items() if basis.kind != self.kind)
        return other / (sum(self.shares.values()) or 1.0)


@dataclass(frozen=True)
class ComparisonBases:
    """The basis of both sides of a comparison; `why` explains why it is the roofline if that was not
    requested.
    """

    before: ComparisonSide
    after: ComparisonSide
    why: str = ""

    def __str__(self) -> str:
        return "; ".join(self.words())

    def words(self) -> Sequence[str]:
        """The facts that both sides share and then the facts that differ, as short lines."""
        old, new = self.before, self.after
        if old.kind != "calibrated":
            reason = f": {self.why}" if self.why else ", a lower bound" if old.kind == "roofline" else ""
            return [f"{old.kind} on both sides{reason}"]
        same = f"calibrated, {old.engine} kernels on both sides"
        said = [
            same if old.engine == new.engine else f"calibrated, {_pair('kernels of', old.engine, new.engine)}"
        ]
        said += (
            [f"both {old.source}"]
            if old.source == new.source
            else [f"before {old.source}", f"after {new.source}"]
        )
        if old.outside or new.outside:
            shares = (f"{100 * side.outside:.0f}%" for side in (old, new))
            others = {b for s in (old, new) for b in s.shares if b.kind != "calibrated"}
            reasons = {b.why or ("without a kernel" if b.kind == "roofline" else b.kind) for b in others}
            said.append(_pair(f"by the roofline, {', '.join(sorted(reasons))}:", *shares))
        return said

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {"before": self.before, "after": self.after}
        return {
            "kind": self.before.kind,
            "engine": {name: side.engine for name, side in sides.items()},
            "why": self.why or None,
            **{name: {str(b): share for b, share in side.shares.items()} for name, side in sides.items()},
        }


def comparison_bases(before: Iterable[Report], after: Iterable[Report], why: str = "") -> ComparisonBases:
    """The bases of two sides; `InputError` if only one side has measured times."""
    found = ComparisonBases(_side(before), _side(after), why)
    if found.before.kind != found.after.kind:
        named = (f"{side.kind} for {side.model.device.name}" for side in (found.before, found.after))
        raise InputError(
            f"diff: the two sides have different kinds of times: {' and '.join(named)}; "
            "estimate both with one cost model (cost='ideal'), or give programs and devices"
        )
    return found


def _pair(what: str, old: str | None, new: str | None) -> str:
    return f"{what} {old} before, {new} after"


def _side(reports: Iterable[Report]) -> ComparisonSide:
    shares: dict[Basis, float] = {}
    models, known, off = [], 0.0, 0.0
    for report in reports:
        models.append(report.plan.model)
        for op in report.work:
            time = op.repeat * float(op.time_s)
            shares[op.basis] = shares.get(op.basis, 0.0) + time
        if report.error is not None:
            time = float(report.time_s)
            known, off = known + time, off + time * float(report.error)
    whole = sum(shares.values()) or 1.0
    largest = sorted(shares, key=lambda basis: -shares[basis])
    error = off / known if known else None
    return ComparisonSide(models[0], {basis: shares[basis] / whole for basis in largest}, error)


# Cost models with one common basis

Sides = Sequence[tuple[Program, Device]]


@dataclass(frozen=True)
class CommonBasis:
    """A cost model for each side, all with the same basis; `why` explains why it is the roofline if that was
    not requested.
    """

    models: tuple[DeviceCostModel, ...]
    why: str = ""


def common_basis(
    sides: Sides,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    engine_after: str | None = None,
) -> CommonBasis:
    """Choose the cost models of all sides; the last side may have another engine, `engine_after`.

    The default is calibrated kernels of one engine if all ops of all sides have them, and otherwise the
    roofline. HardwareError if kernels are requested and a device has no kernels.
    """
    models, why = side_models([device for _, device in sides], cost, engine, efficiency, engine_after)
    if why or cost is not None or engine or efficiency or engine_after:
        return CommonBasis(models, why)
    lacks = (_lack(program, model) for (program, _), model in zip(sides, models, strict=True))
    if why := next(filter(None, lacks), ""):
        return CommonBasis(tuple(model(device, "ideal") for _, device in sides), why)
    return CommonBasis(models)


def side_models(
    devices: Sequence[Device],
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    engine_after: str | None = None,
) -> tuple[tuple[DeviceCostModel, ...], str]:
    """The cost model of each side, and the reason for the roofline if no engine was measured on all
    devices.
    """
    if cost is not None or engine or efficiency or engine_after:
        names = [engine] * (len(devices) - 1) + [engine_after or engine]
        return tuple(model(d, cost, name, efficiency) for d, name in zip(devices, names, strict=True)), ""
    shared, why = _engine(devices)
    return tuple(model(d, "ideal") if why else model(d, "calibrated", shared) for d in devices), why


def _engine(devices: Sequence[Device]) -> tuple[str | None, str]:
    """The engine that all sides share (None means the default of each), and the reason if there is none."""
    firsts = [first_engine(device) for device in devices]
    if None in firsts:
        return None, roofline_reason(devices[firsts.index(None)])
    if len(set(firsts)) == 1:
        return None, ""
    if shared := [name for name in firsts if all(name in kernel_sources(device) for device in devices)]:
        return shared[0], ""
    on = ", ".join(f"{name} on {d.name}" for d, name in zip(devices, firsts, strict=True))
    return None, f"no engine was measured on all: {on}"


def _lack(program: Program, model: DeviceCostModel) -> str:
    """A description of an op that has no measured kernel; empty if all ops have one."""
    of = step_evaluator(program, model)
    missing = (row for row, price in zip(of.rows, of.prices, strict=True) if price.basis == ROOFLINE)
    row = next(missing, None)
    return f"no kernel for {row.node.op.opcode} was measured on {model.device.name}" if row else ""


# The matching of ops


class OpKey(NamedTuple):
    """The key of an op: its path without the numbers of unrolled layers, and its opcode."""

    path: str
    opcode: str


# The ops of one program, and the ops of the other.
Match = tuple[tuple[OpKey, ...], tuple[OpKey, ...]]


def op_key(path: str, opcode: str) -> OpKey:
    """The key of an op.

    >>> op_key("layer.31.q_proj", "linear")
    OpKey(path='layer.q_proj', opcode='linear')
    """
    return OpKey(re.sub(r"\.\d+(?=\.)", "", path), opcode)


@dataclass
class Dataflow:
    """The dataflow of a step: ops in schedule order, the ops that produce each of their operands, and the
    weights that they read.

    Collectives and quantization only move or convert values. So they are skipped: their users count as users
    of the op that produced the value.
    """

    feeds: dict[OpKey, list[set[OpKey]]] = field(default_factory=dict)
    held: dict[OpKey, set[str]] = field(default_factory=dict)
    users: dict[OpKey, set[OpKey]] = field(default_factory=dict)
    outputs: list[set[OpKey]] = field(default_factory=list)
    moves: set[OpKey] = field(default_factory=set)

    def add(self, op: OpKey, operands: Sequence[Iterable[OpKey | str]]) -> None:
        """An op or a copy of an op; a `str` names a weight or a cache."""
        slots = self.feeds.setdefault(op, [])
        slots += [set() for _ in operands[len(slots) :]]
        held = self.held.setdefault(op, set())
        for slot, given in zip(slots, operands, strict=False):
            for one in given:
                if isinstance(one, str):
                    held.add(one)
                else:
                    slot.add(one)
                    self.users.setdefault(one, set()).add(op)

    def fed_by(self, op: OpKey) -> set[OpKey]:
        """The ops that feed `op`."""
        return set().union(*self.feeds[op])


@lru_cache(maxsize=256)
def dataflow(program: Program) -> Dataflow:
    """The dataflow of a step, inside the bodies of `repeat` and between them."""
    found = Dataflow()

    def walk(name: str, path: str, given: Sequence[frozenset[OpKey | str]]) -> list[frozenset[OpKey | str]]:
        graph = program[name]
        made: dict[Value, frozenset[OpKey | str]] = {
            n.values[0]: g for n, g in zip(graph.inputs, given, strict=False)
        }
        for node in graph.nodes:
            op = op_key(path + node.name, node.op.opcode)
            operands = [made[v] for v in node.operands]
            results: Iterable[frozenset[OpKey | str]]
            if node.op.source:
                held = node.op.role != "activation"
                results = [made.get(node.values[0], frozenset([op.path] if held else []))]
            elif node.op.zero:
                results = [frozenset()]
            elif loop := node.op.loop:
                inside = f"{path}{node.name}."
                results = walk(loop.body, inside, operands)
                if loop.times > 1:
                    kept = operands[: loop.carried]
                    carried = [a | b for a, b in zip(kept, results, strict=False)]
                    results = walk(loop.body, inside, [*carried, *operands[loop.carried :]])
            elif node.op.moves:
                found.moves.add(op)
                found.add(op, [])
                results = [frozenset[OpKey | str]().union(*operands)] * len(node.values)
            else:
                found.add(op, operands)
                results = [frozenset([op])] * len(node.values)
            made.update(zip(node.values, results, strict=True))
        return [made[v] for v in graph.outputs]

    made: list[frozenset[OpKey | str]] = []
    for entry in program.entries:
        made = walk(entry, "", made)
    found.outputs += [{op for op in results if isinstance(op, OpKey)} for results in made]
    return found


def matches(a: Program, b: Program) -> list[Match]:
    """All ops of both programs, each once: pairs, groups that replace one another, and ops that only one
    program has.
    """
    return list(_Grouping(dataflow(a), dataflow(b)).matches())


class _Grouping:
    """Groups of the ops that only one program has; a group is identified by one of its members, a pair (side,
    op).
    """

    def __init__(self, a: Dataflow, b: Dataflow) -> None:
        self.sides = (a, b)
        self.pairs = a.feeds.keys() & b.feeds.keys()
        self.group: dict[tuple[int, OpKey], int] = {}
        self.members: list[tuple[set[OpKey], set[OpKey]]] = []
        for side, flow in enumerate(self.sides):
            for op in flow.feeds:
                if (side, op) not in self.group:
                    self.group[side, op] = len(self.members)
                    self.members.append((set(), set()))
                    for one in (0, 1) if op in self.pairs else (side,):
                        self.group[one, op] = len(self.members) - 1
                        self.members[-1][one].add(op)
        self.anchor()
        for side in (0, 1):
            self.absorb(side)
            self.place(side)

    def lone(self, side: int) -> list[OpKey]:
        """The ops of this side without an equal on the other side, where another op may replace them."""
        flow = self.sides[side]
        return [op for op in flow.feeds if op not in self.pairs and op not in flow.moves]

    def join(self, mine: int, other: int) -> None:
        """Merge two groups."""
        if mine == other:
            return
        for side in (0, 1):
            moved = self.members[other][side]
            self.members[mine][side].update(moved)
            self.group.update(dict.fromkeys(((side, op) for op in moved), mine))
            moved.clear()

    def anchor(self) -> None:
        """Merge ops that have equal paths or weights, or that feed the same operand of a pair."""
        signs: dict[str, tuple[int, OpKey]] = {}
        for side in (0, 1):
            for op in self.lone(side):
                for sign in (op.path, *sorted(self.sides[side].held[op])):
                    where, other = signs.setdefault(sign, (side, op))
                    if where != side:
                        self.join(self.group[where, other], self.group[side, op])
        alone = set(self.lone(0)), set(self.lone(1))
        waiting = [(self.sides[0].outputs, self.sides[1].outputs)]
        waiting += [
            self.slots(self.group[0, op]) for op in self.sides[0].feeds if self.pair(self.group[0, op])
        ]
        while waiting:
            for feeds in zip(*waiting.pop(0), strict=False):
                ours, theirs = (mine & slot for mine, slot in zip(alone, feeds, strict=True))
                if len(ours) == len(theirs) == 1:
                    kept, joined = self.group[0, ours.pop()], self.group[1, theirs.pop()]
                    self.join(kept, joined)
                    if kept != joined and self.pair(kept):
                        waiting.append(self.slots(kept))

    def pair(self, group: int) -> bool:
        """Whether a group has one op of the same kind of work on each side."""
        left, right = self.members[group]
        return len(left) == len(right) == 1 and {x.opcode for x in left} == {y.opcode for y in right}

    def slots(self, group: int) -> tuple[list[set[OpKey]], list[set[OpKey]]]:
        """The ops that feed the two ops of a pair."""
        [left], [right] = self.members[group]
        return self.sides[0].feeds[left], self.sides[1].feeds[right]

    def absorb(self, side: int) -> None:
        """Join each op without weights with the ops that use it, if these ops get its operand directly in the
        other graph.

        An example is the sum at the end of a layer: in the other graph, the norm of the next layer and the
        last norm compute it themselves.
        """
        flow = self.sides[side]
        for op in self.lone(side):
            if flow.held[op]:
                continue
            users = {self.group[side, user] for user in flow.users.get(op, ())}
            for fed in flow.fed_by(op):
                group = self.group[side, fed]
                inside = self.members[group][side]
                others = (flow.users.get(x, set()) for x in inside if x != fed)
                alone = flow.users[fed] == {op} and all(users <= inside for users in others)
                if alone and len(self.members[group][1 - side]) == 1:
                    for user in users.intersection(self.neighbours(group, 1 - side, up=False)):
                        if self.may_hold(user, 1 - side):
                            self.join(self.group[side, op], user)

    def place(self, side: int) -> None:
        """Add each unmatched op to a group that the other graph allows, beginning with the users."""
        flow = self.sides[side]
        for op in reversed(self.lone(side)):
            if self.members[self.group[side, op]][1 - side]:
                continue
            users = [self.group[side, u] for u in flow.users.get(op, ()) if u != op]
            sets = [{g, *self.neighbours(g, 1 - side, up=True)} for g in users]
            if not sets:
                continue  # no op needs this op, so no op can replace it
            placed = [self.group[side, p] for p in flow.fed_by(op)]
            sets += [
                {g, *self.neighbours(g, 1 - side, up=False)} for g in placed if self.members[g][1 - side]
            ]
            room = [g for g in set.intersection(*sets) if self.may_hold(g, 1 - side)]
            if room:
                self.join(min(room, key=lambda g: (g not in users, g)), self.group[side, op])

    def may_hold(self, group: int, side: int) -> bool:
        """Whether a group is not a pair and has ops of only one side."""
        return bool(self.members[group][side]) and not self.pair(group)

    def neighbours(self, group: int, side: int, *, up: bool) -> Iterator[int]:
        """The groups that precede or follow a group on one side."""
        flow = self.sides[side]
        for op in self.members[group][side]:
            for other in flow.fed_by(op) if up else flow.users.get(op, ()):
                yield self.group[side, other]

    def matches(self) -> Iterator[Match]:
        """The groups in the order of the second program, followed by the groups that only the first program
        has.
        """
        at = [{op: i for i, op in enumerate(flow.feeds)} for flow in self.sides]
        seen: set[int] = set()
        for side in (1, 0):
            for op in self.sides[side].feeds:
                group = self.group[side, op]
                if group not in seen:
                    seen.add(group)
                    left, right = self.members[group]
                    yield (
                        tuple(sorted(left, key=at[0].__getitem__)),
                        tuple(sorted(right, key=at[1].__getitem__)),
                    )


# Diff of steps and workloads

FIGURES = ("time_s", "flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes")
MEMORY = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")


class FigurePair(NamedTuple):
    """A figure before and after; None if it does not exist."""

    before: Any
    after: Any

    @property
    def delta(self) -> Any:
        """The change."""
        return None if self.before is None or self.after is None else self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"before": self.before, "after": self.after, "delta": self.delta}


class FigureRow(NamedTuple):
    """A figure of two servers: its name for users, its name in JSON, and its values."""

    label: str
    name: str
    pair: FigurePair


@dataclass(frozen=True)
class OpTotal(Figures):
    """An op with `repeat` executions in a step; values cover all of them."""

    name: str
    opcode: str
    kind: str
    block: str
    repeat: int
    time_s: Number
    flops: Number
    matmul_flops: Number
    read_bytes: Number
    write_bytes: Number
    comm_bytes: Number
    bound: str  # the error belongs to the longest execution, as the basis does
    basis: Basis

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"basis": str(self.basis)}


@dataclass(frozen=True)
class Change:
    """The ops `before`, and the ops `after` that do the same work; one of the two is empty if the change is
    new or gone.
    """

    before: tuple[OpTotal, ...]
    after: tuple[OpTotal, ...]

    @property
    def what(self) -> str:
        """new, gone, changed (the same op at another cost), fused (fewer ops), split (more ops) or
        replaced.
        """
        if not self.before or not self.after:
            return "gone" if self.before else "new"
        (old, *others), (new, *further) = self.before, self.after
        if not others and not further and (old.name, old.opcode) == (new.name, new.opcode):
            return "changed"
        fewer = len(self.after) - len(self.before)
        return "fused" if fewer < 0 else "split" if fewer else "replaced"

    def figure(self, name: str) -> FigurePair:
        """One of `FIGURES`, as the sum over the ops."""
        return FigurePair(*(sum(getattr(p, name) for p in parts) for parts in (self.before, self.after)))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every op, and the increase of each figure."""
        return {
            "what": self.what,
            "before": [p.to_dict() for p in self.before],
            "after": [p.to_dict() for p in self.after],
            "delta": {name: self.figure(name).delta for name in FIGURES},
        }


@dataclass(frozen=True)
class StepDiff(Result):
    """A comparison of two steps: the `changes` in the order of the second step, and the unchanged part.

    The differences of the changes add up to the difference of the steps, over all pipeline stages.
    """

    before: Report
    after: Report
    changes: tuple[Change, ...]
    same: tuple[OpTotal, ...]
    basis: ComparisonBases

    def total(self, name: str) -> FigurePair:
        """A value of the whole steps: any number of a `Report`; time is over all stages."""
        name = "all_stages_s" if name == "time_s" else name
        return FigurePair(getattr(self.before, name), getattr(self.after, name))

    def to_dict(self) -> dict[str, Any]:
        """Return this phase as JSON; an op of a repeated layer counts once per repetition."""
        return {
            **{name: self.total(name).to_dict() for name in (*FIGURES, *MEMORY)},
            "basis": self.basis.to_dict(),
            "changes": [c.to_dict() for c in self.changes],
            "same": [p.name for p in self.same],
        }


@dataclass(frozen=True)
class WorkloadDiff(Result):
    """A comparison of two workloads: their prefill steps, their last decode steps, and the latencies of
    users.
    """

    before: Workload
    after: Workload
    pipelines: tuple[str, str] | None = (
        None  # the passes that produced the two programs, if the user should know them
    )
    why: str = ""  # why the basis is the roofline, if that was not requested

    @cached_property
    def basis(self) -> ComparisonBases:
        """The basis of the times of both sides; InputError if they are not comparable."""
        before, after = ([r for r in (w.prefill, w.decode) if r] for w in (self.before, self.after))
        return comparison_bases(before, after, self.why)

    @cached_property
    def prefill(self) -> StepDiff:
        """The largest prefill steps; if the token budgets differ, both steps have the smaller size."""
        before, after = sides = self.before, self.after
        if len({(side.batch, side.length, side.cached) for side in sides}) > 1:
            return step_diff(before.prefill, after.prefill, self.why)
        least = min((side.prefill for side in sides), key=lambda step: step.batch * step.new)
        return step_diff(before.prefill_as(least), after.prefill_as(least), self.why)

    @cached_property
    def decode(self) -> StepDiff | None:
        """The last decode steps; None unless both sides have one."""
        before, after = self.before.decode, self.after.decode
        return step_diff(before, after, self.why) if before and after else None

    @property
    def phases(self) -> tuple[tuple[str, StepDiff], ...]:
        """The steps by name."""
        return ("prefill", self.prefill), *([("decode", self.decode)] if self.decode else [])

    def total(self, name: str) -> FigurePair:
        """A figure that a `Workload` has, such as `ttft_s`."""
        return FigurePair(getattr(self.before, name), getattr(self.after, name))

    @property
    def served(self) -> tuple[FigureRow, ...]:
        """The latencies in a closed loop; empty without one."""
        return ()

    @property
    def peak_memory_bytes(self) -> FigurePair:
        """The highest peak of any step."""
        return FigurePair(*(w.peak_bytes(w.batch) for w in (self.before, self.after)))

    @cached_property
    def spent(self) -> tuple[FigureRow, FigureRow]:
        """USD per million output tokens, and the largest joules per token; None for unknown values."""
        sides = [cost_breakdown(w).answers for w in (self.before, self.after)]
        cost, energy = (
            FigurePair(*each)
            for each in zip(*((s.usd_per_mtok, s.joules_per_token) for s in sides), strict=True)
        )
        return (
            FigureRow("$/Mtok output", "cost_usd_per_mtok", cost),
            FigureRow("J/tok, at most", "energy_j_per_token", energy),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `llmir diff`, `schema_version` 3."""
        sides: dict[str, dict[str, Any]] = {}
        for name, side in (("before", self.before), ("after", self.after)):
            sides[name] = {
                "model": side.program.name,
                "hardware": side.device.name,
                "devices": side.program.devices,
                "workload": {**side.asked, "chunk_by": side.budget_by},
                "fits": side.fits,
            }
        for name, passes in zip(sides, self.pipelines or (), strict=False):
            sides[name]["pipeline"] = passes
        names = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "max_batch")
        return {
            "schema_version": 3,
            **sides,
            "basis": self.basis.to_dict(),
            **{name: self.total(name).to_dict() for name in names},
            **{row.name: row.pair.to_dict() for row in self.spent},
            "peak_memory_bytes": self.peak_memory_bytes.to_dict(),
            "phases": {"prefill": self.prefill.to_dict(), "decode": self.decode and self.decode.to_dict()},
        }


def diff(before: object, after: object) -> StepDiff | WorkloadDiff:
    """Compare two reports or two workloads; InputError if their times have different bases."""
    if isinstance(before, Report) and isinstance(after, Report):
        return step_diff(before, after)
    if isinstance(before, Workload) and isinstance(after, Workload):
        comparison_bases([before.prefill], [after.prefill])
        return WorkloadDiff(before, after)
    given = f"{type(before).__name__} and {type(after).__name__}"
    raise InputError(f"diff: expected two programs and a device, two reports, or two workloads, got {given}")


def step_diff(before: Report, after: Report, why: str = "") -> StepDiff:
    """Compare two steps at a point; InputError on a grid, or if their times have different bases.

    `why` explains why both sides use the roofline, if that was not requested.
    """
    shape = before.shape or after.shape
    if shape:
        raise InputError(f"diff: expected reports of one point, got a grid {shape}")
    basis = comparison_bases([before], [after], why)
    old, new = _op_parts(before), _op_parts(after)
    changes: list[Change] = []
    same: list[OpTotal] = []
    for left, right in matches(before.program, after.program):
        one = tuple(old[k][1] for k in left), tuple(new[k][1] for k in right)
        if left == right and [old[k][0] for k in left] == [new[k][0] for k in right]:
            same += one[0]
        else:
            changes.append(Change(*one))
    overheads = _overheads(before), _overheads(after)
    for name in dict.fromkeys(chain(*overheads)):
        old_rows, new_rows = (of.get(name, ()) for of in overheads)
        change = Change(old_rows, new_rows)
        if old_rows and new_rows and math.isclose(*change.figure("time_s"), rel_tol=1e-12):
            same += old_rows
        else:
            changes.append(change)
    return StepDiff(before, after, tuple(changes), tuple(same), basis)


def _overheads(report: Report) -> dict[str, tuple[OpTotal, ...]]:
    """The rows of overhead by name; each kind is the sum over all stages."""
    found: dict[str, list[OpCost]] = {}
    for row in report.ops:
        if row.kind == OVERHEAD:
            found.setdefault(row.name.rpartition(".")[2], []).append(row)
    none: dict[str, Any] = dict.fromkeys(FIGURES, 0)
    return {
        name: (
            OpTotal(
                name,
                OVERHEAD,
                OVERHEAD,
                rows[0].block,
                sum(row.repeat for row in rows),
                bound=rows[0].bound,
                basis=rows[0].basis,
                **(none | {"time_s": sum(row.total_s for row in rows)}),
            ),
        )
        for name, rows in found.items()
    }


def fold_changes(changes: Iterable[Change]) -> list[tuple[tuple[str, ...], Change]]:
    """Merge equal changes of several bodies into one and list the bodies, so that alternating layers need one
    line.
    """
    found: dict[Any, dict[str, Change]] = {}
    for change in changes:
        parts = change.after or change.before
        inside = parts[0].name.rpartition(".")[0]
        alike = [[(p.name.rpartition(".")[2], p.opcode) for p in s] for s in (change.before, change.after)]
        found.setdefault((bool(inside), *map(tuple, alike)), {})[inside] = change
    return [(tuple(of), _sum_changes([*of.values()])) for of in found.values()]


def _sum_changes(changes: list[Change]) -> Change:
    """Add up changes that have the same number of ops on each side."""

    def added(parts: tuple[OpTotal, ...]) -> OpTotal:
        sums: dict[str, Any] = {f: sum(getattr(p, f) for p in parts) for f in ("repeat", *FIGURES)}
        return replace(parts[0], **sums)

    sides = [c.before for c in changes], [c.after for c in changes]
    return Change(*(tuple(map(added, zip(*side, strict=True))) for side in sides))


def _op_parts(report: Report) -> dict[OpKey, tuple[Counter[tuple[Number, ...]], OpTotal]]:
    """For each op, the number of calls with each exact set of values, and the total."""
    copies: dict[OpKey, list[Any]] = {}
    for op, row in zip(report.work, report.plan.rows, strict=True):
        prefix = report.program.prefix(report.program.entries[op.stage])
        copies.setdefault(op_key(op.name.removeprefix(prefix), row.node.op.opcode), []).append(op)
    found = {}
    for at, ops in copies.items():
        runs: Counter[tuple[Number, ...]] = Counter()
        for op in ops:
            runs[tuple(getattr(op, f) for f in FIGURES)] += op.repeat
        longest = max(ops, key=lambda op: float(op.time_s))
        times, first = sum(runs.values()), ops[0]
        part = OpTotal(
            *at, first.kind, first.block, times, bound=longest.bound, basis=longest.basis, **_sums(runs)
        )
        found[at] = runs, part
    return found


def _sums(runs: Counter[tuple[Number, ...]]) -> dict[str, Any]:
    return {f: sum(n * figures[i] for figures, n in runs.items()) for i, f in enumerate(FIGURES)}


# Diff with a closed loop

_LOOP = (
    ("loop: TTFT", "ttft_s"),
    ("loop: TPOT", "tpot_s"),
    ("loop: tokens/s", "output_tokens_per_s"),
    ("loop: in flight", "in_flight"),
)
_TERMS = {"step_s": "  decode step", "host_s": "  host", "prompts_s": "  others' prompts"}


@dataclass(frozen=True)
class ClosedLoopDiff(WorkloadDiff):
    """Two workloads, with equal numbers of users in closed loops."""

    @property
    def loops(self) -> tuple[ClosedLoop, ClosedLoop]:
        """The loops of both sides."""
        sides: tuple[Any, Any] = self.before, self.after
        return sides[0].loop, sides[1].loop

    @property
    def served(self) -> tuple[FigureRow, ...]:
        """The latencies of users, and the terms of TPOT, whose changes add up to its change."""
        found = [
            FigureRow(what, name, FigurePair(*(getattr(loop, name) for loop in self.loops)))
            for what, name in _LOOP
        ]
        sides = [_loop_terms(loop) for loop in self.loops]
        parts = [name for name in _TERMS if any(name in side for side in sides)]
        terms = [
            FigureRow(_TERMS[n], f"terms.{n}", FigurePair(*(side.get(n, 0.0) for side in sides)))
            for n in parts
        ]
        return (*found[:2], *terms, *found[2:])

    def to_dict(self) -> dict[str, Any]:
        """With `serving`: figures of the loops, and their terms."""
        rows = {row.name: row.pair.to_dict() for row in self.served}
        terms = {name.removeprefix("terms."): pair for name, pair in rows.items() if "." in name}
        figures = {name: pair for name, pair in rows.items() if "." not in name}
        users = self.before.batch
        return super().to_dict() | {"serving": {"concurrency": users, **figures, "terms": terms}}


def _loop_terms(loop: ClosedLoop) -> Mapping[str, float]:
    """The terms of a loop, under names that do not depend on the engine: the decode step is first, prefill is
    last.
    """
    if not loop.terms:
        return {}
    step, *rest = loop.terms
    found = {"step_s": step.time_s}
    return found | {"host_s" if term.what == ENGINE_CPU_TERM else "prompts_s": term.time_s for term in rest}


def compare_steps(
    programs: list[Program], basis: CommonBasis, step: Mapping[str, Any], **idle: Any
) -> StepDiff:
    """Compare two programs in a step; InputError if one of the `idle` arguments is set."""
    for name, value in idle.items():
        if value is not None:
            raise InputError(f"{name}: {show_value(value)} applies only to requests; add prompt or generate")
    at: dict[str, Any] = {name: integer(name, value, name != "context") for name, value in step.items()}
    sides = zip(programs, basis.models, strict=True)
    reports = [Report(p, m.device, **at, model=m) for p, m in sides]
    return step_diff(reports[0], reports[1], basis.why)


def compare_requests(
    programs: list[Program],
    basis: CommonBasis,
    tokens: list[tuple[Any, Any]],
    loop: tuple[int, LoopSimulator, str] | None,
    **asked: Any,
) -> WorkloadDiff:
    """Compare two programs over requests of given lengths, or over users in a closed loop.

    `loop` contains the number of users, the simulator, and the distribution of outputs.
    """
    sides = zip(programs, basis.models, tokens, strict=True)
    asked = {name: value for name, value in asked.items() if value is not None}
    jobs = [Workload(p, m.device, prompt=t[0], generate=t[1], model=m, **asked) for p, m, t in sides]
    if loop is None:
        return WorkloadDiff(jobs[0], jobs[1], why=basis.why)
    users, simulate, lengths = loop
    served = [closed_loop_workload(job, users, None, simulate, lengths) for job in jobs]
    return ClosedLoopDiff(served[0], served[1], why=basis.why)
