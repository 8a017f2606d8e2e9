"""Times between the tokens of a request, from events: no token is looked at alone."""

from __future__ import annotations

import numpy as np

from .load import Array
from .server import LOG

COLUMNS = ("start_s", "time_s", "steps", "decodes")


def gaps(log: Array, joined_s: Array, resumed_s: Array) -> tuple[Array, Array]:
    """Seconds between tokens of a server's log, and how many there are of each.

    Steps of a run count as equal. In the first, those that decoded before have waited since the last step
    that decodes, and those that joined since then from where they did. `resumed_s` are what others waited
    that were preempted.
    """
    start, time, steps, decodes = (log[:, LOG.index(name)].copy() for name in COLUMNS)
    if not decodes.all():
        start, time, steps, decodes = (column[decodes > 0] for column in (start, time, steps, decodes))
    each, before = time / steps, np.concatenate([[-np.inf], (start + time)[:-1]])
    joined, pauses = np.sort(joined_s), np.flatnonzero(start > before)
    first = np.searchsorted(joined, before[pauses], side="right")
    late = np.searchsorted(joined, start[pauses], side="right") - first
    newcomers = np.repeat(pauses, late)
    own = joined[np.repeat(first - np.cumsum(late) + late, late) + np.arange(len(newcomers))]
    older, alone = decodes.copy(), np.ones(len(own) + len(resumed_s))
    older[pauses] -= late
    some = older > 0
    waited = (start - before + each)[some], start[newcomers] - own + each[newcomers], resumed_s
    seconds = np.concatenate([each, *waited])
    return seconds, np.concatenate([decodes * (steps - 1), older[some], alone])
