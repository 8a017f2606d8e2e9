"""Sizes as text: what a size prints as is read back."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import fields

from llmir.base.errors import ParseError, VerifyError
from llmir.base.names import plain
from llmir.base.reading import expression

from .atoms import ATOMS
from .polynomial import Dim, Size
from .routing_laws import Law, law


def parse(text: str) -> Size:
    """The size that prints as `text`; `ParseError` if none does.

    >>> print(parse("T*B*2 + ceildiv(B, 8)"))
    2*B*T + ceildiv(B, 8)
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(text)
        return _build(expression(text))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, KeyError, VerifyError):
        allowed = f"integers, symbols, +, -, * and {', '.join(ATOMS)}"
        raise ParseError(f"size {plain(text, 60)!r}: expected {allowed}") from None


# A size of a real program has a few terms of a few factors. What multiplies out further is no size.
_LONGEST = 2_000
_TERMS, _FACTORS, _DIGITS = 200, 16, 30

_OPERATORS: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _build(node: ast.expr) -> Size:
    size = _built(node)
    terms = size.terms if isinstance(size, Dim) else (((), size),)
    if len(terms) > _TERMS or any(len(m) > _FACTORS or abs(c) >= 10**_DIGITS for m, c in terms):
        raise ValueError("too large")
    return size


def _built(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return Dim.symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -1 * _build(operand)
        case ast.BinOp(left=left, op=how, right=right):
            return _OPERATORS[type(how)](_build(left), _build(right))
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            kinds = [f.type for f in fields(ATOMS[function])]
            if len(arguments) > len(kinds):
                raise ValueError(function)
            return ATOMS[function].of(*map(_argument, arguments, kinds))
    raise ValueError(ast.dump(node))


def _argument(node: ast.expr, kind: object) -> Size | Law:
    return law(ast.unparse(node)) if kind == "Law" else _build(node)
