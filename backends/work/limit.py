"""What bounds the time of an op, as every cost model states it."""

from __future__ import annotations

from collections.abc import Mapping

from llmir.backends.tape.outside import outside
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.values import figure
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Size

BOUNDS = ("compute", "memory", "network", "overhead")  # the last: kernel launches, the engine's CPU


@dataclass(frozen=True)
class Limit:
    """One reason why an op takes time: `amount` of something at `rate` per second.

    `constant` is the device's key for the rate, by which `Device.source` says where it comes from.
    """

    bound: str
    amount: Size
    rate: float
    what: str
    constant: str

    def time(self, at: Binding) -> Number:
        """Seconds."""
        return at(self.amount) / self.rate

    @figure
    def seconds(self) -> Mapping[tuple[object, ...], float]:
        """Seconds for each monomial of the amount; the time is never below their sum."""
        terms = self.amount.terms if isinstance(self.amount, Dim) else (((), self.amount),)
        return {monomial: coefficient / self.rate for monomial, coefficient in terms}

    def below(self, other: Limit) -> bool:
        """Whether `other` takes at least as long at every point, as is known of rates that are numbers."""
        if outside(self.rate) or outside(other.rate):
            return False
        mine, theirs = self.seconds, other.seconds
        return all(theirs.get(m, 0.0) - mine.get(m, 0.0) >= 0 for m in mine.keys() | theirs.keys())
