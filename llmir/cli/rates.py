"""`serve-sim --rates`: latencies against the rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmir.base.errors import InputError

from .kinds import Number, spelled

if TYPE_CHECKING:
    from llmir.backends.simulate.replications import Rates as Runs
    from llmir.ir.core.program import Program

ALONE = ("rate", "closed", "trace", "requests_out", "steps_out", "trace_out", "price")


class Rates(Number):
    """Requests a second, several of them."""

    def read(self, name: str, text: str) -> Any:
        """What stands between the commas."""
        return [spelled(part) for part in text.split(",")]

    def check(self, name: str, value: Any) -> Any:
        """Two rates or more, in order, no one twice."""
        rates = sorted({super(Rates, self).check(name, each) for each in value})
        if len(rates) < 2:
            raise InputError(f"{name}: expected rates from two up, such as 2,6,10; got {len(rates)}")
        return rates


def alone(given: Mapping[str, Any]) -> None:
    """InputError for what is of one run."""
    for name in ALONE:
        if given[name] is not None:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: --rates has runs of its own; leave one of them out")


def simulated(given: Mapping[str, Any], program: Program, device: Any, asked: Mapping[str, Any]) -> Runs:
    """Runs at each rate."""
    from llmir.api.serve import at_rates

    how = {**asked, "seed": asked["seed"] or 0}
    return at_rates(program, device, given["rates"], given["replications"], **how)
