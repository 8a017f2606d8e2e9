"""What two programs or devices differ in: ops that replace others, appear, vanish, or cost otherwise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from llmir.backends.request.spending import spending
from llmir.backends.request.workload import Workload
from llmir.backends.step.costs import OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.backends.work.basis import Basis
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import Figures

from .bases import Bases, bases
from .match import Key, key, matches

FIGURES = ("time_s", "flops", "matmul_flops", "read_bytes", "write_bytes", "comm_bytes")
MEMORY = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")


class Pair(NamedTuple):
    """A figure before and after; None where there is none."""

    before: Any
    after: Any

    @property
    def delta(self) -> Any:
        """By how much it grew."""
        return None if self.before is None or self.after is None else self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"before": self.before, "after": self.after, "delta": self.delta}


class Row(NamedTuple):
    """A figure of two servers: as people call it, its name in JSON, and its values."""

    label: str
    name: str
    pair: Pair


@dataclass(frozen=True)
class Part(Figures):
    """An op as it runs `repeat` times in a step; figures are of all these executions together."""

    name: str
    opcode: str
    kind: str
    block: str
    repeat: int
    time_s: Number
    flops: Number
    matmul_flops: Number
    read_bytes: Number
    write_bytes: Number
    comm_bytes: Number
    bound: str  # of its longest execution, as is the basis
    basis: Basis

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"basis": str(self.basis)}


@dataclass(frozen=True)
class Change:
    """Ops `before` and the ops `after` that do their work; one of the two is empty if it is new or gone."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]

    @property
    def what(self) -> str:
        """new, gone, changed (the same op at another cost), fused (into fewer), split or replaced."""
        if not self.before or not self.after:
            return "gone" if self.before else "new"
        (old, *others), (new, *further) = self.before, self.after
        if not others and not further and (old.name, old.opcode) == (new.name, new.opcode):
            return "changed"
        fewer = len(self.after) - len(self.before)
        return "fused" if fewer < 0 else "split" if fewer else "replaced"

    def figure(self, name: str) -> Pair:
        """One of `FIGURES`, summed over the ops."""
        return Pair(*(sum(getattr(p, name) for p in parts) for parts in (self.before, self.after)))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every op, and by how much each figure grew."""
        return {
            "what": self.what,
            "before": [p.to_dict() for p in self.before],
            "after": [p.to_dict() for p in self.after],
            "delta": {name: self.figure(name).delta for name in FIGURES},
        }


@dataclass(frozen=True)
class StepDiff(Result):
    """Two steps: the `changes` in the order of the second, and how much of the step is as it was.

    The deltas of the changes add up to the difference of the steps, each on all its pipeline stages together.
    """

    before: Report
    after: Report
    changes: tuple[Change, ...]
    same: tuple[Part, ...]
    basis: Bases

    def total(self, name: str) -> Pair:
        """A figure of the whole steps: any number of a `Report`; of time, the step on all stages together."""
        name = "all_stages_s" if name == "time_s" else name
        return Pair(getattr(self.before, name), getattr(self.after, name))

    def to_dict(self) -> dict[str, Any]:
        """The phase of the JSON; figures are of all repeats together."""
        return {
            **{name: self.total(name).to_dict() for name in (*FIGURES, *MEMORY)},
            "basis": self.basis.to_dict(),
            "changes": [c.to_dict() for c in self.changes],
            "same": [p.name for p in self.same],
        }


@dataclass(frozen=True)
class WorkloadDiff(Result):
    """Two workloads: their prefills, their last decode steps, and what a user sees of them."""

    before: Workload
    after: Workload
    pipelines: tuple[str, str] | None = None  # that made the two programs, where that is worth saying
    why: str = ""  # it is the roofline, where nobody asked for that

    @cached_property
    def basis(self) -> Bases:
        """What the times of either side are made of; `InputError` if that does not compare."""
        before, after = ([r for r in (w.prefill, w.decode) if r] for w in (self.before, self.after))
        return bases(before, after, self.why)

    @cached_property
    def prefill(self) -> StepDiff:
        """The largest steps that read prompts; where one side's budget is smaller, both as large as its."""
        before, after = sides = self.before, self.after
        if len({(side.batch, side.length, side.cached) for side in sides}) > 1:
            return steps(before.prefill, after.prefill, self.why)
        least = min((side.prefill for side in sides), key=lambda step: step.batch * step.new)
        return steps(before.prefill_as(least), after.prefill_as(least), self.why)

    @cached_property
    def decode(self) -> StepDiff | None:
        """The last decode steps; None unless both have one."""
        before, after = self.before.decode, self.after.decode
        return steps(before, after, self.why) if before and after else None

    @property
    def phases(self) -> tuple[tuple[str, StepDiff], ...]:
        """The steps by name."""
        return ("prefill", self.prefill), *([("decode", self.decode)] if self.decode else [])

    def total(self, name: str) -> Pair:
        """A figure that a `Workload` has, such as `ttft_s`."""
        return Pair(getattr(self.before, name), getattr(self.after, name))

    @property
    def served(self) -> tuple[Row, ...]:
        """What users of a server see of them; nothing where there is none."""
        return ()

    @property
    def peak_memory_bytes(self) -> Pair:
        """The highest peak of any step."""
        return Pair(*(w.peak_bytes(w.batch) for w in (self.before, self.after)))

    @cached_property
    def spent(self) -> tuple[Row, Row]:
        """USD of a million tokens of answers, and joules of one at most; None of a device that has none."""
        sides = [spending(w).answers for w in (self.before, self.after)]
        cost, energy = (
            Pair(*each) for each in zip(*((s.usd_per_mtok, s.joules_per_token) for s in sides), strict=True)
        )
        return (
            Row("$/Mtok output", "cost_usd_per_mtok", cost),
            Row("J/tok, at most", "energy_j_per_token", energy),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `llmir diff`, `schema_version` 2."""
        sides: dict[str, dict[str, Any]] = {}
        for name, side in (("before", self.before), ("after", self.after)):
            sides[name] = {
                "model": side.program.name,
                "hardware": side.device.name,
                "devices": side.program.devices,
                "workload": {**side.asked, "chunk_by": side.budget_by},
                "fits": side.fits,
            }
        for name, passes in zip(sides, self.pipelines or (), strict=False):
            sides[name]["pipeline"] = passes
        names = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "max_batch")
        return {
            "schema_version": 2,
            **sides,
            "basis": self.basis.to_dict(),
            **{name: self.total(name).to_dict() for name in names},
            **{row.name: row.pair.to_dict() for row in self.spent},
            "peak_memory_bytes": self.peak_memory_bytes.to_dict(),
            "phases": {"prefill": self.prefill.to_dict(), "decode": self.decode and self.decode.to_dict()},
        }


def diff(before: object, after: object) -> StepDiff | WorkloadDiff:
    """The difference of two reports or of two workloads; `InputError` if their times are of two kinds."""
    if isinstance(before, Report) and isinstance(after, Report):
        return steps(before, after)
    if isinstance(before, Workload) and isinstance(after, Workload):
        bases([before.prefill], [after.prefill])
        return WorkloadDiff(before, after)
    given = f"{type(before).__name__} and {type(after).__name__}"
    raise InputError(f"diff: expected two programs and a device, two reports, or two workloads, got {given}")


def steps(before: Report, after: Report, why: str = "") -> StepDiff:
    """The difference of two steps at a point; `InputError` on a grid, or if times are not of one kind.

    `why` says why both are rooflines, where nobody asked for that.
    """
    shape = before.shape or after.shape
    if shape:
        raise InputError(f"a diff is of one point, not of a grid {shape}")
    basis = bases([before], [after], why)
    old, new = _parts(before), _parts(after)
    changes: list[Change] = []
    same: list[Part] = []
    for left, right in matches(before.program, after.program):
        one = tuple(old[k][1] for k in left), tuple(new[k][1] for k in right)
        if left == right and [old[k][0] for k in left] == [new[k][0] for k in right]:
            same += one[0]
        else:
            changes.append(Change(*one))
    overheads = _overheads(before), _overheads(after)
    for name in dict.fromkeys(chain(*overheads)):
        old_rows, new_rows = (of.get(name, ()) for of in overheads)
        change = Change(old_rows, new_rows)
        if old_rows and new_rows and math.isclose(*change.figure("time_s"), rel_tol=1e-12):
            same += old_rows
        else:
            changes.append(change)
    return StepDiff(before, after, tuple(changes), tuple(same), basis)


def _overheads(report: Report) -> dict[str, tuple[Part, ...]]:
    """What is no op, each kind on all stages together, by its name."""
    found: dict[str, list[OpCost]] = {}
    for row in report.ops:
        if row.kind == OVERHEAD:
            found.setdefault(row.name.rpartition(".")[2], []).append(row)
    none: dict[str, Any] = dict.fromkeys(FIGURES, 0)
    return {
        name: (
            Part(
                name,
                OVERHEAD,
                OVERHEAD,
                rows[0].block,
                sum(row.repeat for row in rows),
                bound=rows[0].bound,
                basis=rows[0].basis,
                **(none | {"time_s": sum(row.total_s for row in rows)}),
            ),
        )
        for name, rows in found.items()
    }


def folded(changes: Iterable[Change]) -> list[tuple[tuple[str, ...], Change]]:
    """Changes that several bodies have alike, as one, and those bodies: alternating layers need one line."""
    found: dict[Any, dict[str, Change]] = {}
    for change in changes:
        parts = change.after or change.before
        inside = parts[0].name.rpartition(".")[0]
        alike = [[(p.name.rpartition(".")[2], p.opcode) for p in s] for s in (change.before, change.after)]
        found.setdefault((bool(inside), *map(tuple, alike)), {})[inside] = change
    return [(tuple(of), _together([*of.values()])) for of in found.values()]


def _together(changes: list[Change]) -> Change:
    """Changes with as many ops on either side, added up."""

    def added(parts: tuple[Part, ...]) -> Part:
        sums: dict[str, Any] = {f: sum(getattr(p, f) for p in parts) for f in ("repeat", *FIGURES)}
        return replace(parts[0], **sums)

    sides = [c.before for c in changes], [c.after for c in changes]
    return Change(*(tuple(map(added, zip(*side, strict=True))) for side in sides))


def _parts(report: Report) -> dict[Key, tuple[Counter[tuple[Number, ...]], Part]]:
    """For each op how often it runs at which figures (exact, so that equal ops are equal), and all as one."""
    copies: dict[Key, list[Any]] = {}
    for op, row in zip(report.work, report.plan.rows, strict=True):
        prefix = report.program.prefix(report.program.entries[op.stage])
        copies.setdefault(key(op.name.removeprefix(prefix), row.node.op.opcode), []).append(op)
    found = {}
    for at, ops in copies.items():
        runs: Counter[tuple[Number, ...]] = Counter()
        for op in ops:
            runs[tuple(getattr(op, f) for f in FIGURES)] += op.repeat
        longest = max(ops, key=lambda op: float(op.time_s))
        times, first = sum(runs.values()), ops[0]
        part = Part(
            *at, first.kind, first.block, times, bound=longest.bound, basis=longest.basis, **_sums(runs)
        )
        found[at] = runs, part
    return found


def _sums(runs: Counter[tuple[Number, ...]]) -> dict[str, Any]:
    return {f: sum(n * figures[i] for figures, n in runs.items()) for i, f in enumerate(FIGURES)}
