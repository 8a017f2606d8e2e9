"""The times of each request of a load, as a server fills them in."""

from __future__ import annotations

from array import array
from copy import copy

FOREVER = float("inf")


class Course:
    """By request: when it arrives, is first read, has its first token and ends; preemptions and tokens made.

    What has not happened is at infinity. `joined_s` and `resumed_s`, in no order of requests, are when
    requests begin to decode, and the seconds between two tokens around a preemption.
    """

    def __init__(self, arrival_s: list[float]) -> None:
        self.arrival_s = arrival_s
        self.start_s, self.first_s, self.end_s = (array("d", [FOREVER]) * len(arrival_s) for _ in range(3))
        self.preemptions = [0] * len(arrival_s)
        self.made: list[int] = []
        self._own()

    def _own(self) -> None:
        self.joined_s, self.resumed_s = array("d"), array("d")

    def beside(self) -> Course:
        """For another server of the same requests: columns by request are shared."""
        other = copy(self)
        other._own()
        return other
