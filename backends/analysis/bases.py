"""What the times of two sides of a comparison are made of, and whether that is the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmir.backends.analysis.report import Report
from llmir.backends.cost import Basis, Calibrated, Model
from llmir.errors import InputError


@dataclass(frozen=True)
class Side:
    """One side: its model, and each basis of its times with the share of its ops that they are."""

    model: Model
    shares: dict[Basis, float]

    @property
    def kind(self) -> str:
        """calibrated, roofline or efficiency."""
        return "roofline" if self.model.name == "ideal" else self.model.name

    @property
    def engine(self) -> str | None:
        """Whose kernels, with whose host if that is another's."""
        if not isinstance(self.model, Calibrated):
            return None
        kernels, asked = self.model.kernels, self.model.engine
        return kernels if asked in (None, kernels) else f"{kernels}, host of {asked}"

    @property
    def source(self) -> str:
        """Where the kernels of most of the time were measured."""
        main = max(self.shares, key=lambda basis: self.shares[basis])
        return f"borrowed from {main.device}" if main.borrowed else f"measured on {self.model.device.name}"

    @property
    def outside(self) -> float:
        """The share of time that is the roofline's beside calibrated kernels."""
        other = sum(share for basis, share in self.shares.items() if basis.kind != self.kind)
        return other / (sum(self.shares.values()) or 1.0)


@dataclass(frozen=True)
class Bases:
    """The basis of both sides of a comparison; `why` it is the roofline, where nobody asked for that."""

    before: Side
    after: Side
    why: str = ""

    def __str__(self) -> str:
        return "; ".join(self.words())

    def words(self) -> Sequence[str]:
        """What both sides share, then what differs."""
        old, new = self.before, self.after
        if old.kind != "calibrated":
            bound = ", a lower bound" if old.kind == "roofline" else ""
            return [f"{old.kind} on both sides{bound}" + (f": {self.why}" if self.why else "")]
        said = ["calibrated" + (f", {old.engine} kernels" if old.engine == new.engine else "")]
        if old.engine != new.engine:
            said.append(f"by kernels of {old.engine} before, of {new.engine} after")
        sources = dict.fromkeys((old.source, new.source))
        said.append(
            " on both sides".join([*sources, ""]) if len(sources) == 1 else _pair(old.source, new.source)
        )
        if old.outside or new.outside:
            shares = _pair(*(f"{100 * side.outside:.0f}%" for side in (old, new)))
            said.append(f"between nodes by the roofline: {shares} of the ops' time")
        return said

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {"before": self.before, "after": self.after}
        return {
            "kind": self.before.kind,
            "engine": {name: side.engine for name, side in sides.items()},
            "why": self.why or None,
            **{name: {str(b): share for b, share in side.shares.items()} for name, side in sides.items()},
        }


def bases(before: Iterable[Report], after: Iterable[Report], why: str = "") -> Bases:
    """The bases of two sides; `InputError` if times of the one are measured and of the other are not."""
    found = Bases(_side(before), _side(after), why)
    if found.before.kind != found.after.kind:
        named = (f"{side.kind} for {side.model.device.name}" for side in (found.before, found.after))
        raise InputError(
            f"diff: times of two kinds do not compare, {' and '.join(named)}; "
            "price both alike (cost='ideal'), or give programs and devices"
        )
    return found


def _pair(old: str, new: str) -> str:
    return f"{old} before, {new} after"


def _side(reports: Iterable[Report]) -> Side:
    shares: dict[Basis, float] = {}
    models = []
    for report in reports:
        models.append(report.plan.model)
        for op in report.ops:
            shares[op.basis] = shares.get(op.basis, 0.0) + op.repeat * float(op.time_s)
    whole = sum(shares.values()) or 1.0
    largest = sorted(shares, key=lambda basis: -shares[basis])
    return Side(models[0], {basis: shares[basis] / whole for basis in largest})
