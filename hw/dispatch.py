"""How an engine brings tokens to experts of other ranks unless it is told another way."""

from __future__ import annotations

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.ir.core.dispatch_modes import FORMS

from .engine import section
from .schema import show


@dataclass(frozen=True)
class Dispatch:
    """The engine's own form of dispatch."""

    by: str


@section("dispatch")
def dispatch(value: object, where: str) -> Dispatch:
    """One of the forms; HardwareError for anything else."""
    if value not in FORMS:
        raise HardwareError(f"{where} must be one of {', '.join(FORMS)}, got {show(value)}")
    return Dispatch(str(value))
