"""Tables of chat logs: the numbers of tokens of requests, and measured times, if any."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from llmir.backends.request.workload import LONGEST
from llmir.backends.silicon.rows import Column
from llmir.base.values import FrozenDict

from .table import TableFormat

# Figures of measured times, with the names of their columns before the unit.
FIGURES = {
    "ttft": ("ttft", "time_to_first_token"),
    "tpot": ("tpot", "itl", "time_per_output_token"),
    "e2e": ("e2e", "e2e_latency", "latency", "end_to_end"),
}
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
TIME = Column(1e-9, 1e15, whole=False, empty=nan)


def timed(names: Sequence[str], unit: str = "") -> list[tuple[str, str, float]]:
    """Columns of measured times: the name, the figure, and the unit in seconds (0 without a unit).

    >>> timed(["input_tokens", "TTFT_ms", "latency", "note"])
    [('TTFT_ms', 'ttft', 0.001), ('latency', 'e2e', 0.0)]
    """
    found = []
    for name in names:
        spelled = name.strip().lower().replace(" ", "_").replace("(", "").replace(")", "")
        for figure, stems in FIGURES.items():
            for suffix, scale in {"": UNITS.get(unit, 0.0), **{f"_{u}": s for u, s in UNITS.items()}}.items():
                if spelled in {stem + suffix for stem in stems}:
                    found.append((name, figure, scale))
    return found


class ChatTable(TableFormat):
    """A model, device and engine for the requests, because the table does not contain them."""

    name = "chat"
    numbers = FrozenDict(dict.fromkeys(("input_tokens", "output_tokens"), Column(1, LONGEST / 2)))

    def extra(self, names: Sequence[str]) -> dict[str, Column]:
        return {column: TIME for column, _, _ in timed(names)}
