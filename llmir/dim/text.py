"""Sizes as text: what a size prints as is read back."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import fields

from ..errors import ParseError, VerifyError
from ..routing import Law, law
from .atoms import ATOMS
from .polynomial import Dim, Size


def parse(text: str) -> Size:
    """The size that prints as `text`; `ParseError` if none does.

    >>> print(parse("T*B*2 + ceildiv(B, 8)"))
    2*B*T + ceildiv(B, 8)
    """
    try:
        return _build(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, KeyError, VerifyError):
        allowed = f"integers, symbols, +, -, * and {', '.join(ATOMS)}"
        raise ParseError(f"size {text!r}: expected {allowed}") from None


_OPERATORS: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _build(node: ast.expr) -> Size:
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
