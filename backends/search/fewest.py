"""The fewest of something that do, found in few tries."""

from __future__ import annotations

from collections.abc import Callable


def fewest(
    meets: Callable[[int], bool], low: int, start: int, most: int, *, near: bool = False
) -> int | None:
    """The smallest number above `low` that meets, where all above it do, looked for from `start` on.

    Steps are a twentieth of it, each twice the last unless it is `near`. None where `most` does not meet.

    >>> [fewest(lambda n: n >= 30, 0, start, 1000) for start in (1, 29, 500)]
    [30, 30, 30]
    >>> fewest(lambda n: n > 9, 0, 5, 9)
    """
    more = 1 if near else 2
    now, step = start, max(1, start // 20)
    if meets(now):
        while now - low > 1:
            before = max(now - step, low + 1)
            if not meets(before):
                low = before
                break
            now, step = before, more * step
    else:
        while True:
            if now >= most:
                return None
            low, now, step = now, min(now + step, most), more * step
            if meets(now):
                break
    while now - low > 1:
        middle = (now + low) // 2
        if meets(middle):
            now = middle
        else:
            low = middle
    return now
