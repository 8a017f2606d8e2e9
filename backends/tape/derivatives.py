"""Forward-mode derivatives of a recorded function.

`derivatives` returns the derivatives of all outputs by one input; `RULES` has one rule per operation. A
minimum or maximum has the derivative of its chosen argument, and a rounded value has the derivative 0. So the
results are valid between the points at which the formula changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .record import Function, Symbol, Tape

Rule = Callable[
    [Tape, Any, list[Any], list[Any]], Any
]  # a function of the value, its operands and their derivatives
RULES: dict[str, Rule] = {
    "add": lambda tape, y, x, d: d[0] + d[1],
    "subtract": lambda tape, y, x, d: d[0] - d[1],
    "multiply": lambda tape, y, x, d: d[0] * x[1] + x[0] * d[1],
    "divide": lambda tape, y, x, d: (d[0] - y * d[1]) / x[1],
    "power": lambda tape, y, x, d: x[1] * x[0] ** (x[1] - 1) * d[0],  # with a constant exponent
    "negative": lambda tape, y, x, d: -d[0],
    "absolute": lambda tape, y, x, d: tape.record("where", x[0] < 0, -d[0], d[0]),
    "minimum": lambda tape, y, x, d: tape.record("where", x[1] < x[0], d[1], d[0]),
    "maximum": lambda tape, y, x, d: tape.record("where", x[1] > x[0], d[1], d[0]),
    "where": lambda tape, y, x, d: tape.record("where", x[0], d[1], d[2]),
    "sqrt": lambda tape, y, x, d: d[0] / (2 * y),
    "cbrt": lambda tape, y, x, d: d[0] / (3 * y * y),
    "hypot": lambda tape, y, x, d: (x[0] * d[0] + x[1] * d[1]) / y,
    "expm1": lambda tape, y, x, d: (y + 1) * d[0],
}
STILL = {"ceil", "floor", "ceildiv", "floor_divide", "less", "less_equal", "equal", "not_equal"}
STILL |= {"logical_and", "logical_or", "logical_xor"}


def derivatives(function: Function, by: str) -> Function:
    """The derivatives of a function's outputs by one of its inputs; TypeError for a power whose exponent
    depends on the input.
    """
    tape = function.tape
    known: dict[int, Any] = {number: int(name == by) for number, name in function.inputs.items()}

    def value(number: int) -> Any:
        kind, of = tape.nodes[number]
        return of[0] if kind == "constant" else Symbol(tape, number)

    for number in function.live:
        kind, of = tape.nodes[number]
        changes = [known.get(n, 0) for n in of]
        moves = any(isinstance(d, Symbol) or d != 0 for d in changes)
        if kind == "power" and (isinstance(changes[1], Symbol) or changes[1] != 0):
            raise TypeError(f"a power whose exponent changes with {by}")
        if moves and kind not in STILL:
            known[number] = RULES[kind](tape, Symbol(tape, number), [value(n) for n in of], changes)
    return Function(tape, function.inputs, tuple(tape.number(known.get(n, 0)) for n in function.outputs))
