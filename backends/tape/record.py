"""Record the arithmetic of a function that runs on symbols.

A `Tape` is a list of `TapeNode`s, a `Symbol` records the operators applied to it, and a `Function` is a part
of a tape with named inputs and outputs. Equal expressions are one node. Identities that are exact for finite
numbers, such as x + 0 = x, are applied during recording. Nothing is reordered, and no quotient becomes a
product: the recorded function computes the same floating-point results as the original.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

Constant = Any  # an int, a float or a bool
Operand = Any  # a constant or a symbol
KeptArguments = Mapping[int, tuple[int, ...]]  # for choices: the arguments that may decide them
NOTHING: Mapping[int, Any] = MappingProxyType({})

# x∘n = x and z∘x = z; n∘x = x and x∘z = z where the order is free; x∘x = x; x − x = 0.
NEUTRAL = {
    **{"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "power": 1},
    **{"minimum": inf, "maximum": -inf},
    **{"logical_and": True, "logical_or": False, "logical_xor": False},
}
ZERO = {
    **{"add": inf, "multiply": 0, "divide": 0, "minimum": -inf, "maximum": inf},
    **{"logical_and": False, "logical_or": True},
}
COMMUTES = {"add", "multiply", "minimum", "maximum", "logical_and", "logical_or", "logical_xor"}
# Functions that return a truth value.
TRUTHS = {"less", "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
IDEMPOTENT = {"minimum", "maximum", "logical_and", "logical_or"}


# The Python operator that computes a function of numbers, by name of the function.
OPERATORS: Mapping[str, Callable[..., Constant]] = {
    **{"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv},
    **{"power": operator.pow, "floor_divide": operator.floordiv, "negative": operator.neg},
    **{"absolute": operator.abs, "less": operator.lt, "less_equal": operator.le, "equal": operator.eq},
    **{"not_equal": operator.ne, "logical_and": operator.and_, "logical_or": operator.or_},
    **{"logical_xor": operator.xor},
}


class TapeNode(NamedTuple):
    """A function of earlier nodes, given by their numbers; a "symbol" has its name, and a "constant" its
    value.

    If calls are kept, the function may be a `Function` of another tape.
    """

    function: Any  # str | Function
    of: tuple[Any, ...]


class Tape:
    """The nodes, in the order of recording.

    `scalars` are the functions of numbers besides operators; `namespace` contains the symbolic ones. Values
    on an `outside` tape are constants for other tapes: they do not change while functions run.
    """

    outside = False

    def __init__(self, scalars: Any) -> None:
        self.nodes: list[TapeNode] = []
        self.kind = scalars
        self.scalars: Mapping[str, Callable[..., Constant]] = {**OPERATORS, **vars(scalars)}
        self.namespace = type(scalars)(**{name: partial(self.record, name) for name in vars(scalars)})
        self._known: dict[tuple[Any, ...], Operand] = {}  # results by function and operands

    def symbol(self, name: str) -> Symbol:
        """The input of that name."""
        key = "symbol", name
        if key not in self._known:
            self._known[key] = self._node("symbol", (name,))
        found: Symbol = self._known[key]
        return found

    def record(self, function: str, *operands: Operand) -> Operand:
        """The result of a function of the operands; if it depends on no symbol, a constant."""
        tapes = [x.tape for x in operands if isinstance(x, Symbol)]
        if not tapes:
            return self.scalars[function](*operands)
        own = next((tape for tape in tapes if not tape.outside), tapes[0])
        if own is not self:
            return own.record(function, *operands)
        of = tuple(map(self.number, operands))
        key = function, *(sorted(of) if function in COMMUTES else of)
        found = self._known.get(key)
        if found is None:
            found = _simpler(function, operands)
            found = self._known[key] = self._node(function, of) if found is None else found
        return found

    def node(self, function: Any, of: tuple[Any, ...]) -> Symbol:
        """Add a function of nodes, or a constant; equal ones are added only once."""
        key = function, *of
        if key not in self._known:
            self._known[key] = self._node(function, of)
        found: Symbol = self._known[key]
        return found

    def call(self, function: Function, *operands: Operand) -> Operand:
        """The result for these operands of a function of another tape, which has one output."""
        (found,) = function.onto(self, operands)
        return found

    def number(self, operand: Operand) -> int:
        """The node number of an operand; TypeError if it is not a number of this tape."""
        if isinstance(operand, Symbol):
            if operand.tape is self:
                return operand.number
            if not operand.tape.outside:
                raise TypeError("a symbol of another tape")
            return self.node("constant", (operand,)).number
        value = operand.item() if hasattr(operand, "item") and not getattr(operand, "ndim", 1) else operand
        if not isinstance(value, (int, float)):
            raise TypeError(f"a tape records numbers, got {type(operand).__name__}")
        key = type(value), value  # 1, 1.0 and True are three constants
        if key not in self._known:
            self._known[key] = self._node("constant", (value,))
        number: int = self._known[key].number
        return number

    def _node(self, function: str, of: tuple[Any, ...]) -> Symbol:
        self.nodes.append(TapeNode(function, of))
        return Symbol(self, len(self.nodes) - 1)


def _simpler(function: str, operands: tuple[Operand, ...]) -> Operand | None:
    """The operand or constant that equals the result of an operation, if there is one."""
    if function == "where":
        condition, *branches = operands
        if isinstance(condition, Symbol):
            return branches[0] if _same(*branches) else None
        return branches[0 if condition else 1]
    if len(operands) != 2:
        return None
    first, second = operands
    if isinstance(first, Symbol) and isinstance(second, Symbol):
        if not _same(first, second):
            return None
        return first if function in IDEMPOTENT else 0 if function == "subtract" else None
    free, neutral, zero = function in COMMUTES, NEUTRAL.get(function), ZERO.get(function)
    rules = (
        (_is(second, neutral), first),
        (free and _is(first, neutral), second),
        (_is(first, zero), first),
        (free and _is(second, zero), second),
        (function == "divide" and _is(second, inf), 0.0),
    )
    return next((operand for holds, operand in rules if holds), None)


def _is(operand: Operand, constant: Constant | None) -> bool:
    """Whether a node is this constant; a float constant is kept, because it converts integers to floats."""
    if isinstance(operand, Symbol) or constant is None or operand != constant:
        return False
    return constant != 1 or not isinstance(operand, float)


def _same(a: Operand, b: Operand) -> bool:
    return isinstance(a, Symbol) and isinstance(b, Symbol) and (a.tape, a.number) == (b.tape, b.number)


Operator = Callable[["Symbol", Operand], Operand]


def _operator(function: str) -> tuple[Operator, Operator]:
    """The operator for a symbol on the left, and for a symbol on the right."""
    return (
        lambda symbol, other: symbol.tape.record(function, symbol, other),
        lambda symbol, other: symbol.tape.record(function, other, symbol),
    )


class Symbol:
    """A number that is not known yet; operators on it are recorded. It cannot decide which branch of an `if`
    is taken.
    """

    __slots__ = ("number", "tape")
    __array_ufunc__ = None  # numpy's functions reject it

    def __init__(self, tape: Tape, number: int) -> None:
        self.tape, self.number = tape, number

    @property
    def usual(self) -> Constant:
        """The typical value of an external number; AttributeError for other symbols."""
        return self.tape.value(self)  # type: ignore[attr-defined]

    @property
    def namespace(self) -> Any:
        """The functions that record."""
        return self.tape.namespace

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __pow__, __rpow__ = _operator("power")
    __and__, __rand__ = _operator("logical_and")
    __or__, __ror__ = _operator("logical_or")
    __xor__, __rxor__ = _operator("logical_xor")
    __lt__, __gt__ = _operator("less")
    __le__, __ge__ = _operator("less_equal")
    __eq__, _ = _operator("equal")
    __ne__, _ = _operator("not_equal")
    __hash__ = object.__hash__

    def __neg__(self) -> Operand:
        return self.tape.record("negative", self)

    def __abs__(self) -> Operand:
        return self.tape.record("absolute", self)

    def __bool__(self) -> bool:
        raise TypeError("a symbol decides no branch; minimum, maximum and where are the namespace's")


def tape_of(operands: Iterable[Operand]) -> Tape | None:
    """The tape of the first symbol that is not external."""
    return next((x.tape for x in operands if isinstance(x, Symbol) and not x.tape.outside), None)


@dataclass(frozen=True, eq=False)
class Function:
    """Nodes of a tape as a function from named `inputs` to `outputs`."""

    tape: Tape
    inputs: Mapping[int, str]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, tape: Tape, names: Iterable[str], outputs: Iterable[Operand]) -> Function:
        """Build a function of symbols by name."""
        return cls(tape, {tape.symbol(name).number: name for name in names}, tuple(map(tape.number, outputs)))

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The nodes that the outputs need, except inputs and constants; TypeError if an input is missing."""
        needed, open_ = set(), list(self.outputs)
        while open_:
            number = open_.pop()
            function, of = self.tape.nodes[number]
            if number in self.inputs or number in needed or function == "constant":
                continue
            if function == "symbol":
                raise TypeError(f"the symbol {of[0]} is no input")
            needed.add(number)
            open_ += of
        return tuple(sorted(needed))

    @cached_property
    def calls(self) -> tuple[Function, ...]:
        """The functions of other tapes that it calls."""
        called = (self.tape.nodes[number].function for number in self.live)
        return tuple(dict.fromkeys(each for each in called if isinstance(each, Function)))

    def onto(
        self,
        tape: Tape,
        operands: Iterable[Operand],
        kept: KeptArguments = NOTHING,
        calls: Mapping[int, KeptArguments] = NOTHING,
    ) -> tuple[Operand, ...]:
        """Record the function on another tape, with operands for the inputs in order.

        Args:
            tape: The other tape.
            operands: The operands in the order of the inputs.
            kept: The arguments that each choice (minimum, maximum or `where`) keeps.
            calls: The arguments that choices inside calls keep.
        """
        nodes = self.tape.nodes
        given = dict(zip(self.inputs, operands, strict=True))
        needed, open_ = set[int](), list(self.outputs)
        while open_:
            number = open_.pop()
            if number not in given and number not in needed:
                needed.add(number)
                if nodes[number].function not in ("constant", "symbol"):
                    open_ += kept[number] if number in kept else nodes[number].of
        for number in sorted(needed):
            function, of = nodes[number]
            if function == "constant":
                given[number] = of[0]
            elif number in kept:
                first, *others = (given[n] for n in kept[number])
                given[number] = reduce(partial(tape.record, function), others, first)
            elif number in calls:
                (given[number],) = function.onto(tape, (given[n] for n in of), calls[number])
            elif isinstance(function, Function):
                given[number] = tape.call(function, *(given[n] for n in of))
            else:
                given[number] = tape.record(function, *(given[n] for n in of))
        return tuple(given[n] for n in self.outputs)

    def count(self, function: str) -> int:
        """The number of nodes of a function."""
        return sum(self.tape.nodes[number].function == function for number in self.live)

    def parted(self, late: Iterable[str], prefix: str = "k") -> tuple[Function, Function]:
        """Split into a function of the early inputs, and a function of the other inputs and of the early
        results.

        Early results have names with the prefix; inputs that pass through keep their names.
        """
        names = set(late)
        depends = self.depending(names)
        rest = [number for number in self.live if number in depends]
        asked = {n for number in rest for n in self.tape.nodes[number].of} | set(self.outputs)
        kept = tuple(n for n in sorted(asked - depends) if self.tape.nodes[n].function != "constant")
        given = {number: name for number, name in self.inputs.items() if name in names}
        before = {number: name for number, name in self.inputs.items() if name not in names}
        named = {n: before.get(n, f"{prefix}{i}") for i, n in enumerate(kept)}
        return Function(self.tape, before, kept), Function(self.tape, {**given, **named}, self.outputs)

    def before(self, other: Function, prefix: str = "x") -> tuple[Function, Function]:
        """This function, which also returns the values that the other function uses; and the other function,
        which takes these values.
        """
        own, kept, open_, seen = set(self.live), set(), list(other.outputs), set(self.inputs)
        while open_:
            number = open_.pop()
            if number not in seen:
                seen.add(number)
                function, of = self.tape.nodes[number]
                if number in own:
                    kept.add(number)
                elif function != "constant":
                    open_ += of
        given = {number: f"{prefix}{i}" for i, number in enumerate(sorted(kept))}
        more = Function(self.tape, self.inputs, (*self.outputs, *given))
        return more, Function(self.tape, {**other.inputs, **given}, other.outputs)

    def depending(self, names: Iterable[str]) -> set[int]:
        """The nodes that depend on any of these inputs, and the inputs."""
        wanted = set(names)
        found = {number for number, name in self.inputs.items() if name in wanted}
        for number in self.live:
            if not found.isdisjoint(self.tape.nodes[number].of):
                found.add(number)
        return found
