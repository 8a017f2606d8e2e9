"""Programs made small: the same ops on short axes, so that numpy can run a model of any size.

Every length above `KEPT` that any of the programs has becomes another, the same in all and in the same
order: even, a multiple of the ranks that any axis is split over, distinct where lengths were. Layers stay.
Windows are as short as to leave some of the few tokens out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from itertools import count
from math import lcm
from typing import Any

from llmir.base.errors import InputError, VerifyError
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.masks import mask
from llmir.ir.core.op import Op, infer
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.atoms import Min
from llmir.ir.sizes.polynomial import Dim, Size, T
from llmir.ir.sizes.routing_laws import law
from llmir.ir.tools.bodies import inner_first
from llmir.ir.tools.verify import verify

KEPT = 8  # lengths up to here stay: experts of a token, heads of a group
WINDOW = 3  # keys that a query sees in a window, at most
FIXED = {"stream_weight", "tap"}  # axes whose lengths follow from others
ROTATED = 4  # elements of a head that are rotated, where not all are, at most


def small(programs: Sequence[Program]) -> list[Program]:
    """The programs on short axes; InputError for one that has rules of its own about lengths."""
    every = [phase for program in programs for phase in (program, *program.phases.values())]
    fixed = {n for program in every for n in _lengths(program, FIXED)}
    lengths = sorted({n for program in every for n in _lengths(program) if n > KEPT} - fixed)
    step = lcm(2, *(ways for program in every for ways in _ways(program)))
    short = dict(zip(lengths, (step * i for i in count(KEPT // step + 1)), strict=False))
    return [_shortened(program, {n: min(n, m) for n, m in short.items()}) for program in programs]


def _lengths(program: Program, axes: Collection[str] = ()) -> Iterator[int]:
    """Those of sources, or of such axes of theirs."""
    for graph in program.graphs.values():
        for node in graph.nodes:
            if node.op.source:
                op: Any = node.op
                for type in (op.type, op.own):
                    named = zip(op.axes or type.shape, type.shape, strict=True)
                    yield from (n for axis, n in named if isinstance(n, int) and (axis in axes or not axes))


def _ways(program: Program) -> Iterator[int]:
    """Over how many ranks dimensions are split."""
    for graph in program.graphs.values():
        for node in graph.nodes:
            for type in node.results:
                yield from (program.mesh.size(placement) for placement in (*type.placements, type.tokens))


def _shortened(program: Program, short: dict[int, int]) -> Program:
    try:
        phases = {name: _shortened(phase, short) for name, phase in program.phases.items()}
        graphs = inner_first(program, lambda graph: _graph(graph, short))
        return verify(program.replace(graphs=graphs, phases=phases))
    except VerifyError as error:
        raise InputError(f"{program.name} cannot be made small enough to run: {error}") from None


def _graph(graph: Graph, short: dict[int, int]) -> Graph:
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        op = _op(node.op, short)
        operands = tuple(nodes[v.node].results[v.result] for v in node.operands)
        nodes[node.name] = Node(node.name, op, node.operands, infer(op, operands))
    return Graph(graph.name, nodes.values(), graph.outputs)


def _op(op: Op, short: dict[int, int]) -> Op:
    """Sources with their types, and ops that say of how many experts tokens choose."""
    changes: dict[str, Any] = {}
    weight: Any = op
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Tensor):
            for i, n in enumerate(value.shape):
                value = value.resized(i, short.get(n, n) if isinstance(n, int) else _ring(n))
            changes[field.name] = value
        elif field.name == "mask":
            changes[field.name] = str(mask(value).short(WINDOW))
        elif field.name == "size":  # what is rotated of a head
            changes[field.name] = min(value, ROTATED)
        elif field.name in ("groups", "kept", "best") and op.kind == "moe":
            changes[field.name] = 1
        elif field.name == "routing":
            changes[field.name] = str(law(value).short(short))
        elif field.name in ("experts", "elements", "places"):
            changes[field.name] = short.get(value, value)
        elif field.name == "spare" and value:
            pairs = zip(weight.type.shape, weight.own.shape, strict=True)
            changes["spare"] = sum(short.get(n, n) - short.get(m, m) for n, m in pairs if n != m)
    return replace(op, **changes) if changes else op


def _ring(size: Size) -> Size:
    """The size of a cache that keeps a window, maybe with new tokens, of one that keeps a shorter one."""
    match size:
        case Dim(terms=(((Min(a=tokens, b=int(most)),), 1),)) if tokens != T:
            return Min.of(tokens, min(most, WINDOW - 1))
        case Dim(terms=(first, ((Min(a=tokens, b=int(most)),), 1))) if tokens != T:
            return Min.of(tokens, min(most, WINDOW - 1)) + Dim((first,))
    return size
