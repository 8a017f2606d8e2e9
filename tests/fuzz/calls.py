"""Calls of everything public with values of wrong types, drawn by the bytes of an input."""

from __future__ import annotations

import warnings
from contextlib import suppress

from .reader import reader

TRIES = 3  # wrong arguments of a call, at most


def _starts() -> list[bytes]:
    """One of each call, with one wrong argument."""
    from tests.api import decision_calls, plot_calls  # noqa: F401  (they add to these)
    from tests.api.public_calls import CALLS

    return [i.to_bytes(2, "little") + bytes((i % 7, i % 251)) for i in range(len(CALLS))]


@reader(".bin", _starts, seconds=10)
def read_call(data: bytes) -> None:
    """Bytes are the number of a call, then numbers of an argument and of a value for it, in turn.

    The call gives a result that has a text, or an error of llmir.
    """
    from tests.api.public_calls import CALLS, OddError, fresh, passed_over

    names, values = list(CALLS), fresh()
    name = names[int.from_bytes(data[:2], "little") % len(names)]
    call, usual = CALLS[name]
    named = dict(usual)
    for place in range(2, min(len(data), 2 + 2 * TRIES) - 1, 2):
        argument = list(usual)[data[place] % len(usual)]
        value = values[data[place + 1] % len(values)]
        if not passed_over(name, argument, value):
            named[argument] = value
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of prices such as 1e308 s
    found = call(**named)
    if type(found).__module__.startswith("llmir."):
        with suppress(OddError):  # of a caller's own value, which the result holds
            repr(found)
