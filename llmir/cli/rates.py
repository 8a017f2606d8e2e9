"""`serve-sim --rates`: latencies against the rate, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmir.errors import InputError

from . import output
from .kinds import Number, spelled

if TYPE_CHECKING:
    from llmir import Program

ALONE = ("rate", "closed", "trace", "requests_out", "steps_out", "trace_out", "price", "form")


class Rates(Number):
    """Requests a second, several of them."""

    def read(self, name: str, text: str) -> Any:
        """What stands between the commas."""
        return [spelled(part) for part in text.split(",")]

    def check(self, name: str, value: Any) -> Any:
        """Two rates or more, in order, no one twice."""
        rates = sorted({super(Rates, self).check(name, each) for each in value})
        if len(rates) < 2:
            raise InputError(f"{name}: expected two rates or more, such as 2,6,10; got {len(rates)}")
        return rates


def target(given: Mapping[str, Any]) -> str:
    """The format of the picture; InputError for what is of one run, and where no picture is asked for."""
    from llmir.backends.export.plot import FORMATS

    for name in ALONE:
        if given[name] is not None:
            option = "format" if name == "form" else name.replace("_", "-")
            raise InputError(f"--{option}: --rates makes a picture of runs of its own; leave one of them out")
    if given["output_file"] in (None, "-"):
        raise InputError("--rates: makes a picture, say which file: -o latencies.png")
    return output.choose(given["output_file"], None, FORMATS)


def draw(
    given: Mapping[str, Any], program: Program, device: Any, asked: Mapping[str, Any], form: str
) -> None:
    """The picture of runs at each rate."""
    from llmir.backends.export import pictures
    from llmir.simulated import at_rates

    how = {**asked, "seed": asked["seed"] or 0}
    runs = at_rates(program, device, given["rates"], given["replications"], **how)
    output.emit(pictures.rates(runs, form), given["output_file"])
    output.note(*runs[0].notes)
