"""Steps and requests of many programs at once: `candidates`, for searches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.ir.core.program import Program
from llmir.ir.tools.loops import cut_sizes
from llmir.ir.tools.verify import checked_program

if TYPE_CHECKING:
    from llmir.backends.cost.own import CostModel
    from llmir.backends.request.candidates import Candidates

Structure = Program | tuple[Program, int | Sequence[int]]


def candidates(
    programs: Iterable[Structure],
    hw: Any,
    *,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    cache_policy: str = "exact",
) -> Candidates:
    """Programs that are compared at the same points: what is the same in several is priced once.

    Each is a program, or a pair of one and the pipeline stages that it is in, as `llmir.stages` takes them.
    Their figures are those that `analyze` and `workload` (with chunk="all") give of each; other arguments
    are as there.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-70b"), llmir.DEFAULT_PIPELINE)
    >>> split = [(llmir.run(program, f"shard{{tp={8 // pp}}}"), pp) for pp in (1, 2, 4)]
    >>> jobs = llmir.candidates(split, "h100-sxm").requests(batch=[1, 64], prompt=2000, generate=200)
    >>> jobs.tpot_s.shape
    (3, 2)
    """
    from llmir.backends.request.candidates import Candidates

    from .estimate import _model

    model = _model(hw, cost, engine, efficiency)
    found = []
    for each in arguments.items("programs", programs, "programs, or pairs of one and its stages"):
        program, stages = each if isinstance(each, tuple) and len(each) == 2 else (each, 1)
        program = checked_program(program)
        layers = cut(stages)
        found.append((program, (1,) if layers == 1 else cut_sizes(program, layers)))
    return Candidates(found, model, cache_policy)


def cut(stages: Any) -> int | list[int]:
    """How many stages, or the layers of each; `InputError` for neither."""
    if isinstance(stages, int):
        return arguments.integer("stages", stages, 1)
    either = "layers, or a number of stages"
    return [arguments.integer("stages: layers", n, 1) for n in arguments.items("stages", stages, either)]
