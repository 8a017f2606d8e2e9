"""Speculative decoding: drafts are generated, and a step verifies several of them at once.

`accepted_tokens` is the mean number of tokens of a step. `SpeculativeWorkload` is a workload with speculative
decoding, and `speculative_workload` builds it. `check_drafts` and `check_verification` reject impossible
combinations.
"""

from __future__ import annotations

from dataclasses import field, fields
from functools import cached_property
from typing import Any

import numpy as np

from llmir.backends.memory.transfer import rank_bytes
from llmir.backends.step.report import Report
from llmir.base.arguments import integer, number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .workload import _STEPS, ChunkSteps, PrefillTimes, Workload, prefill_times

MOST = 64  # largest number of drafts of a step; more are hardly ever accepted
MODEL, LAYER, LOOKUP = "model", "layer", "lookup"  # kinds of drafters
PADDED = 128  # token ids by which equal vocabularies may differ (llama.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE)
EQUAL = {
    "vllm": "vllm/config/speculative.py, verify_equal_vocab_size_if_draft_model"
}  # engines that require equal vocabularies
_SAMPLE_TOKENS = 4096  # context in tokens for a comparison of the caches of two programs


def accepted_tokens(draft_tokens: int, acceptance: float) -> float:
    """Mean tokens per step, if each draft is accepted with a probability independent of earlier ones.

    Leviathan, Kalman and Matias 2023, arXiv:2211.17192, equation 1: (1 − aᵏ⁺¹) / (1 − a).

    >>> accepted_tokens(4, 0.7), accepted_tokens(3, 1.0), accepted_tokens(3, 0.0)
    (2.7731, 4.0, 1.0)
    """
    return round(sum(acceptance**n for n in range(draft_tokens + 1)), 12)


def speculative_workload(
    job: Workload, verify: Program, draft_tokens: int, acceptance: float, draft: Program | None
) -> SpeculativeWorkload:
    """Add drafts and verification to a workload; InputError if it does not support them."""
    count, share = check_drafts(draft_tokens, acceptance)
    if type(job) is not Workload:
        raise InputError("speculate: only a batch of requests can have drafts, not a closed loop")
    if job.generate == 1:
        raise InputError("generate: 1; drafts start with the second token")
    runs = job.model.runs if job.model else None
    check_verification(job.program, verify, draft, runs.name if runs else "")
    own = {f.name: getattr(job, f.name) for f in fields(Workload)}
    if draft is not None:
        own["reserve_bytes"] += _draft_bytes(job, draft)
    return SpeculativeWorkload(**own, verify=verify, draft_tokens=count, acceptance=share, drafter=draft)


def check_drafts(draft_tokens: object, acceptance: object) -> tuple[int, float]:
    """Check the number of draft tokens and the acceptance."""
    return integer("draft_tokens", draft_tokens, 1, MOST), number("acceptance", acceptance, 0.0, 1.0)


def check_verification(program: Program, verify: Program, draft: Program | None, engine: str = "") -> None:
    """Raise InputError if the programs cannot verify a program or draft for it."""
    kept = {(p.cache_bytes(_SAMPLE_TOKENS), p.parameters, p.devices) for p in (verify, program)}
    if len(kept) > 1:
        raise InputError(f"verify: {verify.name} is not {program.name} with logits of all positions")
    if draft is None:
        return
    if draft.devices > program.devices:
        few = f"{program.devices:,} of {program.name}"
        raise InputError(f"draft: {draft.name} is laid over {draft.devices:,} devices, more than the {few}")
    own, other = _vocabulary(draft), _vocabulary(program)
    sizes = f"its vocabulary has {own:,} tokens, not {other:,}"
    if abs(own - other) > PADDED or (own != other and engine in EQUAL):
        why = f", and {engine} compares sizes ({EQUAL[engine]})" if abs(own - other) <= PADDED else ""
        raise InputError(f"{draft.name} cannot draft for {program.name}: {sizes}{why}")


def _vocabulary(program: Program) -> int:
    """The number of logits per position."""
    graph = program.graphs[program.entries[-1]]
    size = graph.type(graph.outputs[0]).shape[-1]
    return size if isinstance(size, int) else 0


def draft_program(program: Program, drafter: Program | None) -> Program | None:
    """The drafting program: a model, or the phase `draft` of the program; None if drafts are free.

    It prefills each prompt in the same steps as the model, in order to fill its cache.
    """
    return drafter if drafter is not None else program.phases.get("draft")


def draft_kind(program: Program, drafter: Program | None) -> str:
    """The kind of drafter: a model, the program's own layer, or prompt lookup."""
    if draft_program(program, drafter) is None:
        return LOOKUP
    return LAYER if drafter is None else MODEL


def _draft_bytes(job: Workload, draft: Program) -> int:
    """Bytes of a rank for the weights of a draft model, and for its caches of the batch."""
    step = Report(draft, job.device, batch=job.batch, new=1, context=0, model=job.model)
    caches = rank_bytes(draft, job.batch, job.length + job.generate - 1)
    return int(step.weight_bytes) + int(caches)


@dataclass(frozen=True, eq=False)
class SpeculativeWorkload(Workload):
    """A batch of requests with speculative decoding: a step verifies `draft_tokens` of each request.

    `verify` is the program with logits at all positions. A `drafter`, which may be another model, generates
    drafts one after another. The default drafter is the draft layer of a program loaded with `draft`; without
    one, drafts are free, like n-grams from the prompt. The drafter also prefills the prompts, after the model
    in each step. A draft is accepted with probability `acceptance`, independently of others. The memory of
    the drafter reduces the memory for caches (`reserve_bytes`).
    """

    verify: Program | None = None
    draft_tokens: int = field(default=1, metadata={"least": 1, "most": MOST})
    acceptance: float = field(default=0.0, metadata={"least": 0.0, "most": 1.0})
    drafter: Program | None = None

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step yields on average."""
        return accepted_tokens(self.draft_tokens, self.acceptance)

    @cached_property
    def decode(self) -> Report | None:
        """The last step that verifies, the longest."""
        return self._verify(self.length + self.generate - 2)

    @cached_property
    def draft(self) -> Report | None:
        """A draft step at this position; None if drafts are free."""
        return self._draft(self.batch, 1, self.length + self.generate - 2)

    @property
    def drafted_s(self) -> float:
        """Seconds of all drafts of a step, computed from the seconds of the last draft."""
        return self.draft_tokens * float(self.draft.period_s) if self.draft else 0.0

    @cached_property
    def _reading(self) -> PrefillTimes:
        """The time to prefill all prompts, including the time of the drafter."""
        return PrefillTimes(*map(sum, zip(super()._reading, self._draft_reading, strict=True)))

    @cached_property
    def _draft_reading(self) -> PrefillTimes:
        """The drafter's part of prefill."""
        if draft_program(self.program, self.drafter) is None:
            return PrefillTimes(0.0, 0.0, 0.0)
        return prefill_times(self.chunks, self._draft_reads)

    def _draft_reads(self, chunk: ChunkSteps) -> Report:
        step = self._draft(chunk.prompts, chunk.new, chunk.cached)
        assert step is not None
        return step

    @property
    def draft_read_s(self) -> float:
        """Seconds of the drafter's prefill, which is part of TTFT."""
        return self._draft_reading.time_s

    def _verify(self, context: Any) -> Report:
        at: dict[str, Any] = {"batch": self.batch, "new": self.draft_tokens + 1, "context": context}
        how: dict[str, Any] = {"model": self.model, "cache_policy": self.cache_policy}
        return Report(self.verify or self.program, self.device, **at, **how)

    def _draft(self, batch: int, new: int, context: Any) -> Report | None:
        at: dict[str, Any] = {"batch": batch, "new": new, "context": context}
        how: dict[str, Any] = {"model": self.model, "cache_policy": self.cache_policy}
        if self.drafter is not None:
            return Report(self.drafter, self.device, **at, **how)
        if "draft" in self.program.phases:
            return Report(self.program, self.device, **at, **how, phase="draft")
        return None

    @cached_property
    def _decoding(self) -> tuple[float, float]:
        """Sums over all tokens after the first: their shares of the steps, and of the drafts before the
        steps.
        """
        period = interval = 0.0
        tokens = range(self.length, self.length + self.generate - 1)
        for i in range(0, len(tokens), _STEPS):
            part = tokens[i : i + _STEPS]
            contexts = np.arange(part.start, part.stop)
            steps = [(1, self._verify(contexts)), (self.draft_tokens, self._draft(self.batch, 1, contexts))]
            period += sum(n * float(np.sum(step.period_s)) for n, step in steps if step)
            interval += sum(n * float(np.sum(step.interval_s)) for n, step in steps if step)
        return period / self.tokens_per_step, interval / self.tokens_per_step

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user, including the mean number of tokens per step."""
        drafts = f"{self.draft_tokens} draft{'s' if self.draft_tokens > 1 else ''}"
        right = f"of which each is right {100 * self.acceptance:.3g} times in 100"
        yields = f"a step verifies {drafts}, {right}, and yields {self.tokens_per_step:.3g} tokens"
        who = self.drafter.name if self.drafter else "the model's own layer"
        times = f"in {1e3 * self.drafted_s:.3g} ms, and reads the prompts in {1e3 * self.draft_read_s:.3g} ms"
        cost = f"{who} drafts them {times}" if self.draft else "drafts cost nothing"
        return (*super().notes, f"{yields}; {cost}")

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        asked = {"draft_tokens": self.draft_tokens, "acceptance": self.acceptance}
        made = {"tokens_per_step": self.tokens_per_step, "drafted_s": self.drafted_s}
        made["draft_read_s"] = self.draft_read_s
        drafter = self.drafter.name if self.drafter else None
        return {**super().to_dict(), "speculation": {**asked, **made, "drafter": drafter}}
