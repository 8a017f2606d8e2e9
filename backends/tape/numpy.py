"""Compile a function of a tape as numpy code for arrays.

The code processes `BLOCK` points at a time and reuses its buffers, so that they stay in the CPU's cache.
`text` prints the source and `compiled` returns the function. A `GatherInput` has few distinct values and an
index for each point; `cut` splits a grid into pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from .record import TRUTHS, Function

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK = 1 << 15  # points per buffer (256 KiB): the dozen buffers of a step fit into the caches of a CPU


def text(function: Function, name: str = "run") -> str:
    """The source of a Python function that takes a block of each input and writes `r…`, with the use of
    buffers.
    """
    return _print(function, name)[0]


def _print(function: Function, name: str) -> tuple[str, tuple[int, int]]:
    """The source, and the numbers of buffers for numbers and for booleans."""
    nodes, inputs = function.tape.nodes, function.inputs
    left = Counter(n for number in function.live for n in nodes[number].of)
    left.update(function.outputs)
    free: dict[str, list[str]] = {"f": [], "b": []}
    most = {"f": 0, "b": 0}
    place: dict[int, str] = {}
    lines: list[str] = []

    def say(number: int) -> str:
        kind, of = nodes[number]
        if number in inputs:
            return inputs[number]
        return repr(of[0]) if kind == "constant" else place[number]

    def release(of: Sequence[int]) -> None:
        for n in of:
            left[n] -= 1
            if not left[n] and n in place:
                free[place[n][0]].append(place[n])

    def buffer(kind: str) -> str:
        which = "b" if kind in TRUTHS else "f"
        if not free[which]:
            free[which].append(f"{which}{most[which]}")
            most[which] += 1
        return free[which].pop()

    for number in function.live:
        kind, of = nodes[number]
        operands = [say(n) for n in of]
        if kind == "where":  # it writes to the buffer twice
            into = place[number] = buffer(kind)
            condition, a, b = operands
            lines += [f"copyto({into}, {b})", f"copyto({into}, {a}, where={condition})"]
            release(of)
            continue
        release(of)
        into = place[number] = buffer(kind)
        if kind == "ceildiv":
            lines += [f"divide({', '.join(operands)}, out={into})", f"ceil({into}, out={into})"]
        else:
            lines.append(f"{kind}({', '.join(operands)}, out={into})")
    results = [f"r{i}" for i in range(len(function.outputs))]
    lines += [f"copyto({r}, {say(n)})" for r, n in zip(results, function.outputs, strict=True)]
    buffers = [f"{which}{i}" for which in "fb" for i in range(most[which])]
    head = f"def {name}({', '.join([*inputs.values(), *results, *buffers])}):"
    return "\n".join([head, *(f"    {line}" for line in lines or ["pass"]), ""]), (most["f"], most["b"])


def compiled(function: Function, block: int = BLOCK) -> Callable[..., tuple[Array, ...]]:
    """The function of arrays that broadcast together, given in the order of its inputs.

    It returns float64 arrays of the whole shape, or bool arrays for conditions.
    """
    nodes = function.tape.nodes
    types = [bool if nodes[n].function in TRUTHS else float for n in function.outputs]
    source, (numbers, truths) = _print(function, "run")
    names: dict[str, Any] = {"inf": inf, **vars(np)}
    exec(compile(source, "<tape>", "exec"), names)
    run = names["run"]

    def over(*inputs: Any) -> tuple[Array, ...]:
        shape = np.broadcast_shapes(*map(_shape, inputs))
        results = tuple(np.empty(shape, dtype=type) for type in types)
        buffers: list[Array] = []
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for part in cut(shape, block):
                pieces = [_piece(x, part) for x in inputs]
                into = [result[part] if part else result for result in results]
                if not buffers or buffers[0].shape != into[0].shape:
                    size = into[0].shape if into else ()
                    buffers = [np.empty(size) for _ in range(numbers)]
                    buffers += [np.empty(size, dtype=bool) for _ in range(truths)]
                run(*pieces, *into, *buffers)
        return results

    return over


class GatherInput(NamedTuple):
    """An input with few distinct values; each point uses the value at its index."""

    values: Array
    places: Array


def _shape(x: Any) -> tuple[int, ...]:
    return np.shape(x.places if isinstance(x, GatherInput) else x)


def _piece(x: Any, part: tuple[slice, ...]) -> Any:
    """The part of a broadcast value that belongs to a part of the shape."""
    if isinstance(x, GatherInput):
        return x.values[x.places[part]] if x.values.ndim else x.values
    shape = np.shape(x)
    own = part[len(part) - len(shape) :]
    return x[tuple(slice(None) if n == 1 else s for n, s in zip(shape, own, strict=True))] if shape else x


def cut(shape: tuple[int, ...], block: int) -> Iterator[tuple[slice, ...]]:
    """Split a grid into pieces of at most `block` points, at least one point each."""
    if not shape:
        yield ()
        return
    first, *others = shape
    inner = prod(others)
    rows = max(1, block // max(inner, 1))
    for start in range(0, first, rows):
        part = slice(start, min(start + rows, first))
        for rest in cut(tuple(others), block) if inner > block else [(slice(None),) * len(others)]:
            yield (part, *rest)
