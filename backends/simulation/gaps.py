"""Times between the tokens of a request, from events: no token is looked at alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .load import Array


def gaps(events: Mapping[str, Array], joined_s: Array, resumed_s: Array) -> tuple[Array, Array]:
    """Seconds between tokens, and how many there are of each.

    Steps of a run count as equal. In the first, those that decoded before have waited since the last step
    that decodes, and those that joined since then from where they did. `resumed_s` are what others waited
    that were preempted.
    """
    rows = events["decodes"] > 0
    start, time, steps, decodes = (events[name][rows] for name in ("start_s", "time_s", "steps", "decodes"))
    each, before = time / steps, np.concatenate([[-np.inf], (start + time)[:-1]])
    joined = np.sort(joined_s)
    first = np.searchsorted(joined, before, side="right")
    late = np.searchsorted(joined, start, side="right") - first
    newcomers = np.repeat(np.arange(len(start)), late)
    own = joined[np.repeat(first - np.cumsum(late) + late, late) + np.arange(len(newcomers))]
    older, alone = decodes - late, np.ones(len(own) + len(resumed_s))
    waited = (start - before + each)[older > 0], start[newcomers] - own + each[newcomers], resumed_s
    seconds = np.concatenate([each, *waited])
    return seconds, np.concatenate([decodes * (steps - 1), older[older > 0], alone])
