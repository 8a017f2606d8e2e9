"""The log of a server, a row for each run of steps, and the times between tokens that it says.

A row has its start, the seconds and the number of its steps; sequences that decode, and their cached tokens
before the first step; new tokens that are read, of how many prompts; requests that wait; and KV blocks in use
at its end.
"""

from __future__ import annotations

from struct import Struct

import numpy as np

from .load import Array

LOG = ("start_s", "time_s", "steps", "decodes", "kept", "new", "reads", "waiting", "blocks")
row = Struct(f"{len(LOG)}d").pack


def table(rows: bytes) -> Array:
    """Packed rows as an array, with the columns `LOG`."""
    return np.frombuffer(rows).reshape(-1, len(LOG))


def column(rows: bytearray, name: str) -> Array:
    """One column of packed rows."""
    return np.frombuffer(rows)[LOG.index(name) :: len(LOG)]


def gaps(log: Array, joined_s: Array, resumed_s: Array) -> tuple[Array, Array]:
    """Seconds between consecutive tokens of requests, and how many gaps of each length there are.

    All gaps of a run of decode steps count as equal, but for those before its first step. That is since the
    previous step with decodes for sequences that were in it, and since `joined_s`, when the prompt was read,
    for those that have joined. `resumed_s` are the gaps around preemptions.
    """
    columns = ("start_s", "time_s", "steps", "decodes")
    start, time, steps, decodes = (log[:, LOG.index(name)].copy() for name in columns)
    if not decodes.all():
        start, time, steps, decodes = (column[decodes > 0] for column in (start, time, steps, decodes))
    each, before = time / steps, np.concatenate([[-np.inf], (start + time)[:-1]])
    joined, pauses = np.sort(joined_s), np.flatnonzero(start > before)  # sequences join in pauses alone
    first = np.searchsorted(joined, before[pauses], side="right")
    new = np.searchsorted(joined, start[pauses], side="right") - first  # sequences that joined, by pause
    rows = np.repeat(pauses, new)
    own = joined[np.repeat(first - np.cumsum(new) + new, new) + np.arange(len(rows))]
    older, one = decodes.copy(), np.ones(len(own) + len(resumed_s))
    older[pauses] -= new
    some = older > 0
    waited = (start - before + each)[some], start[rows] - own + each[rows], resumed_s
    seconds = np.concatenate([each, *waited])
    return seconds, np.concatenate([decodes * (steps - 1), older[some], one])
