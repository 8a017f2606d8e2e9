"""Beam search: each request decodes several sequences after its prompt and returns the best.

`BeamWorkload` is a `Workload` with beams (`beam_workload` builds it). `BeamStep` is a step of sequences that
share the cache of the prompt, and `BeamPool` is the engine's cache capacity with this sharing.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

from llmir.backends.cost.models import model as default_model
from llmir.backends.memory.caches import PAGE, policy
from llmir.backends.memory.kv_capacity import KvPool, keeps_every_token
from llmir.backends.memory.liveness import reserved_bytes, stage_memories
from llmir.backends.step.evaluate import StageCost
from llmir.backends.step.report import Report
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import figure
from llmir.ir.core.program import Program
from llmir.ir.ops.beam_search import MOST
from llmir.ir.sizes.binding import Binding

from .workload import Workload

_WITHOUT = {
    "sglang": "sglang has no beam search (sgl-project/sglang#3032)",
    "deepspeed": "llmir does not model beam search in deepspeed",
}
# Additional work of engines between steps: vllm-project/vllm#8726.
_ENGINE_NOTES = {"vllm": ("vllm makes a request of each beam's next token: of that times are lower bounds",)}


def check_beams(job: Workload) -> None:
    """`InputError` for a workload that does not support beams."""
    if type(job) is not Workload:
        raise InputError("beams: only a batch of requests can have beams, not drafts or a closed loop")
    if job.generate == 1:
        raise InputError("generate: 1; beams start with the second token")
    if job.images or job.program.patches:
        raise InputError(f"beams: {job.program.name} reads images; beam search is modeled only for text")
    if "draft" in job.program.phases:
        raise InputError(
            "beams: the program has a draft layer, which supports one sequence per request; leave draft out"
        )
    runs = (job.model or default_model(job.device)).runs
    if runs and runs.name in _WITHOUT:
        raise InputError(f"beams: {_WITHOUT[runs.name]}")


def beam_workload(job: Workload, program: Program, width: int, copies: int) -> BeamWorkload:
    """The workload with a program that returns candidates; the prefill of each prompt runs `copies` times."""
    own = {f.name: getattr(job, f.name) for f in fields(Workload)}
    return BeamWorkload(**{**own, "program": program}, width=width, copies=copies)


class BeamStep(Report):
    """A step of sequences that share part of their caches; `again` is a binding with the sizes of the shared
    copies.
    """

    again: Binding

    @figure
    def kv_cache_bytes(self) -> Number:
        """Bytes of the caches; shared parts count once."""
        return self._held(lambda memory, at: at(memory.caches) - self.again(memory.caches))

    @figure
    def peak_memory_bytes(self) -> Number:
        """Weights, caches and activations at the moment with the most memory."""
        return self._held(lambda memory, at: memory.peak(at) - self.again(memory.caches))

    @figure
    def stages(self) -> tuple[StageCost, ...]:
        """One row per pipeline stage; each contains the stage's part of the shared caches."""
        again = (self.again(memory.caches) for memory in self.plan.memories)
        return tuple(
            replace(
                stage,
                kv_cache_bytes=stage.kv_cache_bytes - less,
                peak_memory_bytes=stage.peak_memory_bytes - less,
            )
            for stage, less in zip(super().stages, again, strict=True)
        )


@dataclass(frozen=True, eq=False)
class BeamPool(KvPool):
    """The caches of an engine in which the `width` sequences of a request share the cache of its first
    tokens.
    """

    width: int = 1
    shared: int = 0

    def held(self, sequences: int, length: int) -> tuple[float, ...]:
        """Bytes of `sequences` requests; blocks that all sequences of a request share count only once."""
        apart = super().held(sequences * self.width, length)
        if not self.shared:
            return apart
        again = super().held(sequences * (self.width - 1), self.shared)
        return tuple(all_ - twice for all_, twice in zip(apart, again, strict=True))

    def short(self, sequences: int) -> float:
        """Missing bytes for `sequences` requests; for sampling, each request counts `width` times."""
        each = -(-sequences * self.width * self.program.micro_batches // self.program.parallelism.dp)
        rooms = self.rooms(self.max_num_seqs or max(self.sequences, each))
        held = self.held(sequences, self.length)
        return max(taken - room.caches for taken, room in zip(held, rooms, strict=True))

    @property
    def at_once(self) -> int:
        """The largest number of requests at once."""
        return super().at_once // self.width


@dataclass(frozen=True, eq=False)
class BeamWorkload(Workload):
    """A batch of requests; each decodes `width` sequences and returns the best one.

    Each step chooses 2·`width` candidates per row. The prefill and the cache of a prompt exist `copies`
    times: once if sequences share its blocks, or once per sequence if caches are not paged. Attention reads
    all tokens of a sequence. A request returns the `generate` tokens of its best sequence.
    """

    width: int = field(default=1, metadata={"least": 1, "most": MOST})
    copies: int = field(default=1, metadata={"least": 1, "most": MOST})

    @property
    def rows(self) -> int:
        """Sequences that decode together."""
        return self.batch * self.width

    @property
    def shared(self) -> int:
        """Number of prompt tokens that are stored once for all sequences of a request: its full blocks.

        It is 0 with windows and states, which are counted for each sequence.
        """
        if self.copies > 1 or not keeps_every_token(self.program, self.length + self.generate):
            return 0
        runs = self._runs_pool
        page = runs.rule.block if runs else 1 if self.cache_policy == "exact" else PAGE
        return self.length // page * page

    def _step(self, new: Any, context: Any, batch: int | None = None) -> Report:
        return super()._step(new, context, batch or self.rows)

    @cached_property
    def decode(self) -> Report | None:
        """The last and longest decode step; shared caches count only once."""
        last = self.length + self.generate - 2
        if not self.shared:
            return self._step(1, last)
        at: dict[str, Any] = {"batch": self.rows, "new": 1, "context": last}
        how: dict[str, Any] = {"model": self.model, "cache_policy": self.cache_policy}
        step = BeamStep(self.program, self.device, **at, **how)
        again = self.batch * (self.width - 1) // self.program.micro_batches
        vars(step)["again"] = Binding(B=again, T=1, C=self.shared - 1)
        return step

    def chunks_of(self, batch: int) -> Any:
        """The prefill steps of another batch."""
        return super().chunks_of(batch * self.copies)

    @cached_property
    def _runs_pool(self) -> KvPool | None:
        return super()._pool(self.batch * self.copies)

    def _pool(self, batch: int) -> KvPool | None:
        plain = super()._pool(batch * self.copies)
        if plain is None:
            return None
        own = {f.name: getattr(plain, f.name) for f in fields(KvPool)}
        return BeamPool(**own, width=self.width, shared=self.shared)

    @cached_property
    def _apart(self) -> Workload:
        """The sequences as independent requests."""
        return Workload(**{f.name: getattr(self, f.name) for f in fields(Workload)})

    def _caches(self, batch: int, *, shared: int) -> tuple[int, ...]:
        """Cache bytes of a rank of each stage at the end, with `shared` tokens stored once."""
        parts = self.program.micro_batches
        if self.pool:
            beams = {f.name: getattr(self.pool, f.name) for f in fields(KvPool)}
            pool = BeamPool(**beams, width=self.width, shared=shared)
            return tuple(int(n) for n in pool.held(batch // parts, pool.length))
        sizes = reserved_bytes(self.program.phase("decode"), policy(self.cache_policy))
        rows, again = batch * self.width // parts, batch * (self.width - 1) // parts
        ends = [(rows, self.length + self.generate - 1)] + [(again, shared)] * (shared > 0)
        held = []
        for size in sizes:
            most, *less = (int(Binding(B=b, T=1, C=n - 1)(size)) for b, n in ends)
            held.append(most - sum(less))
        return tuple(held)

    @property
    def cache_bytes(self) -> int:
        """Cache bytes of all sequences at the end, on a rank of the stage with the most."""
        return max(self._caches(self.batch, shared=self.shared))

    @property
    def apart_bytes(self) -> int:
        """Cache bytes if the sequences of a request shared no blocks."""
        return max(self._caches(self.batch, shared=0))

    def peak_bytes(self, batch: int) -> int:
        """The largest memory that any stage uses with another batch."""
        if self.pool:
            return super().peak_bytes(batch)
        parts, last = self.program.micro_batches, self.length + self.generate - 2
        at = Binding(B=batch * self.width // parts, T=1, C=last)
        stages = stage_memories(self.program.phase("decode"), self.cache_policy)
        pairs = zip(self._caches(batch, shared=0), self._caches(batch, shared=self.shared), strict=True)
        once = [all_ - held for all_, held in pairs]
        later = max(int(of.peak(at)) - twice for of, twice in zip(stages, once, strict=True))
        return max(self._apart.peak_bytes(batch * self.copies), later)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user, including those on sharing."""
        beams = f"each request decodes {self.width} sequences; {2 * self.width} candidates a row"
        runs = (self.model or default_model(self.device)).runs
        beside = _ENGINE_NOTES.get(runs.name, ()) if runs else ()
        if self.copies > 1:
            return (*super().notes, f"{beams}; prompts are read and kept for each, and caches change places")
        held = f"caches hold {self.cache_bytes:,} bytes at the end, apart {self.apart_bytes:,}"
        return (*super().notes, f"{beams}; {held}", *beside)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        held = {"cache_bytes": self.cache_bytes, "apart_bytes": self.apart_bytes}
        made = {"width": self.width, "rows": self.rows, "candidates": 2 * self.width}
        return {**super().to_dict(), "beams": {**made, "prompt_copies": self.copies, **held}}
