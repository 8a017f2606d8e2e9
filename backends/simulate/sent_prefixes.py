"""What a router believes a replica has cached: the prefixes of prompts that it sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class SentPrefixes:
    """The hashes that were sent last, `each` of so many tokens: as many as a cache of `tokens` holds.

    >>> prefixes = SentPrefixes([(1, 2), (1, 3), (1, 2)], each=512, tokens=3 * 512)
    >>> for request in range(3):
    ...     print(prefixes.kept(request))
    ...     prefixes.use(request)
    0
    512
    1024
    """

    def __init__(self, hashes: Sequence[Sequence[int]], each: int, tokens: int) -> None:
        self.hashes, self.each, self._most = hashes, each, tokens // each
        self._recent: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def kept(self, request: int) -> int:
        """Leading tokens of a prompt that were sent before: up to the first hash that was not."""
        found = 0
        for known in self.hashes[request]:
            if known not in self._recent:
                break
            found += self.each
        return found

    def use(self, request: int) -> None:
        """A prompt is sent: its hashes are the most recent; the least recent ones are forgotten."""
        for known in self.hashes[request]:
            self._recent[known] = None
            self._recent.move_to_end(known)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)
