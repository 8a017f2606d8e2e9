"""What the devices of a workload cost and draw for its tokens: read, generated, and both by the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.hw.spent import Spent, spent

if TYPE_CHECKING:
    from .workload import Workload


class Spending(NamedTuple):
    """`input` is of prompt tokens that are read, `output` of tokens after the first; `answers` is all of it.

    Of `answers` prompts are a part: it is by generated token, or by image where a model reads nothing else.
    None where there are no such tokens. Other batches like this one keep all pipeline stages busy.
    """

    input: Spent | None
    output: Spent | None
    answers: Spent

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: USD of a million tokens and joules of one, by what they are of."""
        parts = {name: part for name, part in self._asdict().items() if part}
        return {
            "cost_usd_per_mtok": {name: part.usd_per_mtok for name, part in parts.items()},
            "energy_j_per_token": {name: part.joules_per_token for name, part in parts.items()},
        }


def spending(job: Workload) -> Spending:
    """That of a workload, where its device has a price and a power."""
    reading, decoding = job.busy_s

    def of(tokens: int, seconds: float) -> Spent | None:
        rate = tokens / seconds if seconds else float("inf")
        return spent(job.device, job.program.devices, rate) if tokens else None

    everything = of(job.batch * job.generate, reading + decoding)
    assert everything is not None, "a workload has requests"
    if job.program.patches:
        return Spending(None, None, everything)
    read = of(job.batch * (job.length - job.cached), reading)
    return Spending(read, of(job.batch * (job.generate - 1), decoding), everything)
