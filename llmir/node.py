"""An op at its place in a graph, and the values that it takes and gives."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from . import convert
from .dataclass import dataclass
from .errors import VerifyError
from .op import Op
from .tensor import Tensor

_NAME = re.compile(r"""[^\s#,()=\[\]{}"@%:]+""")


def checked_name(name: object) -> str:
    """`name` if IR can spell it; `VerifyError` if not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = 'text without spaces, and none of # , ( ) = [ ] { } " @ % :'
        convert.refuse("name", name, allowed, VerifyError)
    return name


class Value(NamedTuple):
    """One result of a node; printed `%node`, or `%node#1` for results after the first."""

    node: str
    result: int = 0

    def __str__(self) -> str:
        return f"%{self.node}#{self.result}" if self.result else f"%{self.node}"


@dataclass(frozen=True)
class Node:
    """An op at its place in a graph: its name, the values it takes, the types it gives."""

    name: str
    op: Op
    operands: tuple[Value, ...]
    results: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        for what, found, kind in (("operands", self.operands, Value), ("results", self.results, Tensor)):
            if not isinstance(found, tuple) or not all(isinstance(each, kind) for each in found):
                convert.refuse(f"node: {what}", found, f"a tuple of {kind.__name__}s", VerifyError)
        if not isinstance(self.op, Op):
            convert.refuse("node: op", self.op, "an op", VerifyError)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Its results as values."""
        return tuple(Value(self.name, i) for i in range(len(self.results)))
