"""Compile a function of a tape as a loop over points with numba.

Constants become arguments, so functions that differ only in their constants (two models of a family, two
devices) share one source text. Source texts and machine code are cached in the folder `LLMIR_CACHE`, by
default `llmir` in the user's cache folder. Start with `loop` (the source) and `compiled` (the function).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import frexp, isfinite, prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from . import numpy, python
from .numpy import Array
from .record import TRUTHS, Function

# For floats only, with NumPy's results: rounded values remain floats.
TEXT = {
    **python.TEXT,
    **{"ceil": "np.ceil({})", "floor": "np.floor({})", "sqrt": "np.sqrt({})", "cbrt": "np.cbrt({})"},
    **{"ceildiv": "np.ceil({} / {})", "floor_divide": "np.floor_divide({}, {})"},
    **{"hypot": "np.hypot({}, {})", "expm1": "np.expm1({})", "ceil_of_product": "np.ceil({} * {})"},
}
# Division by a power of two becomes a product, which is equally exact and about ten times as fast.
EXACT = {"divide": "multiply", "ceildiv": "ceil_of_product"}
TYPES = "void(float64[:, ::1], float64[:, ::1], float64[::1], float64[:, :, ::1])"
LOGICAL = {"logical_and", "logical_or", "logical_xor"}


class LoopSource(NamedTuple):
    """A source, its constants, and whether each input varies between rows."""

    source: str
    constants: tuple[float, ...]
    rows: tuple[bool, ...]


def text(function: Function, name: str = "run") -> str:
    """The source of a function that fills results by rows and columns; all inputs vary between columns."""
    return loop(function, (), name).source


def loop(function: Function, rows: Collection[str], name: str = "run") -> LoopSource:
    """The loop for a function in which the named inputs vary only between rows, and the others between
    columns.
    """
    nodes = function.tape.nodes
    constants: list[float] = []
    said: dict[int, str] = {}
    outer: list[str] = []
    inner: list[str] = []
    after: list[str] = []
    for number, name_ in function.inputs.items():
        if name_ in rows:
            said[number] = f"k{len(outer)}"
            outer.append(f"k{len(outer)} = rows[{len(outer)}, i]")
        else:
            said[number] = f"c{len(inner)}"
            after.append(f"x{len(inner)} = columns[{len(inner)}]")
            inner.append(f"c{len(inner)} = x{len(inner)}[j]")

    def constant(value: float) -> str:
        constants.append(float(value))  # each use separately: the programs of equal functions may differ
        return f"p{len(constants) - 1}"

    def say(number: int) -> str:
        """An operand as a float."""
        kind, of = nodes[number]
        if number in function.inputs:
            return said[number]
        if kind == "constant":
            return constant(of[0])
        return f"(1.0 if {said[number]} else 0.0)" if kind in TRUTHS else said[number]

    def truth(number: int) -> str:
        computed = nodes[number].function in TRUTHS and number not in function.inputs
        return said[number] if computed else f"({say(number)} != 0)"

    for place, number in enumerate(function.live):
        kind, of = nodes[number]
        if kind in LOGICAL:
            operands = [truth(n) for n in of]
        elif kind == "where":
            operands = [truth(of[0]), *map(say, of[1:])]
        elif kind in EXACT and _halves(nodes[of[1]]):
            kind, operands = EXACT[kind], [say(of[0]), constant(1 / nodes[of[1]].of[0])]
        else:
            operands = [say(n) for n in of]
        said[number] = f"v{place}"
        inner.append(f"v{place} = {TEXT[kind].format(*operands)}")
    results = range(len(function.outputs))
    inner += [f"o{i}[j] = {say(number)}" for i, number in zip(results, function.outputs, strict=True)]
    lines = [
        f"def {name}(rows, columns, constants, results):",
        *(f"    p{i} = constants[{i}]" for i in range(len(constants))),
        *(f"    {line}" for line in after),
        "    for i in range(rows.shape[1]):",
        *(f"        {line}" for line in (*outer, *(f"o{i} = results[{i}, i]" for i in results))),
        "        for j in range(columns.shape[1]):",
        *(f"            {line}" for line in inner),
    ]
    among = tuple(name_ in rows for name_ in function.inputs.values())
    return LoopSource("\n".join([*lines, ""]), tuple(constants), among)


def _halves(node: Any) -> bool:
    """Whether a number is a power of two."""
    function, of = node
    return function == "constant" and isfinite(of[0]) and abs(frexp(of[0])[0]) == 0.5


def compiled(function: Function, rows: Collection[str] = ()) -> Callable[..., tuple[Array, ...]]:
    """The compiled function of arrays that broadcast together, in the order of its inputs.

    If the rows and the columns vary along the same axis, NumPy evaluates the function.
    """
    source, constants, among = loop(function, rows)
    given = np.array(constants, dtype=float)
    types = [bool if function.tape.nodes[n].function in TRUTHS else float for n in function.outputs]

    def over(*inputs: Any) -> tuple[Array, ...]:
        shape = np.broadcast_shapes(*map(np.shape, inputs))
        sides = [[x for x, row in zip(inputs, among, strict=True) if row is side] for side in (True, False)]
        shapes = [(1,) * (len(shape) - np.ndim(x)) + np.shape(x) for x in sides[0]]
        own = [axis for axis in range(len(shape)) if any(each[axis] > 1 for each in shapes)]
        others = [axis for axis in range(len(shape)) if axis not in own]
        sizes = [[n if axis in axes else 1 for axis, n in enumerate(shape)] for axes in (own, others)]
        try:
            tables = [_table(side, size) for side, size in zip(sides, sizes, strict=True)]
        except ValueError:  # an axis that both vary along
            return numpy.compiled(function)(*inputs)
        results = np.empty(
            [len(types), *map(prod, sizes)]
        )  # a single allocation, so that its pages are reused
        _machine(source)(*tables, given, results)
        ordered = [shape[axis] for axis in (*own, *others)]
        moved = (np.moveaxis(r.reshape(ordered), range(len(shape)), (*own, *others)) for r in results)
        return tuple(r.astype(type, copy=False) for r, type in zip(moved, types, strict=True))

    return over


def _table(inputs: Sequence[Any], size: Sequence[int]) -> Array:
    """A row for each input; ValueError for another size."""
    flat = [np.broadcast_to(np.asarray(x, dtype=float), size).reshape(-1) for x in inputs]
    return np.array(flat) if flat else np.empty((0, prod(size)))


def available() -> bool:
    """Whether numba is installed; it is imported when a loop first runs."""
    return find_spec("numba") is not None


def folder() -> Path:
    """The folder for cached sources and compiled code."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LLMIR_CACHE") or Path(caches) / "llmir").expanduser()


@lru_cache(maxsize=1 << 8)
def _machine(source: str) -> Callable[..., None]:
    """Compile a source to machine code; not cached if the folder is not writable."""
    import hashlib

    from numba import njit

    name = f"loop_{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    path, kept = folder() / f"{name}.py", True
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(source)
            fresh.replace(path)  # whole, or not at all
    except OSError:
        kept = False
    module = sys.modules[name] = ModuleType(name)  # deserialized code looks up this name
    names = vars(module)
    names["np"] = np
    exec(compile(source, str(path), "exec"), names)
    made: Callable[..., None] = njit(TYPES, error_model="numpy", cache=kept)(names["run"])
    return made
