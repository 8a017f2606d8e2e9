"""What a page says of an op beside its numbers: its equation, its cost in symbols, its kernels' origin."""

from __future__ import annotations

from typing import Any

from llmir.backends.cost.ideal import limits
from llmir.backends.cost.op_time import Price
from llmir.backends.request.portable import Phase
from llmir.backends.work.network import Exchange
from llmir.backends.work.rows import Row
from llmir.hw.device import Device
from llmir.ir.core.program import Instance


def described(phase: Phase) -> list[dict[str, Any]]:
    """A description of each row, in order."""
    plan = phase.plan
    nodes = {at.path: at for at in plan.program.instances() if at.node.op.runs}
    return [
        _op(row, nodes[row.name], price, plan.program.mesh) | {"limits": _limits(plan.model.device, row)}
        for row, price in zip(plan.rows, plan.prices, strict=True)
    ]


def _op(row: Row, at: Instance, price: Price, mesh: Any) -> dict[str, Any]:
    types = at.graph.operand_types(at.node)
    rule = at.node.op.equation(types)
    operands = tuple(t.local(mesh) for t in types)
    sizes = dict(at.node.op.new_axes(operands))
    for term, operand in zip(rule.operands, operands, strict=True):
        sizes |= {d.axes[0]: n for d, n in zip(term, operand.shape, strict=True) if len(d.axes) == 1}
    names = rule.axes([*rule.operands, *rule.results])
    roles: dict[str, Any] = {}
    for role, size in row.reads:
        roles[f"read, {role}"] = roles.get(f"read, {role}", 0) + size
    for role, size in row.writes:
        roles[f"written, {role}"] = roles.get(f"written, {role}", 0) + size
    held = [price.held(i) for i in range(len(getattr(price, "prices", (price,))))]
    return {
        "op": at.node.op.opcode,
        "equation": str(rule),
        "axes": [[name, str(sizes.get(name, "?"))] for name in names],
        "unit": row.work.dtype.name,
        "matrix": str(row.work.matrix),
        "vector": str(row.work.vector),
        "moved": {role: str(size) for role, size in roles.items()},
        "kernels": [_origin(one) for one in held],
    }


def _limits(device: Device, row: Row) -> list[dict[str, Any]]:
    """The rates that bound it, each with its source; those of links are not told, as the way decides them."""
    return [
        {
            "bound": limit.bound,
            "what": limit.what,
            "rate": limit.rate,
            "key": limit.constant,
            "source": device.source(limit.constant) if device.sources else "not stated",
        }
        for limit in limits(device, row)
        if not isinstance(limit, Exchange)
    ]


def _origin(price: Price) -> str:
    """What a kernel was fitted to; nothing of the roofline."""
    fit = getattr(getattr(price, "own", price), "fit", None)
    if fit is None:
        return ""
    calls = f"{fit.fitted.rows:,} calls" if fit.fitted.rows else "calls"
    engine = f", {fit.engine}" if fit.engine else ""
    return f"{fit.family}: fitted to {calls} on {fit.device.name}{engine}"
