"""Compile steps for many evaluations: `compile`, `emit` and `surface`.

`compile` returns a Python function, `emit` the source of a JavaScript or Python module, and `surface` the
time of a step with any mix of decodes and prefill chunks.
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
    """Compile the steps of a program on a device, for searches and simulations that evaluate many points.

    Call the result with `batch`, `new` and `context` (numbers or arrays). It returns `time_s` and
    `peak_memory_bytes`, equal to the values of `analyze`. The first point takes about as long as ten reports,
    and the 65th batch size (for which shorter code is compiled) about as long as a hundred. Later points take
    about ten microseconds each.

    Args:
        program: A program, or a model as in `analyze`.
        hw: The device.
        phase: The phase of a program with several phases, as in `analyze`.
        estimation: The cost model (`Estimation`). A custom cost model cannot be compiled.
        cache_policy: The rule of cache allocation, as in `analyze`.
        by: Evaluation of grids with 100,000 points or more: "numpy", or "numba". Numba compiles a loop first,
            which takes seconds, and caches it on disk for later processes.

    Returns:
        A `StepCode`.

    Raises:
        InputError: The cost model cannot be compiled, or numba is not installed.

    >>> import llmir
    >>> code = compile("gpt2", "h100-sxm", phase="decode")
    >>> code(8, 1, 500).time_s == llmir.analyze("gpt2", "h100-sxm", batch=8, context=500).time_s
    True
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
    """Write the steps of a program on a device as a standalone module in JavaScript or Python.

    The module has no dependencies. Its function `price(batch, new, context)` returns seconds and bytes as
    `analyze` does. Its function `ops` returns the rows of a report with exact FLOPs and bytes, and `about`
    describes the model.

    Args:
        program: A program, or a model as in `analyze`.
        hw: The device.
        to: The language: `js` or `py`.
        phase: The phase of a program with several phases, as in `analyze`.
        estimation: The cost model (`Estimation`). A custom cost model cannot be emitted.
        cache_policy: The rule of cache allocation, as in `analyze`.

    Returns:
        The source of the module.

    Raises:
        InputError: The language is unknown, or the cost model cannot be emitted.

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
    """Build a function for the time of a step with any mix of decodes and prefill chunks, for simulations.

    `step(decodes, kept, chunks)` of the result returns seconds. `kept` contains, for each function in
    `keeps`, its sum over the decoding sequences; for example, the sums of `C` and of `min(C, 127)`, where C
    is the context of one sequence. `chunks` are pairs of new and cached tokens, one for each prompt that the
    step prefills.

    Args:
        program: A program, or a model as in `analyze`.
        hw: The device.
        estimation: The cost model (`Estimation`).

    Returns:
        A `Surface`.

    Raises:
        HardwareError: The device, the engine or the cost model is unknown.

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
