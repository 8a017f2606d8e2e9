"""The tensors that a program expects in a checkpoint, and how they differ from those of one.

Checkpoints store the weight of a linear as [out, in], with heads and other axes run together. Which axes
those are follows from the equation of the op that uses the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from llmir.dim import Binding
from llmir.graph import Graph, Instance, Program
from llmir.ops.linear import Linear
from llmir.ops.source import Weight

from .checkpoint import Checkpoint, Stored

# Tables that old checkpoints carry along and that are computed, not learned.
IGNORED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Difference:
    """One tensor that is not as it should be."""

    name: str
    expected: str
    found: str


@dataclass
class Comparison:
    """A checkpoint against a program; `agrees` if nothing differs. Totals are None where none are stated."""

    tensors: int
    parameters: int
    bytes: int
    found_tensors: int
    shapes_known: bool
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong_shape: list[Difference] = field(default_factory=list)
    wrong_dtype: list[Difference] = field(default_factory=list)
    wrong_total: list[Difference] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether all names, and all that is known of shapes, dtypes and totals, are the same."""
        return not (self.missing or self.unexpected or self.wrong_shape or self.wrong_dtype or self.wrong_total)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"agrees": self.agrees, **asdict(self)}


def expected(program: Program) -> dict[str, Stored]:
    """Each tensor of the program's checkpoint, by name; `program` is unfused."""
    return {name: tensor for at in program.instances() for name, tensor in _stored(at)}


def _stored(at: Instance) -> Iterator[tuple[str, Stored]]:
    op = at.node.op
    if not isinstance(op, Weight) or not op.param:
        return
    type = at.node.results[0]
    apart = "expert" if "{expert}" in op.param else None  # one tensor for each
    sizes = {axis: Binding()(n) for axis, n in zip(_letters(at.graph, at), type.shape, strict=True)}
    experts = [x for x, axis in zip(sizes, op.axes, strict=False) if axis == apart]
    shape = _shape(at.graph, at, {x: n for x, n in sizes.items() if x not in experts})
    stored = Stored(shape, type.dtype.name, Binding()(type.dtype.bytes_of(math.prod(shape))))
    for layer in range(at.first, at.first + at.repeat) if "{layer}" in op.param else [at.first]:
        for expert in range(sizes[experts[0]]) if experts else [0]:
            yield op.param.replace("{layer}", str(layer)).replace("{expert}", str(expert)), stored


def _use(graph: Graph, at: Instance) -> tuple[Any, tuple[Any, ...]] | None:
    """The equation of an op that uses the weight and the weight's term in it; a product's if there is one."""
    found = []
    for _, user, slot in graph.nx.out_edges(at.node.name, keys=True):
        node = graph[user]
        if node.op.opcode != "repeat":
            rule = node.op.equation(graph.operand_types(node))
            found.append((not hasattr(node.op, "einsum"), rule, rule.operands[slot]))
    return min(found, key=lambda f: f[0])[1:] if found else None


def _letters(graph: Graph, at: Instance) -> tuple[str, ...]:
    use = _use(graph, at)
    rank = len(at.node.results[0].shape)
    return tuple(d.axes[0] for d in use[1]) if use else tuple(f"i{n}" for n in range(rank))


def _shape(graph: Graph, at: Instance, sizes: dict[str, int]) -> tuple[int, ...]:
    """(added, contracted) of a product's weight, one dimension for its bias, and as it is elsewhere."""
    use = _use(graph, at)
    contracted = [n for x, n in sizes.items() if use and use[0].role(x) == "contracted"]
    added = [n for x, n in sizes.items() if use and use[0].role(x) == "mapped"]
    if contracted:
        return (math.prod(added), math.prod(contracted))
    return (math.prod(added),) if _is_bias(graph, at) else tuple(sizes.values())


def _is_bias(graph: Graph, at: Instance) -> bool:
    users = [graph[user].op for _, user in graph.nx.out_edges(at.node.name)]
    return any(isinstance(op, Linear) for op in users)


def _tied(program: Program, names: dict[str, Stored]) -> dict[str, Stored]:
    """Copies of a shared weight that a checkpoint may hold under the name of its second user."""
    found = {}
    for at in program.instances():
        if isinstance(at.node.op, Weight) and at.node.op.param in names:
            users = [user for _, user in at.graph.nx.out_edges(at.node.name)]
            if len(users) > 1:
                found |= {f"{user}.weight": names[at.node.op.param] for user in users}
    return {name: tensor for name, tensor in found.items() if name not in names}


def compare(program: Program, checkpoint: Checkpoint) -> Comparison:
    """How the tensors of a checkpoint differ from those that `program` (unfused) expects."""
    wanted = expected(program)
    optional = _tied(program, wanted)
    found = {name: t for name, t in checkpoint.tensors.items() if not name.endswith(IGNORED)}
    extra = sum(optional[name].bytes for name in optional if name in found)
    result = Comparison(
        len(wanted),
        sum(math.prod(t.shape) for t in wanted.values()),
        sum(t.bytes for t in wanted.values()),
        len(found),
        any(t is not None for t in found.values()),
    )
    result.missing = [name for name in wanted if name not in found]
    result.unexpected = [name for name in found if name not in wanted and name not in optional]
    for name, ours in (wanted | optional).items():
        theirs = found.get(name)
        if theirs and theirs.shape != ours.shape:
            result.wrong_shape.append(Difference(name, str(list(ours.shape)), str(list(theirs.shape))))
        if theirs and theirs.dtype != ours.dtype:
            result.wrong_dtype.append(Difference(name, ours.dtype, theirs.dtype))
    copies = sum(math.prod(optional[name].shape) for name in optional if name in found)
    totals = (
        ("bytes", checkpoint.total_bytes, result.bytes, extra),
        ("parameters", checkpoint.total_parameters, result.parameters, copies),
    )
    for what, stated, ours_, copied in totals:
        # A tied copy may be counted or not.
        if stated is not None and stated not in (ours_, ours_ + copied):
            result.wrong_total.append(Difference(what, str(ours_), str(stated)))
    return result
