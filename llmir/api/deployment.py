"""How a model is deployed: its types, the ranks that share it, and how tokens come to experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict, Record

if TYPE_CHECKING:
    from llmir.hw.engine import Engine
    from llmir.ir.tools.pipeline import Pass, Step
    from llmir.passes.quantize import Quantize

Plan = Mapping[str, Mapping[str, str]]
_BEFORE = ("weights", "activations", "kv")


@dataclass(frozen=True, eq=False)
class Deployment(Record):
    """The choices of an operator, by the names of the command line; `""` leaves a type or a way as it is.

    `pp` is how many pipeline stages there are, or the layers of each, `plan` what quantize keeps by module.
    """

    weights: str = ""
    activations: str = ""
    kv: str = ""
    collectives: str = ""
    plan: Plan = FrozenDict()
    tp: int = 1
    pp: int | Sequence[int] = 1
    micro_batches: int = 1
    dp: int = 1
    ep: int = 1
    sp: bool = False
    redundant_experts: int = 0
    dispatch: str = ""
    routing: str = ""
    routing_skew: float | None = None

    def around(self, *pipeline: Step, runs: Engine | None = None, prompts: Sequence[Pass] = ()) -> list[Step]:
        """A pipeline between the passes that deploy: types and stages first, ranks and what they send last.

        `runs` is the engine, whose own way of bringing tokens to experts is the default, and `prompts` the
        passes that prompts go through. InputError for `sp` without `tp`; each pass checks its own options.
        """
        ranks = [*self._route(), *self._shard(), *self._dispatch(runs), *self._slices()]
        return [
            *self.types(),
            *prompts,
            *self._stages(),
            *pipeline,
            *ranks,
            *self._quantize(("collectives",)),
        ]

    def types(self) -> list[Quantize]:
        """The pass for the types of weights, activations and caches, if any are asked for."""
        return self._quantize(_BEFORE)

    def _quantize(self, roles: Sequence[str]) -> list[Quantize]:
        from llmir.passes.quantize import Quantize

        asked = {role: str(getattr(self, role)) for role in roles if getattr(self, role)}
        sent = "collectives" in roles
        said = {m: {r: of[r] for r in of if (r == "collectives") is sent} for m, of in self.plan.items()}
        plan = {module: of for module, of in said.items() if of}
        return [Quantize(**asked, plan=plan)] if asked or plan else []

    def _stages(self) -> list[Pass]:
        from llmir.passes.stages import Stages

        pp = self.pp
        asked = Stages(
            pp if isinstance(pp, int) else 1, "" if isinstance(pp, int) else pp, self.micro_batches
        )
        return [asked] if asked != Stages() else []

    def _route(self) -> list[Pass]:
        from llmir.passes.route import Route

        if self.routing and self.routing_skew is not None:
            raise InputError("routing_skew: routing says how tokens choose experts, leave one of them out")
        asked = Route(self.routing_skew or 0.0, self.routing)
        return [asked] if self.routing or self.routing_skew is not None else []

    def _shard(self) -> list[Pass]:
        from llmir.passes.shard import Shard

        if self.sp and self.tp == 1:
            raise InputError("sp: tokens are split over tensor-parallel ranks; say tp too")
        asked = Shard(self.tp, self.dp, self.ep, int(self.sp), self.redundant_experts)
        return [asked] if asked != Shard() else []

    def _dispatch(self, runs: Engine | None) -> list[Pass]:
        from llmir.passes.dispatch import DispatchBy

        from .usual import dispatch_of

        return [DispatchBy(self.dispatch)] if self.dispatch else dispatch_of(runs, self.dp, self.ep)

    def _slices(self) -> list[Pass]:
        """Stages send slices where each of several ranks holds all that they send."""
        from llmir.passes.slice_sends import SliceSends

        return [SliceSends()] if self.pp != 1 and self.tp > 1 and not self.sp else []
