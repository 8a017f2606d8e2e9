"""Deployments: element types, the split over ranks, and the passes that an engine runs by default.

`Deployment` turns the choices of an operator into passes. `pipeline_of` gives the passes of an engine, and
`DEFAULT_PIPELINE` those that run where no engine is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError
from llmir.base.values import Record

from .options import Parallel, Precision, options

if TYPE_CHECKING:
    from llmir.hw.engine import Engine
    from llmir.ir.tools.pipeline import Pass, Step
    from llmir.passes.quantize import Quantize

_BEFORE = ("weights", "activations", "kv")


@dataclass(frozen=True, eq=False)
class Deployment(Record):
    """The element types of a model, and its ranks."""

    precision: Precision = Precision()
    parallel: Parallel = Parallel()

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Deployment:
        """The deployment that options say by name; None, or a name of another record, says nothing.

        >>> Deployment.of({"tp": 2, "kv": "fp8", "hw": "h200", "weights": None})
        Deployment(precision=Precision(kv='fp8'), parallel=Parallel(tp=2))
        """
        named = {
            kind: {
                each.name: chosen[each.name] for each in options(kind) if chosen.get(each.name) is not None
            }
            for kind in (Precision, Parallel)
        }
        return cls(Precision(**named[Precision]), Parallel(**named[Parallel]))

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

        asked = {role: str(getattr(self.precision, role)) for role in roles if getattr(self.precision, role)}
        sent = "collectives" in roles
        said = {
            m: {r: of[r] for r in of if (r == "collectives") is sent}
            for m, of in (self.precision.plan or {}).items()
        }
        plan = {module: of for module, of in said.items() if of}
        return [Quantize(**asked, plan=plan)] if asked or plan else []

    def _stages(self) -> list[Pass]:
        from llmir.passes.stages import Stages

        pp = self.parallel.pp
        asked = Stages(
            pp if isinstance(pp, int) else 1, "" if isinstance(pp, int) else pp, self.parallel.micro_batches
        )
        return [asked] if asked != Stages() else []

    def _route(self) -> list[Pass]:
        from llmir.passes.route import Route

        routing, skew = self.parallel.routing, self.parallel.routing_skew
        if routing and skew is not None:
            raise InputError("routing_skew: routing says how tokens choose experts, leave one of them out")
        return [Route(skew or 0.0, routing or "")] if routing or skew is not None else []

    def _shard(self) -> list[Pass]:
        from llmir.passes.shard import Shard

        over = self.parallel
        if over.sp and over.tp == 1:
            raise InputError("sp: tokens are split over tensor-parallel ranks; say tp too")
        asked = Shard(over.tp, over.dp, over.ep, int(over.sp), over.redundant_experts)
        return [asked] if asked != Shard() else []

    def _dispatch(self, runs: Engine | None) -> list[Pass]:
        from llmir.passes.dispatch import DispatchBy

        over = self.parallel
        return [DispatchBy(over.dispatch)] if over.dispatch else dispatch_of(runs, over.dp, over.ep)

    def _slices(self) -> list[Pass]:
        """Stages send slices where each of several ranks holds all that they send."""
        from llmir.passes.slice_sends import SliceSends

        over = self.parallel
        return [SliceSends()] if over.pp != 1 and over.tp > 1 and not over.sp else []


# What an inference engine does to every model; the command line's default.
DEFAULT_PIPELINE = "absorb-mla{phase=decode},fuse-attention,fuse,dce"


def pipeline_of(engine: str | None = None) -> str:
    """The passes that an engine runs by default, `vllm@0.12` at a version; `DEFAULT_PIPELINE` of none.

    HardwareError for an unknown engine.

    >>> pipeline_of("hf-transformers")
    'concat-caches,fuse-attention,split-norms,dce'
    >>> pipeline_of("vllm@0.6")
    'rotate,absorb-mla{phase=decode},fuse-attention,fuse,dce,pad-vocab'
    """
    from llmir.hw import library

    return passes_of(
        None if engine is None else library.engine(arguments.text("engine", engine, error=HardwareError))
    )


def engines() -> dict[str, str]:
    """The passes of the newest version of each engine, by its name and version."""
    from llmir.hw import library

    newest = map(library.engine, library.engines())
    return {str(engine): passes_of(engine) for engine in newest}


def passes_of(engine: Engine | None) -> str:
    """The passes that an engine runs by default; `DEFAULT_PIPELINE` of none."""
    from llmir.hw.engine_sections import Passes

    passes = engine.section(Passes) if engine else None
    return passes.pipeline if passes else DEFAULT_PIPELINE


def dispatch_of(engine: Engine | None, dp: int, ep: int) -> list[Pass]:
    """The pass by which an engine brings tokens to experts, where its ranks have tokens of their own."""
    from llmir.hw.engine_sections import EngineDispatch
    from llmir.passes.dispatch import DispatchBy

    said = engine.section(EngineDispatch) if engine and gcd(dp, ep) > 1 else None
    return [DispatchBy(said.by)] if said else []


def engine_pipeline(devices: list[Any], options: Mapping[str, Any]) -> str:
    """The passes of the engine that prices a model on these devices by `cost`, `engine` and `efficiency`.

    `DEFAULT_PIPELINE` where none does, or different ones would.
    """
    from llmir.backends.cost.models import model
    from llmir.hw.library import load

    priced = [model(load(device), **options) for device in devices]
    found = {passes_of(each.runs) for each in priced}
    return found.pop() if len(found) == 1 else passes_of(None)
