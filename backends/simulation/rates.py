"""A server at several rates."""

from __future__ import annotations

from typing import Any

from llmir.dataclass import dataclass
from llmir.frozen import Figures
from llmir.views import Paged, Result

from .replications import Replications
from .simulation import Simulation


@dataclass(frozen=True, eq=False)
class Rates(Figures, Result, Paged):
    """Runs of one server, each at a rate of its own, or as many replications of each."""

    runs: tuple[Simulation, ...] | tuple[Replications, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        return self.runs[0].notes

    def to_dict(self) -> dict[str, Any]:
        """The JSON report of each, in order."""
        return {"runs": [run.to_dict() for run in self.runs]}

    def __repr__(self) -> str:
        return f"<Rates {len(self.runs)} × {self.runs[0]!r}>"
