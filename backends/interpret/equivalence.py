"""Whether two programs mean the same: both computed in numpy, on short axes, from the same weights."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from llmir.base.arguments import integer, number
from llmir.base.dataclass import dataclass
from llmir.base.formats import Pairs
from llmir.ir.core.graph import Node
from llmir.ir.core.op import Array
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding

from .program import asked, interpret
from .ranks import Spread
from .small import small

TOLERANCE = 1e-9  # of float64, after the few hundred sums in a row that a model is
_MOST = 1000  # sequences or tokens, beyond which numpy takes minutes


@dataclass(frozen=True)
class Equivalence(Pairs):
    """The verdict; true where `equal`. `difference` is the largest of an output, over its largest value.

    `first` names what differs first, in the order of the second program: an op, an input or an output.
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
        """As JSON holds it; the difference is null where outputs do not compare."""
        known = self.difference if np.isfinite(self.difference) else None
        return {"equal": self.equal, **vars(self), "difference": known, "first": self.first or None}

    def pairs(self) -> list[tuple[str, str]]:
        """What was computed, and the verdict."""
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
    """Whether `after` computes what `before` does: a prefill, and a token more from the caches it left.

    Both are made small first: the same ops on short axes, all layers. Weights are random, the same where
    names in the checkpoint are (or paths, of weights without one). InputError for sizes that numpy cannot do.

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
    sides = small([before, after])
    about = before.name, after.name, batch, new, tolerance
    if unlike := _unlike(*sides):
        return Equivalence(*about, np.inf, unlike)
    caches: tuple[dict[str, Spread], ...] = ({}, {})
    largest = 0.0
    for context, tokens in ((0, new), (new, 1)):
        inputs = _inputs(sides[0], batch, tokens)
        seen: dict[str, Array] = {}
        out, kept = interpret(sides[0], inputs, random, caches[0], context=context, seen=seen)
        other: dict[str, Array] = {}
        others, theirs = interpret(sides[1], inputs, random, caches[1], context=context, seen=other)
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


def random(name: str, type: Tensor) -> Array:
    """A weight: numbers that depend on the name alone, so that each form of a program gets the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    shape = tuple(map(Binding(), type.shape))
    found: Array = rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) if shape else rng.normal(size=())
    return found


def difference(a: Array, b: Array) -> float:
    """The largest difference, over the largest value; infinite of arrays that do not compare."""
    if a.shape != b.shape:
        return np.inf
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b)).max()  # −∞ of a mask is itself
    finite = np.abs(a[np.isfinite(a)])
    return float(apart / (finite.max() if finite.size and finite.max() else 1.0))


def _unlike(before: Program, after: Program) -> str:
    """What the two take or give that does not compare at all."""
    ours, theirs = ({n.name: n.results[0].shape for n in asked(p)} for p in (before, after))
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
    """Random values of what a step is given: token ids, or numbers."""
    at = Binding(B=batch, T=new, C=0)
    found: dict[str, Array] = {}
    for node in asked(program):
        rng = np.random.default_rng(zlib.crc32(node.name.encode()) + new)
        shape = tuple(map(at, node.results[0].shape))
        ids = node.results[0].dtype.name.startswith("int")
        found[node.name] = rng.integers(0, _rows(program, node), shape) if ids else rng.normal(size=shape)
    return found


def _rows(program: Program, node: Node) -> int:
    """How many rows the table has that ids choose from; 2, which most tables have, where there is none."""
    lengths = [2]
    for entry in program.entries:
        graph = program[entry]
        for user, _ in graph.users.get(node.name, ()):
            types = graph.operand_types(user)
            rule = user.op.equation(types)
            sizes = rule.sizes(types)
            lengths += [Binding()(sizes[axis]) for axis in rule.indexed]
    return lengths[-1]
