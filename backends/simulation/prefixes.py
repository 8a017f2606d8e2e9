"""What a router has sent to a replica: leading tokens of prompts that are there already, by their hashes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .load import TOKENS


class Prefixes:
    """Hashes of the tokens that were sent last, as many as `tokens` of a cache hold.

    >>> prefixes = Prefixes([(1, 2), (1, 3), (1, 2)], tokens=3 * 512)
    >>> for request in range(3):
    ...     print(prefixes.kept(request))
    ...     prefixes.use(request)
    0
    512
    1024
    """

    def __init__(self, hashes: Sequence[Sequence[int]], tokens: int) -> None:
        self.hashes, self._most = hashes, tokens // TOKENS
        self._recent: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def kept(self, request: int) -> int:
        """Tokens of a request's prompt that are there: up to the first hash that is not."""
        found = 0
        for each in self.hashes[request]:
            if each not in self._recent:
                break
            found += TOKENS
        return found

    def use(self, request: int) -> None:
        """The prompt is sent: its hashes are the most recent, and the least recent ones go."""
        for each in self.hashes[request]:
            self._recent[each] = None
            self._recent.move_to_end(each)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)
