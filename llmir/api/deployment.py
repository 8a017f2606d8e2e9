"""Deployments: dtypes, the split over ranks, and the default passes of an engine.

`Deployment` turns the choices of an operator into passes. `pipeline_of` returns the passes of an engine.
`default_steps` decides which of them an estimate runs, in Python and on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError, PassError
from llmir.base.values import Record

from .load import ModelSource, run
from .options import Parallel, Precision, options

if TYPE_CHECKING:
    from llmir.backends.cost.op_time import DeviceCostModel
    from llmir.hw.device import Device
    from llmir.hw.engine import Engine
    from llmir.ir.core.program import Program
    from llmir.ir.tools.pipeline import Pass, Step
    from llmir.passes.quantize import Quantize

_BEFORE = ("weights", "activations", "kv")


@dataclass(frozen=True, eq=False)
class Deployment(Record):
    """The dtypes of a model, and the ranks that share it."""

    precision: Precision = Precision()
    parallel: Parallel = Parallel()

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Deployment:
        """Build a deployment from options by name. Options that are None, and names that belong to other
        records, are ignored.

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

    def around(
        self, *pipeline: Step, model: DeviceCostModel | None = None, prompts: Sequence[Pass] = ()
    ) -> list[Step]:
        """Build a pipeline: dtypes and stages, then the given passes, then ranks and collectives.

        Args:
            pipeline: The passes in the middle of the pipeline, such as the default passes of an engine.
            model: The cost model. Its engine decides how fp8 weights run and how tokens reach experts, unless
                `dispatch` is set.
            prompts: Passes for prompts; they run before the model is split over ranks.

        Raises:
            InputError: `sp` without `tp`. Each pass checks its own options.
            HardwareError: The engine has no kernel for fp8 weights on the device.
        """
        runs = model.runs if model else None
        ranks = [*self._route(), *self._shard(), *self._dispatch(runs), *self._slices()]
        return [
            *self.types(model),
            *(expert_inputs(runs, model.device, self.precision) if model and any(pipeline) else ()),
            *prompts,
            *self._stages(),
            *pipeline,
            *ranks,
            *self._quantize(("collectives",), self.precision),
        ]

    def types(self, model: DeviceCostModel | None = None) -> list[Quantize]:
        """The pass that sets the dtypes of weights, activations and caches; empty if none is set."""
        return self._quantize(_BEFORE, self.precision if model is None else self.precision_on(model))

    def precision_on(self, model: DeviceCostModel) -> Precision:
        """The dtypes as the engine of a cost model runs them on its device.

        If the engine multiplies in fp8, matrix products with fp8 weights use fp8 activations, unless another
        dtype is set.
        """
        if not is_fp8(self.precision.weights):
            return self.precision
        from llmir.hw.engine_sections import fp8_support

        found = fp8_support(model.runs, model.device)
        implied = found.activations and self.precision.activations is None
        return replace(self.precision, activations="fp8") if implied else self.precision

    def _quantize(self, roles: Sequence[str], precision: Precision) -> list[Quantize]:
        from llmir.passes.quantize import Quantize

        asked = {role: str(getattr(precision, role)) for role in roles if getattr(precision, role)}
        sent = "collectives" in roles
        said = {
            m: {r: of[r] for r in of if (r == "collectives") is sent}
            for m, of in (precision.plan or {}).items()
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
            raise InputError("routing_skew: cannot be combined with routing; leave one of them out")
        return [Route(skew or 0.0, routing or "")] if routing or skew is not None else []

    def _shard(self) -> list[Pass]:
        from llmir.passes.shard import Shard

        over = self.parallel
        if over.sp and over.tp == 1:
            raise InputError("sp: requires tp, because tokens are split over tensor-parallel ranks")
        asked = Shard(over.tp, over.dp, over.ep, int(over.sp), over.redundant_experts)
        return [asked] if asked != Shard() else []

    def _dispatch(self, runs: Engine | None) -> list[Pass]:
        from llmir.passes.dispatch import DispatchBy

        over = self.parallel
        return [DispatchBy(over.dispatch)] if over.dispatch else dispatch_of(runs, over.dp, over.ep)

    def _slices(self) -> list[Pass]:
        """The pass that sends slices between stages; empty unless several ranks of a stage have equal
        activations.
        """
        from llmir.passes.slice_sends import SliceSends

        over = self.parallel
        return [SliceSends()] if over.pp != 1 and over.tp > 1 and not over.sp else []


def expert_inputs(runs: Engine | None, device: Device | None, precision: Precision) -> list[Pass]:
    """The pass that quantizes the inputs of experts as the engine does on this device.

    The list is empty if the engine has no such rule or if the activations have a dtype already.
    """
    from llmir.hw.engine_sections import ExpertInputs
    from llmir.passes.expert_activations import ExpertActivations

    rule = runs.section(ExpertInputs) if runs else None
    if rule is None or device is None or precision.activations or not rule.on(device):
        return []
    return [ExpertActivations(rule.weights, rule.activations)]


def is_fp8(weights: str | None) -> bool:
    """Whether weights have the fp8 dtype that engines multiply, with any scales.

    >>> [is_fp8(name) for name in ("fp8", "fp8_b128x128", "fp8_e5m2", "int8", None)]
    [True, True, False, False, False]
    """
    from llmir.passes.formats import format_of

    return bool(weights) and format_of("weights", str(weights)).plain.short == "fp8"


def lower(program: Program, steps: Iterable[Step], *, written: bool = False) -> Program:
    """Run a pipeline on a program.

    If `written` is false, the user has not written the pipeline, and errors name only the pass. If no pass of
    an engine runs in a pipeline that splits or quantizes a model, the result has a note.
    """
    from llmir.backends.step.facts import is_as_loaded, with_note

    try:
        after = run(program, list(steps))
        if after is program or written or after.is_lowered or not is_as_loaded(program):
            return after
        return after.replace(notes=with_note(after))
    except PassError as error:
        if not written and isinstance(error.__cause__, PassError):
            raise error.__cause__ from None
        raise


def default_steps(source: ModelSource, engine: Engine | None) -> tuple[str, ...]:
    """The passes that lower a model before an estimate: the engine's passes, or none for a program."""
    return () if source.is_program else (passes_of(engine),)


_WITHOUT_ENGINE = "absorb-mla{phase=decode},fuse-attention,fuse,dce"


def pipeline_of(engine: str | None = None) -> str:
    """The default passes of an engine; without an engine, the fusions that all engines share.

    A model given by name, path or config runs these passes. An estimate without an engine, such as with
    `cost="ideal"`, runs `pipeline_of()`.

    Args:
        engine: An engine with an optional version, such as `vllm@0.12`.

    Returns:
        The pipeline as text.

    Raises:
        HardwareError: The engine is unknown.

    >>> pipeline_of("hf-transformers")
    'concat-caches,fuse-attention,eager,dce'
    >>> pipeline_of("vllm@0.6")
    'rotate,absorb-mla{phase=decode},fuse-attention,fuse,dce,pad-vocab'
    >>> pipeline_of()
    'absorb-mla{phase=decode},fuse-attention,fuse,dce'
    """
    from llmir.hw import library

    return passes_of(
        None if engine is None else library.engine(arguments.text("engine", engine, error=HardwareError))
    )


def engines() -> dict[str, str]:
    """The default passes of the newest version of each engine, by name and version."""
    from llmir.hw import library

    newest = map(library.engine, library.engines())
    return {str(engine): passes_of(engine) for engine in newest}


def passes_of(engine: Engine | None) -> str:
    """The default passes of an engine, or of `pipeline_of()` without an engine."""
    from llmir.hw.engine_sections import Passes

    passes = engine.section(Passes) if engine else None
    return passes.pipeline if passes else _WITHOUT_ENGINE


def dispatch_of(engine: Engine | None, dp: int, ep: int) -> list[Pass]:
    """The pass that sends tokens to experts as in the engine; empty if ranks share their tokens."""
    from llmir.hw.engine_sections import EngineDispatch
    from llmir.passes.dispatch import DispatchBy

    said = engine.section(EngineDispatch) if engine and gcd(dp, ep) > 1 else None
    return [DispatchBy(said.by)] if said else []
