"""What the times of two sides of a comparison are made of, and whether that is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmir.backends.cost.calibrated import Calibrated
from llmir.backends.cost.op_time import Model
from llmir.backends.cost.relatives import kernels_of
from llmir.backends.step.report import Report
from llmir.backends.work.basis import Basis
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import Figures


@dataclass(frozen=True)
class Side(Figures):
    """One side: its model, each basis of its ops' times with the share of it, and the mean relative error."""

    model: Model
    shares: Mapping[Basis, float]
    error: float | None

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
        """Where most kernels were measured, and how far off their times are."""
        device, whose = self.model.device, kernels_of(self.model.device)
        where = f"borrowed from {whose.name}" if whose and whose != device else f"measured on {device.name}"
        return where + (f" ± {100 * self.error:.0f}%" if self.error is not None else "")

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
        """What both sides share, then what differs; each is a short line."""
        old, new = self.before, self.after
        if old.kind != "calibrated":
            reason = f": {self.why}" if self.why else ", a lower bound" if old.kind == "roofline" else ""
            return [f"{old.kind} on both sides{reason}"]
        same = f"calibrated, {old.engine} kernels on both sides"
        said = [
            same if old.engine == new.engine else f"calibrated, {_pair('kernels of', old.engine, new.engine)}"
        ]
        said += (
            [f"both {old.source}"]
            if old.source == new.source
            else [f"before {old.source}", f"after {new.source}"]
        )
        if old.outside or new.outside:
            shares = (f"{100 * side.outside:.0f}%" for side in (old, new))
            reasons = {
                b.why or "without a kernel" for s in (old, new) for b in s.shares if b.kind == "roofline"
            }
            said.append(_pair(f"by the roofline, {', '.join(sorted(reasons))}:", *shares))
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


def _pair(what: str, old: str | None, new: str | None) -> str:
    return f"{what} {old} before, {new} after"


def _side(reports: Iterable[Report]) -> Side:
    shares: dict[Basis, float] = {}
    models, known, off = [], 0.0, 0.0
    for report in reports:
        models.append(report.plan.model)
        for op in report.work:
            time = op.repeat * float(op.time_s)
            shares[op.basis] = shares.get(op.basis, 0.0) + time
        if report.error is not None:
            time = float(report.time_s)
            known, off = known + time, off + time * float(report.error)
    whole = sum(shares.values()) or 1.0
    largest = sorted(shares, key=lambda basis: -shares[basis])
    error = off / known if known else None
    return Side(models[0], {basis: shares[basis] / whole for basis in largest}, error)
