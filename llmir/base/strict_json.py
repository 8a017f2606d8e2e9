"""JSON up to a budget, in which a key that is there twice has one value, or is a mistake."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import UnreadableError
from .names import plain
from .reading import Budget, decoded

_STRING = re.compile(rb'"[^"]*"')
_INNERMOST = re.compile(rb"\[\]|\{\}")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def load(data: bytes, budget: Budget) -> Any:
    """What the text says; `UnreadableError` names the place that is wrong."""
    text = decoded(data, budget)
    if not text.strip():
        raise UnreadableError("the file is empty")
    _check(data, budget)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableError(f"broken JSON at {where}: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # past limits of Python that are lower than ours
        raise UnreadableError(f"broken JSON: {plain(str(error))}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            both = (plain(json.dumps(x), 60) for x in (name, found[name], value))
            raise UnreadableError("{} is there twice, as {} and {}".format(*both))
    return found


def _check(data: bytes, budget: Budget) -> None:
    """Values and nesting, before anything is built: what is outside strings is all that counts."""
    if data.count(b'"') > 2 * budget.nodes + 2:  # each string is a value, or names one
        raise UnreadableError(f"more than {budget.nodes:,} values")
    bare = _STRING.sub(b"", data.replace(rb"\\", b"").replace(rb"\"", b""))
    if sum(map(bare.count, (b",", b"[", b"{", b":"))) > budget.nodes:
        raise UnreadableError(f"more than {budget.nodes:,} values")
    brackets, levels = bare.translate(None, _NO_BRACKETS), 0
    while levels <= budget.depth:  # each round takes the innermost away
        shorter = _INNERMOST.sub(b"", brackets)
        if shorter == brackets:
            break
        brackets, levels = shorter, levels + 1
    if levels > budget.depth or brackets.count(b"[") + brackets.count(b"{") > budget.depth:
        raise UnreadableError(f"nested more than {budget.depth} deep")
