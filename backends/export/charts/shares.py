"""Where parameters, FLOPs, bytes and time are: shares by block of the model, or by kind of op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from llmir.backends.step.costs import BUBBLE, OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

BY = ("block", "kind")
Shares = Mapping[str, float]  # by row; they add up to 1


class Column(NamedTuple):
    """Shares of one figure by phase, a row each, and what they are shares of."""

    total: Mapping[str, float]
    shares: Mapping[str, Shares]


class Time(NamedTuple):
    """Seconds by row and bound, of which each is a share of `whole_s`; `hidden_s` are launches of a graph."""

    whole_s: float
    hidden_s: float
    shares: Mapping[str, Shares]  # by row, then by bound

    @property
    def rows(self) -> Shares:
        """Of each row, all bounds together."""
        return {row: sum(of.values()) for row, of in self.shares.items()}


def row_of(cost: OpCost, by: str) -> str:
    """The row that a line of a report belongs to; what is no op has one of its own."""
    if cost.kind == OVERHEAD:
        return "bubble" if cost.bound == BUBBLE else "overhead of the engine"
    return cost.block if by == "block" else cost.kind


def parameters(program: Program, by: str) -> Mapping[str, int]:
    """Parameters by block, or by the kind of op that reads them first."""
    if by == "block":
        return program.parameters_by_kind
    found: Counter[str] = Counter()
    for at in program.weights():
        if count := Binding()(at.node.op.parameters):
            found[_kind(at)] += count * at.repeat
    return found


def _kind(at: Instance) -> str:
    """The kind of the first op that reads a weight, through ops that take no time."""
    seen = {at.node.name}
    for node in at.graph.nodes:
        if any(operand.node in seen for operand in node.operands):
            if node.op.runs:
                return node.op.kind
            seen.add(node.name)
    return "unread"


def work(step: Report, by: str, amount: Callable[[OpCost], float]) -> dict[str, float]:
    """The sum of an amount over all ops, by row."""
    found: dict[str, float] = {}
    for op in step.work:
        if value := op.repeat * amount(op):
            row = row_of(op, by)
            found[row] = found.get(row, 0.0) + value
    return found


def column(of: Mapping[str, Mapping[str, float]]) -> Column:
    """Shares of amounts by phase and row."""
    total = {phase: float(sum(rows.values())) for phase, rows in of.items()}
    known = {phase: rows for phase, rows in of.items() if total[phase]}
    shares = {
        phase: {row: float(n) / total[phase] for row, n in rows.items()} for phase, rows in known.items()
    }
    return Column(total, shares)


def times(step: Report, by: str) -> Time:
    """Where the time of a step is: of all that adds seconds, before launches are hidden."""
    found: dict[str, dict[str, float]] = {}
    hidden = 0.0
    for op in step.ops:
        seconds = float(op.total_s)
        if seconds > 0:
            bounds = found.setdefault(row_of(op, by), {})
            bounds[str(op.bound)] = bounds.get(str(op.bound), 0.0) + seconds
        hidden -= min(seconds, 0.0)
    whole = sum(sum(bounds.values()) for bounds in found.values())
    shares = {row: {b: s / whole for b, s in bounds.items()} for row, bounds in found.items()}
    return Time(whole, hidden, shares)
