"""Steps as functions for many evaluations: `compile`, `emit` and `surface`.

`compile` gives a Python function, `emit` a module in JavaScript or Python, and `surface` the time of a step
of any composition of decodes and prompt chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.ir.core.program import PHASES, Program

from .estimate import deploy

if TYPE_CHECKING:
    from llmir.backends.step.compile import StepCode
    from llmir.backends.step.composition import Surface

    from .options import Estimation


def compile(
    program: Program | object,
    hw: Any,
    *,
    phase: str | None = None,
    estimation: Estimation | None = None,
    cache_policy: str = "exact",
    by: str = "numpy",
) -> StepCode:
    """Steps of a program on a device as code, for searches and simulations that ask for many.

    The result is called with `batch`, `new` and `context`, numbers or arrays, and gives what `analyze` gives
    as `time_s` and `peak_memory_bytes`. The first point takes as long as some ten reports, and the 65th batch
    some hundred; a point then takes some ten microseconds. Options are those of `analyze`; a cost model of
    yours cannot be compiled. `by` says what grids of 100,000 points and more run as: "numpy", or "numba",
    which compiles a loop first, in a second or a few, and keeps it in a folder for later processes.
    `program` is a program, or a model as in `analyze`.
    """
    from llmir.backends.step.compile import StepCode

    lowered, model = deploy(program, hw, estimation)
    named = "" if phase is None else str(arguments.choice("phase", phase, PHASES))
    return StepCode(lowered, model, named, cache_policy, by)


def emit(
    program: Program | object,
    hw: Any,
    *,
    to: str = "js",
    phase: str | None = None,
    estimation: Estimation | None = None,
    cache_policy: str = "exact",
) -> str:
    """Steps of a program on a device as a module for others to run: JavaScript (`js`) or Python (`py`).

    It needs nothing beside itself. Its `price(batch, new, context)` gives seconds and bytes as `analyze`
    does, `ops` the rows of a report with exact FLOPs and bytes; `about` says what it is of. Options are those
    of `analyze`; a cost model of yours cannot be emitted. `program` is a program, or a model as in `analyze`.

    >>> import llmir
    >>> model, names = llmir.run(llmir.load("gpt2"), llmir.pipeline_of()), {}
    >>> exec(emit(model, "h100-sxm", to="py"), names)
    >>> names["price"](8, 1, 500)["time_s"] == llmir.analyze(model, "h100-sxm", batch=8, context=500).time_s
    True
    """
    from llmir.backends.export.source_code import emit_source
    from llmir.backends.request.portable import PortableProgram
    from llmir.base.version import __version__

    named = "" if phase is None else str(arguments.choice("phase", phase, PHASES))
    lowered, model = deploy(program, hw, estimation)
    return emit_source(PortableProgram(lowered, model, named, cache_policy), to, __version__)


def surface(
    program: Program | object,
    hw: Any,
    *,
    estimation: Estimation | None = None,
) -> Surface:
    """The time of a step of any composition, for simulations: what decodes, beside chunks of prompts.

    `step(decodes, kept, chunks)` gives seconds. `kept` has of each function in `keeps` the sum over the
    sequences that decode, such as of `C` and of `min(C, 127)`: each counts with its own context. `chunks` are
    pairs of new and cached tokens of prompts that the same step reads. Options are those of `analyze`, and
    `program` is a program, or a model as there.

    >>> import llmir
    >>> steps = surface(llmir.run(llmir.load("gpt-oss-20b"), llmir.pipeline_of()), "h100-sxm")
    >>> steps.keeps
    (C, min(C, 127))
    >>> steps.kept([100, 900])
    (1000, 227)
    >>> alone, beside = steps.step(2, (1000, 227)), steps.step(2, (1000, 227), [(512, 0)])
    >>> alone < beside
    True
    """
    from llmir.backends.step.composition import Surface

    return Surface(*deploy(program, hw, estimation))
