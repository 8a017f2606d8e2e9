"""Rows of two tables, side by side."""

from __future__ import annotations

from math import isclose
from typing import Any


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same rows, figures to 1e-12: a process that priced much has other code, rounded otherwise."""

    def alike(a: Any, b: Any) -> bool:
        return isclose(a, b, rel_tol=1e-12) if isinstance(a, float) and isinstance(b, float) else bool(a == b)

    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for own, other in zip(found, expected, strict=True):
        assert [name for name in own if not alike(own[name], other[name])] == []
