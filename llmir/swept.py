"""Sweeps: steps of a model in many structures, at many points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import fields
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from . import convert
from .api import load, run
from .errors import LlmirError
from .graph import Program

if TYPE_CHECKING:
    from .backends.search.part import Part, Points
    from .backends.search.sweep import Sweep
    from .pipeline import Step

Structure = Mapping[str, Any]


def sweep(
    model: object,
    axes: Mapping[str, object],
    *,
    pipeline: Step | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Sweep:
    """Each step of a model in all combinations of some axes, which `analyze` would say one by one.

    `model` is what `load` takes, or a program. Axes of the structure are `hw`, `engine`, `cost`, the types
    `weights`, `activations`, `kv` and `collectives`, the ranks `tp`, `pp`, `micro_batches`, `dp`, `ep`, `sp`
    and `redundant_experts`, `dispatch` and `routing`; of points `batch`, `new` and `context`. Values are
    numbers and names, or as on the command line, `"1:64:x2"`. `pipeline` are the passes between types and
    ranks, by default the engine's. An `executor` of `concurrent.futures` spreads structures over workers, and
    `progress` is told how many of them are done, of how many. A structure that cannot be is a row that says
    why.

    InputError for axes and values that mean nothing, and what `load` raises.

    >>> found = sweep("llama3.1-8b", {"tp": (1, 3), "batch": "1:16:x4", "context": 1000})
    >>> [row["batch"] for row in found.rows()]
    [1, 4, 16, None]
    >>> found.columns["refused"][-1]
    "shard: axis 'kv_heads' is 8 and cannot be split 3 ways over mesh axis 'tp'; tp can be 1, 2, 4, 8, 16, 32"
    """
    from .backends.search.axes import POINTS, axis
    from .backends.search.sweep import Sweep

    said = convert.mapping("axes", axes, "axes by name")
    if executor is not None and not isinstance(executor, Executor):
        convert.refuse("executor", executor, "an Executor of concurrent.futures")
    if progress is not None and not callable(progress):
        convert.refuse("progress", progress, "a function of how many are done, of how many")
    given = {**({} if "hw" in said else {"hw": "h100-sxm"}), **said}
    given = {**{name: given[name] for name in given if name not in POINTS}, **POINTS, **given}
    found = {name: axis(name, value) for name, value in given.items()}
    program = model if isinstance(model, Program) else load(model)
    names = [name for name in found if name not in POINTS]
    structures = [dict(zip(names, values, strict=True)) for values in product(*(found[n] for n in names))]
    points: Any = tuple(found[name] for name in POINTS)
    one = partial(_part, program, pipeline, points)
    parts = []
    for part in (executor.map if executor else map)(one, structures):
        parts.append(part)
        if progress:
            progress(len(parts), len(structures))
    return Sweep(found, parts)


def _part(program: Program, pipeline: Step | None, points: Points, structure: Structure) -> Part:
    """The rows of one structure."""
    from .backends.cost import model
    from .backends.search.part import part, refused
    from .deployment import Deployment
    from .hw import load as device
    from .usual import passes_of

    try:
        priced = model(device(structure["hw"]), structure.get("cost"), structure.get("engine"), None)
        own = {f.name: structure[f.name] for f in fields(Deployment) if structure.get(f.name) is not None}
        deployed: Any = Deployment(**own)
        steps = deployed.around(passes_of(priced.runs) if pipeline is None else pipeline, runs=priced.runs)
        return part(structure, run(program, steps), priced, points)
    except LlmirError as error:
        return refused(structure, error.__cause__ or error if pipeline is None else error)
