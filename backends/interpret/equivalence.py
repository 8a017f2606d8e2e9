"""Equivalence of two programs: run both in NumPy on short axes, from equal weights.

`shorten` makes programs small: every length above `MAX_KEPT_LENGTH` is replaced by a shorter one. Short
lengths are the same in all programs and in the same order. They are even, multiples of the ranks that split
any axis, and distinct if the original lengths are. All layers stay, and windows become shorter than the few
tokens of a run. `equivalent` compares a prefill and one more token.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from math import lcm
from typing import Any

import numpy as np

from llmir.base.arguments import integer, number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, VerifyError
from llmir.base.formats import Pairs
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.masks import mask
from llmir.ir.core.op import Array, Op, infer
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Min, Size, T
from llmir.ir.sizes.routing_laws import law
from llmir.ir.tools.loops import inner_first
from llmir.ir.tools.verify import verify

from .program import Spread, caller_inputs, interpret

# Programs on short axes

MAX_KEPT_LENGTH = 8  # lengths up to this one are not shortened: experts per token, heads of a group
WINDOW = 3  # keys that a query sees in a window, at most
FIXED = {"stream_weight", "tap"}  # axes with lengths that are derived from others
ROTATED = 4  # most rotated elements of a head, if not all are rotated


def shorten(programs: Sequence[Program]) -> list[Program]:
    """The programs with short axes; InputError for a program with its own rules about lengths."""
    every = [phase for program in programs for phase in (program, *program.phases.values())]
    fixed = {n for program in every for n in _lengths(program, FIXED)}
    lengths = sorted({n for program in every for n in _lengths(program) if n > MAX_KEPT_LENGTH} - fixed)
    step = lcm(2, *(ways for program in every for ways in _ways(program)))
    short = dict(zip(lengths, (step * i for i in count(MAX_KEPT_LENGTH // step + 1)), strict=False))
    return [_shortened(program, {n: min(n, m) for n, m in short.items()}) for program in programs]


def _lengths(program: Program, axes: Collection[str] = ()) -> Iterator[int]:
    """The lengths of sources, or of some of their axes."""
    for graph in program.graphs.values():
        for node in graph.nodes:
            if node.op.source:
                op: Any = node.op
                for type in (op.type, op.own):
                    named = zip(op.axes or type.shape, type.shape, strict=True)
                    yield from (n for axis, n in named if isinstance(n, int) and (axis in axes or not axes))


def _ways(program: Program) -> Iterator[int]:
    """The numbers of ranks over which dimensions are split."""
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
        raise InputError(f"{program.name} has no form small enough for NumPy: {error}") from None


def _graph(graph: Graph, short: dict[int, int]) -> Graph:
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        op = _op(node.op, short)
        operands = tuple(nodes[v.node].results[v.result] for v in node.operands)
        nodes[node.name] = Node(node.name, op, node.operands, infer(op, operands))
    return Graph(graph.name, nodes.values(), graph.outputs)


def _op(op: Op, short: dict[int, int]) -> Op:
    """Sources with short types, and ops with a smaller number of experts."""
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
        elif field.name == "size":  # the rotated elements of a head
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
    """The size of a cache for a shorter window, with new tokens included if requested."""
    match size:
        case Dim(terms=(((Min(a=tokens, b=int(most)),), 1),)) if tokens != T:
            return Min.of(tokens, min(most, WINDOW - 1))
        case Dim(terms=(first, ((Min(a=tokens, b=int(most)),), 1))) if tokens != T:
            return Min.of(tokens, min(most, WINDOW - 1)) + Dim((first,))
    return size


# Comparison

TOLERANCE = 1e-9  # for float64, after the few hundred consecutive sums of a model
_MOST = 1000  # number of sequences or tokens beyond which numpy takes minutes


@dataclass(frozen=True)
class Equivalence(Pairs):
    """The verdict; it is true in a condition if the outputs are `equal`. `difference` is the largest
    difference of an output, divided by its largest value.

    `first` is the name of the first op, input or output that differs, in the order of the second program.
    """

    before: str
    after: str
    batch: int
    new: int
    tolerance: float
    difference: float
    first: str = ""

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not self.first

    def __bool__(self) -> bool:
        return self.equal

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values; the difference is null if outputs are not comparable."""
        known = self.difference if np.isfinite(self.difference) else None
        return {"equal": self.equal, **vars(self), "difference": known, "first": self.first or None}

    def pairs(self) -> list[tuple[str, str]]:
        """The computation, and the verdict."""
        steps = f"batch {self.batch}, {self.new} new tokens and then 1, on short axes"
        verdict = "equal" if self.equal else f"DIFFERENT, first {self.first}"
        return [
            ("before", self.before),
            ("after", self.after),
            ("steps", steps),
            ("difference", f"{self.difference:.1e} of the largest output; {self.tolerance:.0e} is allowed"),
            ("verdict", verdict),
        ]


def equivalent(
    before: Program, after: Program, *, batch: int = 2, new: int = 5, tolerance: float = TOLERANCE
) -> Equivalence:
    """Whether `after` computes the values of `before`: a prefill, and one token from its caches.

    Both are shortened first, with all layers. Weights are random, and equal for equal names in the checkpoint
    (or paths, for weights without one). InputError for sizes that NumPy cannot compute.

    >>> import llmir
    >>> model = llmir.load("llama3.2-1b")
    >>> bool(equivalent(model, llmir.run(model, "fuse-attention,fuse,shard{tp=2}")))
    True
    >>> found = equivalent(model, llmir.run(model, "quantize{weights=fp8}"))
    >>> found.equal, found.first
    (False, 'op layer.0.q_proj.weight')
    """
    batch, new = integer("batch", batch, 1, _MOST), integer("new", new, 1, _MOST)
    tolerance = number("tolerance", tolerance, 0, 1)
    sides = shorten([before, after])
    about = before.name, after.name, batch, new, tolerance
    if unlike := _unlike(*sides):
        return Equivalence(*about, np.inf, unlike)
    caches: tuple[dict[str, Spread], ...] = ({}, {})
    largest = 0.0
    for context, tokens in ((0, new), (new, 1)):
        inputs = _inputs(sides[0], batch, tokens)
        seen: dict[str, Array] = {}
        out, kept = interpret(sides[0], inputs, random_weight, caches[0], context=context, seen=seen)
        other: dict[str, Array] = {}
        others, theirs = interpret(sides[1], inputs, random_weight, caches[1], context=context, seen=other)
        caches = kept, theirs
        apart = [difference(a, b) for a, b in zip(out, others, strict=True)]
        largest = max([largest, *apart])
        if largest > tolerance:
            output = next(i for i, d in enumerate(apart) if d > tolerance)
            ops = (p for p in other if p in seen and difference(seen[p], other[p]) > tolerance)
            first = next((f"op {path}" for path in ops), f"output {output}")
            return Equivalence(*about, largest, first)
        if not kept:
            break
    return Equivalence(*about, largest)


def random_weight(name: str, type: Tensor) -> Array:
    """A weight: numbers that depend on the name only, so that each form of a program gets equal weights."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    shape = tuple(map(Binding(), type.shape))
    found: Array = rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) if shape else rng.normal(size=())
    return found


def difference(a: Array, b: Array) -> float:
    """The largest difference, divided by the largest finite magnitude of `a`; infinite if the shapes
    differ.
    """
    if a.shape != b.shape:
        return np.inf
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b)).max()  # −∞ of a mask is itself
    finite = np.abs(a[np.isfinite(a)])
    return float(apart / (finite.max() if finite.size and finite.max() else 1.0))


def _unlike(before: Program, after: Program) -> str:
    """The first input or output that is not comparable."""
    ours, theirs = ({n.name: n.results[0].shape for n in caller_inputs(p)} for p in (before, after))
    for name in (*theirs, *ours):
        if ours.get(name) != theirs.get(name):
            return f"input {name}"
    given = [[t.shape for t in _outputs(p)] for p in (before, after)]
    if given[0] != given[1]:
        return "outputs, by their shapes"
    return ""


def _outputs(program: Program) -> list[Tensor]:
    last = program[program.entries[-1]]
    return [last.type(v) for v in last.outputs]


def _inputs(program: Program, batch: int, new: int) -> Mapping[str, Array]:
    """Random inputs of a step: token ids, or numbers."""
    at = Binding(B=batch, T=new, C=0)
    found: dict[str, Array] = {}
    for node in caller_inputs(program):
        rng = np.random.default_rng(zlib.crc32(node.name.encode()) + new)
        shape = tuple(map(at, node.results[0].shape))
        ids = node.results[0].dtype.name.startswith("int")
        found[node.name] = rng.integers(0, _rows(program, node), shape) if ids else rng.normal(size=shape)
    return found


def _rows(program: Program, node: Node) -> int:
    """The number of rows of the table that the ids index; 2 if there is no table, because most tables have at
    least 2 rows.
    """
    lengths = [2]
    for entry in program.entries:
        graph = program[entry]
        for user, _ in graph.users.get(node.name, ()):
            types = graph.operand_types(user)
            rule = user.op.equation(types)
            sizes = rule.sizes(types)
            lengths += [Binding()(sizes[axis]) for axis in rule.indexed]
    return lengths[-1]
