"""Compile a function of a tape as plain Python, for single numbers.

`text` prints the source, `compiled` returns the function, and `statements` is shared with the other
languages: it nests expressions in up to `DEEPEST` brackets, and gives a name to every value that is used
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from operator import or_
from typing import Any, NamedTuple

from .record import Constant, Function, Symbol

TEXT = {
    **{"add": "{} + {}", "subtract": "{} - {}", "multiply": "{} * {}", "divide": "{} / {}"},
    **{"power": "{} ** {}", "floor_divide": "{} // {}", "negative": "-{}", "absolute": "abs({})"},
    **{"less": "{} < {}", "less_equal": "{} <= {}", "equal": "{} == {}", "not_equal": "{} != {}"},
    **{"logical_and": "{} & {}", "logical_or": "{} | {}", "logical_xor": "{} ^ {}"},
    **{"where": "{1} if {0} else {2}"},
    **{"minimum": "{1} if {1} < {0} else {0}", "maximum": "{1} if {1} > {0} else {0}"},
    **{"ceil": "ceil({})", "floor": "floor({})", "ceildiv": "-(-{} // {})", "sqrt": "sqrt({})"},
    **{"cbrt": "cbrt({})", "hypot": "hypot({}, {})", "expm1": "expm1({})"},
}
TWICE = {"minimum", "maximum"}  # their operands appear twice in the text, so each needs a name
FLOATS = {"divide", "sqrt", "cbrt", "hypot", "expm1"}  # operators on any numbers
MIXED = {"add", "subtract", "multiply"}  # operators on a float and an integer
DEEPEST = 20  # nesting depth of brackets; Python's parser supports 200


class Statements(NamedTuple):
    """The body of a function of single numbers: named values in order, and the outputs."""

    named: Sequence[tuple[str, str]]
    outputs: Sequence[str]


def statements(
    function: Function,
    words: Mapping[Any, str] = TEXT,
    constant: Callable[[Constant], str] = repr,
) -> Statements:
    """The statements of a function in a language whose operations are `words`; names are unique."""
    nodes, inputs = function.tape.nodes, function.inputs
    uses = Counter(n for number in function.live for n in nodes[number].of)
    named = {n for number in function.live if nodes[number].function in TWICE for n in nodes[number].of}
    named |= set(function.outputs) | {n for n, count in uses.items() if count > 1}
    floats = _floats(function)
    said: dict[int, str] = {}
    depth: dict[int, int] = {}

    def say(number: int, real: bool = False) -> str:
        kind, of = nodes[number]
        if number in inputs:
            return inputs[number]
        if kind == "constant" and isinstance(of[0], Symbol):
            return constant(of[0])
        if kind == "constant":
            value = constant(float(of[0]) if real else of[0])
            return f"({value})" if of[0] < 0 else value
        return said[number]

    lines = []
    for place, number in enumerate(function.live):
        kind, of = nodes[number]
        real = kind in MIXED | TWICE and number in floats
        says = words[kind].format(*(say(n, real) for n in of))
        depth[number] = 1 + max((depth.get(n, 0) for n in of), default=0)
        if number in named or depth[number] >= DEEPEST:
            lines.append((f"v{place}", says))
            said[number], depth[number] = f"v{place}", 0
        else:
            said[number] = f"({says})"
    return Statements(lines, [say(number) for number in function.outputs])


def text(function: Function, name: str = "run") -> str:
    """The source of a Python function of the inputs, which gives a tuple of the outputs.

    The functions that it calls have the names `call0` and so on.
    """
    calls = (f"call{i}({', '.join(['{}'] * len(of.inputs))})[0]" for i, of in enumerate(function.calls))
    named, outputs = statements(function, {**TEXT, **dict(zip(function.calls, calls, strict=True))})
    lines = (f"    {name} = {value}" for name, value in named)
    gives = "".join(f"{output}, " for output in outputs)
    return "\n".join(
        [f"def {name}({', '.join(function.inputs.values())}):", *lines, f"    return ({gives})", ""]
    )


def _floats(function: Function) -> set[int]:
    """The nodes that are floats whatever the inputs are; constants used with them may be floats, too.

    Python is faster if the operands of an operator always have the same types.
    """
    nodes, found = function.tape.nodes, set[int]()
    for number in function.live:
        kind, of = nodes[number]
        floats = [n in found or isinstance(nodes[n].of[0], float) for n in of]
        fixed = [nodes[n].function == "constant" for n in of]
        apart = kind in TWICE and not all(map(or_, floats, fixed))  # now the one, now the other
        if kind in FLOATS or (kind in MIXED | TWICE and any(floats) and not apart):
            found.add(number)
    return found


def compiled(function: Function) -> Callable[..., tuple[Any, ...]]:
    """The function itself."""
    names: dict[str, Any] = {**function.tape.scalars, "inf": inf}
    names |= {f"call{i}": _shared_lines(called) for i, called in enumerate(function.calls)}
    exec(compile(text(function), "<tape>", "exec"), names)
    run: Callable[..., tuple[Any, ...]] = names["run"]
    return run


@lru_cache(maxsize=1 << 10)
def _shared_lines(function: Function) -> Callable[..., tuple[Any, ...]]:
    """A function that many functions call."""
    return compiled(function)
