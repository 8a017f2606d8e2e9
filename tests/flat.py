"""Arguments of a public function by the flat names of its options, as the command line has them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from llmir.api.options import (
    Drafts,
    Estimation,
    Memory,
    Parallel,
    Precision,
    Record,
    Reserve,
    Servers,
    Traffic,
    options,
)

RECORDS: dict[str, type[Record]] = {
    kind.__name__.lower(): kind
    for kind in (Traffic, Servers, Reserve, Memory, Drafts, Parallel, Precision, Estimation)
}


def records(function: Callable[..., Any], **flat: Any) -> dict[str, Any]:
    """The same arguments, with the options of a record in the record that the function takes."""
    taken = signature(function).parameters
    if "draft" in flat:
        flat["draft_model"] = flat.pop("draft")
    found = {name: value for name, value in flat.items() if name in taken}
    for argument, kind in RECORDS.items():
        names = [each.name for each in options(kind) if each.name in flat and each.name not in taken]
        if argument in taken and (names or argument == "traffic"):
            found[argument] = kind(**{name: flat.pop(name) for name in names})
    if rest := flat.keys() - found.keys():
        raise TypeError(f"{function.__name__} takes no {', '.join(sorted(rest))}")
    return found


def flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is called by the flat names of options."""
    return lambda **named: function(**records(function, **named))
