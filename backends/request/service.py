"""What a server makes of a workload: a batch of requests, and beside it as many users in a closed loop."""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

from llmir.base.arguments import integer, shown
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError

from .closed_loop import ClosedLoop
from .workload import REQUESTS, Workload


def service(job: Workload, concurrency: int | None, max_tpot_s: float | None) -> Service:
    """A workload with so many users in place of its batch; InputError for both, or a limit without users."""
    if concurrency is None:
        raise InputError(f"max_tpot_s: {shown(max_tpot_s)}; it limits concurrency, say that too")
    if job.batch != 1:
        raise InputError(f"concurrency: {shown(concurrency)} requests; leave batch out")
    own = {f.name: getattr(job, f.name) for f in fields(Workload)}
    own["batch"] = integer("concurrency", concurrency, 1, REQUESTS)
    return Service(**own, max_tpot_s=max_tpot_s)


@dataclass(frozen=True, eq=False)
class Service(Workload):
    """A batch of requests, and `loop`: as many users, of whom each asks again when it is answered.

    With `max_tpot_s` it says how many users there may be at most for their tokens to come within that.
    """

    max_tpot_s: float | None = field(default=None, metadata={"least": 0.0, "above": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.program.name
        if self.program.patches or self.program.image_tokens or "prompt" in self.program.facts:
            read = "images" if "prompt" not in self.program.facts else "prompts that layers see in part"
            raise InputError(f"concurrency: {self.batch:,}; a loop over {read} of {name} is not modelled")
        if self.max_tpot_s is not None and self.generate == 1:
            raise InputError(
                f"max_tpot_s: {self.max_tpot_s:g}; with 1 token to generate there is no later one"
            )

    @cached_property
    def loop(self) -> ClosedLoop:
        """The closed loop of as many users as the batch has requests."""
        own = {f.name: getattr(self, f.name) for f in fields(Workload)}
        return ClosedLoop(Workload(**own | {"batch": self.program.micro_batches}), self.batch)

    @cached_property
    def most(self) -> ClosedLoop | None:
        """That of the most users who get their tokens within `max_tpot_s`; None if not even one does."""
        if self.max_tpot_s is None or not (users := self.loop.most(self.max_tpot_s)):
            return None
        return replace(self.loop, concurrency=users)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, with `serving`."""
        loop, most = self.loop, self.most
        limit = None
        if self.max_tpot_s is not None:
            users = most.concurrency if most else 0
            limit = {
                "max_tpot_s": self.max_tpot_s,
                "concurrency": users,
                "output_tokens_per_s": most.output_tokens_per_s if most else 0.0,
            }
        return super().to_dict() | {
            "serving": {
                "concurrency": loop.concurrency,
                "ttft_s": loop.ttft_s,
                "tpot_s": loop.tpot_s,
                "e2e_s": loop.e2e_s,
                "output_tokens_per_s": loop.output_tokens_per_s,
                "max_in_flight": loop.max_in_flight,
                "in_flight": loop.in_flight,
                "decoding": loop.state.decoding,
                "chunk": loop.chunk,
                "mixes": loop.scheduler.mixes,
                "terms": [term._asdict() for term in loop.terms],
                "within": limit,
            }
        }
