"""Interactive pages: one HTML file with a model in several configurations (`page`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.errors import InputError, LlmirError
from llmir.base.formats import Page
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import steps_of

from .load import ModelSource, run
from .options import Estimation, Memory, option

if TYPE_CHECKING:
    from llmir.backends.export.page.setups import Setup
    from llmir.ir.tools.pipeline import Step

AXES = {"hw": option(Estimation, "hw").shown}


def page(
    model: object,
    axes: Mapping[str, object] | None = None,
    *,
    batch: int = 32,
    prompt: int = 2048,
    generate: int = 128,
    pipeline: Step | Sequence[Step] | None = None,
    memory_utilization: float | None = None,
    max_size: int | None = None,
) -> Page:
    """Build an HTML page that computes the results of `workload` for a model in several configurations.

    The page is one file that opens from disk without a server. A notebook displays it.

    Args:
        model: A model as in `load`, or a program, which is estimated as it is.
        axes: The axes of the configurations, as in `sweep`, such as `{"hw": "h100-sxm,h200", "tp": (1, 2)}`.
            The page has one configuration for each combination.
        batch, prompt, generate: The first positions of the sliders.
        pipeline: The passes between dtypes and ranks. The default is the engine's passes.
        memory_utilization: The usable share of the device memory.
        max_size: Largest size of the page in bytes. The default is 5 MB.

    Returns:
        A `Page`.

    Raises:
        InputError: An axis is invalid, there are more than 64 combinations, the page is too large, or the
            model has image inputs or prefix attention.

    >>> html = page("llama3.2-1b", {"tp": (1, 2)})
    >>> html.startswith("<!doctype html>"), len(html) < 250_000
    (True, True)
    """
    from llmir.backends.export.page.bundle import SIZE
    from llmir.backends.export.page.bundle import page as page_html
    from llmir.base.version import __version__

    start = {
        name: arguments.integer(name, value, 1)
        for name, value in (("batch", batch), ("prompt", prompt), ("generate", generate))
    }
    size = SIZE if max_size is None else arguments.integer("max_size", max_size, 1)
    share = option(Memory, "memory_utilization").check(memory_utilization)
    return Page(page_html(setups(model, axes, pipeline, share), start, __version__, size))


def setups(
    model: object,
    axes: Mapping[str, object] | None = None,
    pipeline: Step | Sequence[Step] | None = None,
    memory_utilization: float | None = None,
) -> list[Setup]:
    """The configurations of a page: all combinations of its axes, where the last axis varies fastest."""
    from llmir.backends.export.page.bundle import MOST
    from llmir.backends.search.sweep import POINTS
    from llmir.hw.library import check_unique
    from llmir.hw.library import load as load_device

    from .sweep import axis

    said = arguments.mapping("axes", {} if axes is None else axes, "axes by name")
    for name in said:
        if name in POINTS:
            raise InputError(f"{name}: is a slider of the page; leave it out of the axes")
    values = {name: axis(name, value) for name, value in {**AXES, **said}.items()}
    if (count := prod(map(len, values.values()))) > MOST:
        most = ", ".join(f"{name} has {len(its)}" for name, its in values.items() if len(its) > 1)
        raise InputError(
            f"{count:,} configurations; a page has at most {MOST}; leave some values out: {most}"
        )
    check_unique(
        [load_device(str(hw)) for hw in values["hw"]]
    )  # an unknown name is an error, and not an impossible configuration
    source = ModelSource.of(model)
    program = source.load()
    passes = steps_of(pipeline) if pipeline is not None else () if source.is_program else None
    made = (
        setup(program, passes, dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())
    )
    return [replace(each, memory_utilization=memory_utilization) for each in made]


def setup(program: Program, pipeline: tuple[Step, ...] | None, structure: Mapping[str, Any]) -> Setup:
    """Build one configuration of a page, or the reason why it is impossible.

    `structure` contains one value for each axis.
    """
    from llmir.backends.cost.models import model
    from llmir.backends.export.page.setups import Setup
    from llmir.hw.library import load as load_device

    from .deployment import Deployment, passes_of

    try:
        priced = model(load_device(structure["hw"]), structure.get("cost"), structure.get("engine"), None)
        deployed = Deployment.of(structure)
        passes = (passes_of(priced.runs),) if pipeline is None else pipeline
        steps = deployed.around(*passes, model=priced)
        said = ",".join(filter(None, map(str, steps)))
        return Setup(structure, run(program, steps), priced, passes=said)
    except LlmirError as error:
        return Setup(structure, why=str(error.__cause__ or error if pipeline is None else error))
