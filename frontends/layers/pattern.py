"""The kinds of a model's layers, in order, as repeats of layers and of periods of layers."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

# Patterns of more layers stay runs of equal ones: the search takes the square of their number. The deepest
# published models have some 130 layers.
LONGEST = 256


class Times(NamedTuple):
    """A kind of layer so many times, or a period: several such, one after the other."""

    times: int
    of: int | tuple[Times, ...]


@lru_cache(maxsize=64)
def fold(kinds: tuple[int, ...]) -> tuple[Times, ...]:
    """The fewest repeats that write out as `kinds`, those inside of periods counted too.

    >>> gemma_3 = fold(((0,) * 5 + (1,)) * 10 + (0, 0))
    >>> gemma_3 == (Times(10, (Times(5, 0), Times(1, 1))), Times(2, 0))
    True
    """
    plain = _runs(kinds)
    if len(plain) <= 3 or len(kinds) > LONGEST:  # a period is three repeats, or more
        return plain
    size = len(kinds)
    turns = [0]  # how often the kind has changed up to a layer
    for before, kind in pairwise(kinds):
        turns.append(turns[-1] + (before != kind))
    alike = [0] * (size + 1)  # for each length, how many layers from here on are as those so far behind
    best = [0] * (size + 1)  # repeats for the layers from one on
    parts = [(0, 0)] * size  # and the first of them: its length and times
    for start in reversed(range(size)):
        best[start] = size + 1
        for length in range(1, size - start + 1):
            same = start + length < size and kinds[start] == kinds[start + length]
            alike[length] = alike[length] + 1 if same else 0
            inside = turns[start + length - 1] - turns[start] + 1
            own = 1 if length == 1 else 1 + inside
            if own > best[start] or inside < min(length, 2):
                continue
            for times in range(1 + alike[length] // length, min(length, 2) - 1, -1):
                if (cost := own + best[start + times * length]) < best[start]:
                    best[start], parts[start] = cost, (length, times)
    found, at = [], 0
    while at < size:
        length, times = parts[at]
        found.append(Times(times, kinds[at] if length == 1 else _runs(kinds[at : at + length])))
        at += length * times
    return tuple(found)


def _runs(kinds: tuple[int, ...]) -> tuple[Times, ...]:
    return tuple(Times(len(list(run)), kind) for kind, run in groupby(kinds))
