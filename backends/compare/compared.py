"""Two sides of a comparison: steps or requests, and what a server makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmir.backends.request.closed_loop import HOST, ClosedLoop
from llmir.backends.request.service import service
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.arguments import integer, shown
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .common import Common
from .diff import Pair, Row, StepDiff, WorkloadDiff, steps

_LOOP = (
    ("loop: TTFT", "ttft_s"),
    ("loop: TPOT", "tpot_s"),
    ("loop: tokens/s", "output_tokens_per_s"),
    ("loop: in flight", "in_flight"),
)
_TERMS = {"step_s": "  decode step", "host_s": "  host", "prompts_s": "  others' prompts"}


@dataclass(frozen=True)
class ServiceDiff(WorkloadDiff):
    """Two workloads, and as many users of either in a closed loop."""

    @property
    def loops(self) -> tuple[ClosedLoop, ClosedLoop]:
        """Of both sides."""
        sides: tuple[Any, Any] = self.before, self.after
        return sides[0].loop, sides[1].loop

    @property
    def served(self) -> tuple[Row, ...]:
        """What the users see, and the terms of a token's time, whose changes add up to its own."""
        found = [Row(what, name, Pair(*(getattr(loop, name) for loop in self.loops))) for what, name in _LOOP]
        sides = [_parts(loop) for loop in self.loops]
        parts = [name for name in _TERMS if any(name in side for side in sides)]
        terms = [Row(_TERMS[n], f"terms.{n}", Pair(*(side.get(n, 0.0) for side in sides))) for n in parts]
        return (*found[:2], *terms, *found[2:])

    def to_dict(self) -> dict[str, Any]:
        """With `serving`: figures of the loops, and their terms."""
        rows = {row.name: row.pair.to_dict() for row in self.served}
        terms = {name.removeprefix("terms."): pair for name, pair in rows.items() if "." in name}
        figures = {name: pair for name, pair in rows.items() if "." not in name}
        users = self.before.batch
        return super().to_dict() | {"serving": {"concurrency": users, **figures, "terms": terms}}


def _parts(loop: ClosedLoop) -> Mapping[str, float]:
    """The terms of a loop by what they are on any engine: first the decode step, prompts last."""
    if not loop.terms:
        return {}
    step, *rest = loop.terms
    found = {"step_s": step.time_s}
    return found | {"host_s" if term.what == HOST else "prompts_s": term.time_s for term in rest}


def stepped(programs: list[Program], basis: Common, step: Mapping[str, Any], **idle: Any) -> StepDiff:
    """The difference of two programs in a step; InputError for what is `idle` there, but None."""
    for name, value in idle.items():
        if value is not None:
            raise InputError(f"{name}: {shown(value)} is of requests; say prompt or generate too")
    at: dict[str, Any] = {name: integer(name, value, name != "context") for name, value in step.items()}
    sides = zip(programs, basis.models, strict=True)
    reports = [Report(p, m.device, **at, model=m) for p, m in sides]
    return steps(reports[0], reports[1], basis.why)


def requested(
    programs: list[Program],
    basis: Common,
    tokens: list[tuple[Any, Any]],
    concurrency: int | None,
    **asked: Any,
) -> WorkloadDiff:
    """The difference of two programs over requests of so many tokens each, or over those of users."""
    sides = zip(programs, basis.models, tokens, strict=True)
    asked = {name: value for name, value in asked.items() if value is not None}
    jobs = [Workload(p, m.device, prompt=t[0], generate=t[1], model=m, **asked) for p, m, t in sides]
    if concurrency is None:
        return WorkloadDiff(jobs[0], jobs[1], why=basis.why)
    served = [service(job, concurrency, None) for job in jobs]
    return ServiceDiff(served[0], served[1], why=basis.why)
