"""Steps as code: `compile`, for those who ask for many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import convert
from .api import _model
from .graph import PHASES, Program
from .verify import checked_program

if TYPE_CHECKING:
    from .backends.analysis.step_code import StepCode
    from .backends.cost import CostModel


def compile(
    program: Program,
    hw: Any,
    *,
    phase: str | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    cache_policy: str = "exact",
) -> StepCode:
    """Steps of a program on a device as code, for searches and simulations that ask for many.

    The result is called with `batch`, `new` and `context`, numbers or arrays, and gives what `analyze` gives
    as `time_s` and `peak_memory_bytes`. Making it takes as long as some hundred reports; a point then takes
    some ten microseconds. Options are those of `analyze`; a cost model of yours cannot be compiled.
    """
    from .backends.analysis.step_code import StepCode

    model = _model(hw, cost, engine, efficiency)
    named = "" if phase is None else str(convert.choice("phase", phase, PHASES))
    return StepCode(checked_program(program), model, named, cache_policy)
