"""What a router has sent to a replica: leading tokens of prompts that are there already, by their hashes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class SentPrefixes:
    """Hashes, `each` of so many tokens, that were sent last: as many as `tokens` of a cache hold.

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
        """Tokens of a request's prompt that are there: up to the first hash that is not."""
        found = 0
        for known in self.hashes[request]:
            if known not in self._recent:
                break
            found += self.each
        return found

    def use(self, request: int) -> None:
        """The prompt is sent: its hashes are the most recent, and the least recent ones go."""
        for known in self.hashes[request]:
            self._recent[known] = None
            self._recent.move_to_end(known)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)
