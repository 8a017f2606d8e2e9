"""The arithmetic of a kernel at one point: the kernel itself, recorded, with what its choices choose there.

So what is shown is what is computed. Of a minimum, a maximum or a `where` there is the argument that is
chosen, and what is nothing at the point is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf

from llmir.backends.kernels.base import Kernel, Shape, parameters
from llmir.backends.tape.python import TEXT
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.hw.device import Device

from .explanation import Line

TIME = "kernel"  # the last line: seconds of a call
WIDEST = 64  # characters of what gets no line of its own
# How tightly what is written binds; calls and names the most.
BINDS = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), 0),
    **dict.fromkeys(("less", "less_equal", "equal", "not_equal"), 0),
    **{"add": 1, "subtract": 1, "multiply": 2, "divide": 2, "floor_divide": 2, "negative": 3, "power": 4},
}
TIGHT = 5


def arithmetic(kernel: Kernel, part: str, device: Device, shape: Shape) -> tuple[Line, ...]:
    """What a part of a kernel computes of a shape of numbers, line by line; the last is the seconds.

    Lines are Python, in names of the kernel's parameters, of the shape's numbers and of lines before.
    """
    tape, given = Tape(SCALARS), dict[str, Number]()

    def symbol(name: str, value: Number) -> Number:
        if value in (0, inf):
            return value
        given[name] = value
        return tape.symbol(name)

    own = {p.name: (getattr(kernel, p.name), p.choices) for p in parameters(type(kernel))}
    symbols = {name: value if choices else symbol(name, value) for name, (value, choices) in own.items()}
    numbers = {name: symbol(name, value) for name, value in shape.numbers().items()}
    time = getattr(type(kernel)(**symbols), part)(device, shape.put(numbers), tape.namespace)
    return _lines(_chosen(Function.of(tape, given, [time]), given), given)


def _values(tape: Tape, given: Mapping[str, Number]) -> list[Number]:
    """Of each node."""
    found: list[Number] = []
    for kind, of in tape.nodes:
        if kind in ("constant", "symbol"):
            found.append(of[0] if kind == "constant" else given[of[0]])
        else:
            found.append(tape.scalars[kind](*(found[n] for n in of)))
    return found


def _chosen(function: Function, given: Mapping[str, Number]) -> Function:
    """The same at that point alone."""
    nodes, values, kept = function.tape.nodes, _values(function.tape, given), dict[int, tuple[int, ...]]()
    for number in function.live:
        kind, of = nodes[number]
        if kind in ("minimum", "maximum"):
            kept[number] = (next(n for n in of if values[n] == values[number]),)
        elif kind == "where":
            kept[number] = (of[1 if values[of[0]] else 2],)
    nothing = {n: values[n] for n in function.live if values[n] in (0, inf)}
    tape = Tape(SCALARS)
    inputs = {**function.inputs, **dict.fromkeys(nothing, "")}
    operands = [*map(tape.symbol, function.inputs.values()), *nothing.values()]
    found = Function(function.tape, inputs, function.outputs).onto(tape, operands, kept)
    return Function.of(tape, given, found)


def _lines(function: Function, given: Mapping[str, Number]) -> tuple[Line, ...]:
    nodes, values = function.tape.nodes, _values(function.tape, given)
    uses = Counter(n for number in function.live for n in nodes[number].of)
    said: dict[int, tuple[str, int]] = {}
    lines: list[Line] = []

    def say(number: int, binds: int) -> str:
        if number in said:
            text, tight = said[number]
            return text if tight >= binds else f"({text})"
        return function.inputs.get(number) or repr(nodes[number].of[0])

    last = function.outputs[0]
    for number in dict.fromkeys((*function.live, last)):
        kind, of = nodes[number]
        text = _text(kind, of, say) if number in function.live else say(number, 0)
        if number == last or uses[number] > 1 or len(text) > WIDEST:
            name = TIME if number == last else f"t{len(lines) + 1}"
            lines.append(Line(name, text, values[number]))
            said[number] = name, TIGHT
        else:
            said[number] = text, BINDS.get(kind, TIGHT)
    return tuple(lines)


def _text(kind: str, of: tuple[int, ...], say: Callable[[int, int], str]) -> str:
    if kind not in BINDS:
        inside = TIGHT if kind == "ceildiv" else 0
        return TEXT[kind].format(*(say(n, inside) for n in of))
    binds = BINDS[kind]
    # What stands to the right is bracketed though it binds as tightly: it is computed first.
    first = TIGHT if binds in (0, 4) else binds
    return TEXT[kind].format(say(of[0], first), *(say(n, max(first, binds + 1)) for n in of[1:]))
