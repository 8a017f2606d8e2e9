"""A step of one program in several numbers of pipeline stages, without cutting it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.ir.core.program import PHASES
from llmir.ir.tools.loops import cut_sizes
from llmir.ir.tools.verify import checked_program

from .many import cut

if TYPE_CHECKING:
    from llmir.backends.cost.own import CostModel
    from llmir.backends.step.staged import InStages


def stages(
    program: Any,
    hw: Any,
    stages: Iterable[int | Sequence[int]],
    *,
    batch: Any = 1,
    new: Any = 1,
    context: Any = 0,
    phase: str | None = None,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    cache_policy: str = "exact",
) -> tuple[InStages, ...]:
    """One step of a program in each of `stages`: how many pipeline stages, or the layers of each of them.

    Its figures are those that `analyze` gives of what the passes `stages` and `slice-sends` make of the
    program, which are best the last of its passes; but layers are lowered and priced once for all. Other
    arguments are as there.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-405b"), f"{llmir.DEFAULT_PIPELINE},shard{{tp=8}}")
    >>> for step in llmir.stages(program, "h200", (1, 2, (30, 32, 32, 32)), batch=32, context=2048):
    ...     print(step.layers, [round(stage.peak_memory_bytes / 1e9) for stage in step.stages])
    (126,) [106]
    (63, 63) [53, 53]
    (30, 32, 32, 32) [25, 27, 27, 27]
    """
    from llmir.backends.memory.caches import policy
    from llmir.backends.step.sizes import checked, running
    from llmir.backends.step.staged import in_stages, staged

    from .estimate import _model

    program, model = checked_program(program), _model(hw, cost, engine, efficiency)
    asked = arguments.items("stages", stages, "numbers of stages, or layers of each")
    cuts = list(map(cut, asked))
    named = "" if phase is None else arguments.choice("phase", phase, PHASES)
    runs, _, at = running(program, (checked(batch, new, context),), named)
    by, sizes = policy(cache_policy).name, [cut_sizes(program, each) for each in cuts]
    return tuple(in_stages(staged(runs, model, each, by), each, at) for each in sizes)
