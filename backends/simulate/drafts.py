"""Drafts of a simulated server: their number per step, where they come from, and their acceptance.

`Drafts` is the record; the tables above it list what engines refuse, each with its source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import policy
from llmir.backends.memory.liveness import reserved_bytes
from llmir.backends.request.speculation import (
    LOOKUP,
    MODEL,
    accepted_tokens,
    check_drafts,
    check_verification,
    draft_kind,
    draft_program,
)
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

FAR = 1 << 14  # context in tokens for a comparison of the caches of two models


# Restrictions of engines, with their sources.
STAGES = {
    "vllm": "vllm verifies no drafts in pipeline stages (github.com/vllm-project/vllm/issues/57755)",
    "sglang": "sglang verifies no drafts in pipeline stages (sglang/srt/server_args.py, check_server_args)",
    "trtllm": "trtllm verifies no drafts in pipeline stages (github.com/NVIDIA/TensorRT-LLM/issues/9009)",
}
_ATTENTION = "sglang does not support such drafts with data-parallel attention (sglang/srt/server_args.py)"
RANKS = {("sglang", MODEL): _ATTENTION, ("sglang", LOOKUP): _ATTENTION}
_POOLS = "trtllm does not support such drafts in pools (github.com/NVIDIA/TensorRT-LLM/issues/9009)"
POOLS = {("trtllm", MODEL): _POOLS, ("trtllm", LOOKUP): _POOLS}


class Drafts(NamedTuple):
    """A step verifies `tokens` drafts of each sequence; `verify` is the program with logits at all positions.

    A draft is accepted with probability `acceptance` if all earlier ones were. The program `drafter`
    generates one draft per step. The default drafter is the phase `draft` of the program; without it, drafts
    take no time.
    """

    tokens: int
    acceptance: float
    verify: Program
    drafter: Program | None = None

    @classmethod
    def of(
        cls,
        program: Program,
        tokens: object,
        acceptance: object,
        verify: Program,
        drafter: Program | None,
        engine: str = "",
    ) -> Drafts:
        """Validate the drafts of a program; InputError if they are impossible or the engine refuses them."""
        count, share = check_drafts(tokens, acceptance)
        check_verification(program, verify, drafter, engine)
        if max(len(program.entries), program.micro_batches) > 1:
            why = STAGES.get(engine, "llmir knows no engine that verifies drafts in pipeline stages")
            raise InputError(why)
        kind = draft_kind(program, drafter)
        refusal = RANKS.get((engine, kind)) if program.parallelism.dp > 1 else None
        if refusal:
            raise InputError(refusal)
        return cls(count, share, verify, drafter)

    @property
    def rows(self) -> int:
        """Tokens of each sequence in a step: the last generated one, and the drafts after it."""
        return self.tokens + 1

    @property
    def yielded(self) -> float:
        """Mean number of tokens that a step yields for a sequence."""
        return accepted_tokens(self.tokens, self.acceptance)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The two programs: one verifies drafts, the other generates them."""
        return (self.verify,) if self.drafter is None else (self.verify, self.drafter)

    def of_programs(self, verify: Program, drafter: Program | None = None) -> Drafts:
        """Drafts with other programs for verification and drafting."""
        return self._replace(verify=verify, drafter=drafter)

    def kind(self, program: Program) -> str:
        """The kind of drafter: a model, a layer, or lookup in the prompt."""
        return draft_kind(program, self.drafter)

    def made_by(self, program: Program) -> str:
        """The name of the draft model, or of another source of drafts."""
        return self.drafter.name if self.drafter else self.kind(program)

    def kept_bytes(self, model: DeviceCostModel) -> int:
        """Bytes of a rank for the weights of the draft model."""
        if self.drafter is None:
            return 0
        return int(Report(self.drafter, model.device, batch=1, new=1, context=0, model=model).weight_bytes)

    def share(self, program: Program) -> float:
        """The program's share of the memory for caches; the draft model has the rest."""
        if self.drafter is None:
            return 1.0
        own, small = (_each(of) for of in (program, self.drafter))
        return own / (own + small)

    def beside(self, job: Workload) -> Workload:
        """The job with memory reserved for the weights of the draft model."""
        of = job.model or job.prefill.plan.model
        return replace(job, reserve_bytes=job.reserve_bytes + self.kept_bytes(of))

    def share_of(self, program: Program, model: DeviceCostModel, batch: int, context: int) -> float:
        """The share of a step that is spent on drafts, with `batch` sequences at a context."""
        drafter = draft_program(program, self.drafter)
        if drafter is None:
            return 0.0
        at: dict[str, Any] = {"batch": batch, "context": context, "model": model}
        draft_s = self.tokens * float(Report(drafter, model.device, new=1, **at).period_s)
        return draft_s / (draft_s + float(Report(self.verify, model.device, new=self.rows, **at).period_s))

    def said(self) -> dict[str, Any]:
        """The JSON report."""
        drafter = self.drafter.name if self.drafter else None
        asked = {"draft_tokens": self.tokens, "acceptance": self.acceptance, "drafter": drafter}
        return {**asked, "tokens_per_step": self.yielded}

    def note(self, program: Program) -> str:
        """The note for the user."""
        drafts = f"{self.tokens} draft{'s' if self.tokens > 1 else ''}"
        right = f"each right {100 * self.acceptance:.3g} times in 100, and yields {self.yielded:.3g} tokens"
        layer = "the model's own layer drafts them"
        own = layer if "draft" in program.phases else "drafts cost nothing"
        who = f"{self.drafter.name} drafts them" if self.drafter else own
        return f"a step verifies {drafts} of each sequence, {right}; {who}"


def _each(program: Program) -> float:
    """Cache bytes of a token on one rank of the fullest stage, if all layers keep the token."""
    at = Binding(B=1, T=0, C=FAR)
    return (
        max(float(at(size)) for size in reserved_bytes(program.phase("decode"), policy("unified", 1))) / FAR
    )
