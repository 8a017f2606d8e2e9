"""A tape's function as plain Python, for single numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from .record import Function

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
TWICE = {"minimum", "maximum"}  # whose operands are said twice, so that each needs a name
DEEPEST = 20  # brackets within brackets; Python's parser takes 200


def text(function: Function, name: str = "run") -> str:
    """The source of a Python function of the inputs, which gives a tuple of the outputs."""
    nodes, inputs = function.tape.nodes, function.inputs
    uses = Counter(n for number in function.live for n in nodes[number].of)
    named = {n for number in function.live if nodes[number].function in TWICE for n in nodes[number].of}
    named |= set(function.outputs) | {n for n, count in uses.items() if count > 1}
    said: dict[int, str] = {}
    depth: dict[int, int] = {}

    def say(number: int) -> str:
        kind, of = nodes[number]
        if number in inputs:
            return inputs[number]
        if kind == "constant":
            return f"({of[0]!r})" if of[0] < 0 else repr(of[0])
        return said[number]

    lines = [f"def {name}({', '.join(inputs.values())}):"]
    for place, number in enumerate(function.live):
        kind, of = nodes[number]
        says = TEXT[kind].format(*map(say, of))
        depth[number] = 1 + max((depth.get(n, 0) for n in of), default=0)
        if number in named or depth[number] >= DEEPEST:
            lines.append(f"    v{place} = {says}")
            said[number], depth[number] = f"v{place}", 0
        else:
            said[number] = f"({says})"
    outputs = "".join(f"{say(number)}, " for number in function.outputs)
    return "\n".join([*lines, f"    return ({outputs})", ""])


def compiled(function: Function) -> Callable[..., tuple[Any, ...]]:
    """The function itself."""
    names: dict[str, Any] = {**function.tape.scalars, "inf": inf}
    exec(compile(text(function), "<tape>", "exec"), names)
    run: Callable[..., tuple[Any, ...]] = names["run"]
    return run
