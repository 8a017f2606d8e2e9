"""What becomes of each request of a load."""

from __future__ import annotations

from array import array
from copy import copy

FOREVER = float("inf")


class Course:
    """When each request comes, is first read, has its first token and ends; and how often it is preempted.

    What has not been is at infinity.
    """

    def __init__(self, arrival_s: list[float]) -> None:
        self.arrival_s = arrival_s
        self.start_s, self.first_s, self.end_s = (array("d", [FOREVER]) * len(arrival_s) for _ in range(3))
        self.preemptions = [0] * len(arrival_s)
        self.made: list[int] = []  # tokens that each has in the end
        self._own()

    def _own(self) -> None:
        # When requests begin to decode; and the times between two tokens around a preemption.
        self.joined_s, self.resumed_s = array("d"), array("d")

    def beside(self) -> Course:
        """That of the same requests on another server."""
        other = copy(self)
        other._own()
        return other
