"""Conservation: compare all ranks of a sharded program with one device.

`conservation` compares weights, KV cache and matrix FLOPs of both, and lists every `ShardedTerm` that is
replicated or split unevenly. Together, the ranks have the unsharded amount plus the replicated and the uneven
amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from llmir.base.arguments import integer
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.names import is_layered
from llmir.base.values import figure
from llmir.ir.core.mesh import ONE_DEVICE
from llmir.ir.core.op import work
from llmir.ir.core.program import Instance, Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.ragged import most

WHAT = ("weights", "kv_cache", "matmul_flops")


@dataclass(frozen=True)
class ShardedTerm:
    """A weight, a cache or the matrix products of an op: bytes or matrix FLOPs of all its `repeat`s in a
    step.

    `whole` is the amount on one device. `ranks` is the total over ranks, if all ranks had as much as the
    fullest one. `copies` is the number of ranks that have each piece, and `spare` is the additional amount
    for copies of experts and padding. `even` means that the ranks divide its sizes evenly and that it has no
    scales.
    """

    what: str
    name: str
    block: str
    repeat: int
    copies: int
    even: bool
    whole: int
    ranks: int
    spare: int = 0

    @property
    def replicated(self) -> int:
        """The amount in copies after the first one."""
        return (self.copies - 1) * self.whole + self.spare

    @property
    def uneven(self) -> int:
        """The rest of the amount: pieces that are rounded up, and scales that each piece stores."""
        return self.ranks - self.copies * self.whole - self.spare


@dataclass(frozen=True)
class ConservationTotal:
    """The sums of one kind; the total of all ranks is `unsharded` + `replicated` + `uneven`."""

    unsharded: int
    replicated: int
    uneven: int
    ranks: int
    per_rank: float


@dataclass(frozen=True)
class Conservation(Result):
    """A sharded program compared with the same program on one device, in one step."""

    before: Program
    after: Program
    at: Binding

    @cached_property
    def shares(self) -> tuple[ShardedTerm, ...]:
        """Every weight, cache and product of the sharded program."""
        return tuple(_joined(_shares(self.after, self.at)))

    @figure
    def totals(self) -> Mapping[str, ConservationTotal]:
        """The totals of `weights` and `kv_cache` in bytes, and of `matmul_flops`."""
        one, found = _whole(self.before, self.at), {}
        for what in WHAT:
            mine = [s for s in self.shares if s.what == what]
            together = sum(s.ranks for s in mine)
            replicated = sum(s.replicated for s in mine)
            # If work was lost or added in comparison with the unsharded program, it would appear here.
            rest = together - one[what] - replicated
            found[what] = ConservationTotal(
                one[what], replicated, rest, together, together / self.after.devices
            )
        return found

    @property
    def replicated(self) -> tuple[ShardedTerm, ...]:
        """The terms that are on several ranks."""
        return tuple(s for s in self.shares if s.copies > 1 or s.spare)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """The terms whose sums differ. No work may be lost, and only uneven terms may have a remainder."""
        found = [
            f"{s.name}: {s.ranks:,} over all ranks is not {s.copies} × {s.whole:,}"
            for s in self.shares
            if s.uneven < 0 or (s.even and s.uneven)
        ]
        for what, total in self.totals.items():
            whole = sum(s.whole for s in self.shares if s.what == what)
            if whole != total.unsharded:
                found.append(f"{what}: {whole:,} in the sharded program, {total.unsharded:,} before")
        return tuple(found)

    @property
    def agrees(self) -> bool:
        """Whether all sums are correct."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        shares = [{**asdict(s), "replicated": s.replicated} for s in self.replicated]
        for share in shares:
            del share["even"], share["spare"]
        return {
            "model": self.after.name,
            "devices": self.after.devices,
            "parallel": asdict(self.after.parallelism),
            "step": {
                "batch": self.at.symbols["B"],
                "new": self.at.symbols["T"],
                "context": self.at.symbols["C"],
            },
            "conserved": not self.problems,
            "problems": list(self.problems),
            "totals": {what: asdict(total) for what, total in self.totals.items()},
            "replicated": shares,
        }


def conservation(
    before: Program,
    after: Program,
    *,
    batch: int | None = None,
    new: int | None = None,
    context: int = 0,
) -> Conservation:
    """Compare a sharded program `after` with its unsharded form `before`, in one step.

    The default is one sequence for each data-parallel rank, and one token for each tensor-parallel rank.

    >>> import llmir
    >>> model = llmir.load("llama3.1-8b")
    >>> held = conservation(model, llmir.run(model, "shard{tp=16}"))
    >>> held.problems, [(s.name, s.copies) for s in held.replicated if s.block == "norm"][:2]
    ((), [('final_norm.weight', 16), ('layer.input_norm.weight', 16)])
    """
    if before.devices > 1:
        raise InputError(
            f"{before.name} is sharded over {before.devices} ranks; expected a program on one device"
        )
    batch = after.parallelism.dp * after.micro_batches if batch is None else integer("batch", batch, 1)
    if after.patches and new is not None:
        raise InputError(f"new: {after.name} reads {after.patches} patches of each image, and no tokens")
    tokens = 1 if after.patches else after.parallelism.tp
    new = tokens if new is None else integer("new", new, 1)
    if batch % after.micro_batches:
        rule = f"expected a multiple of the {after.micro_batches} micro-batches"
        raise InputError(f"batch: {rule}, got {batch}")
    at = {"B": batch, "T": new, "C": integer("context", context)}
    return Conservation(before, after, Binding(**at))


def _joined(shares: Iterable[tuple[str, ShardedTerm]]) -> Iterator[ShardedTerm]:
    """Merge terms of several stages that have the same checkpoint name, because they are copies of each
    other.
    """
    found: dict[str, ShardedTerm] = {}
    for key, share in shares:
        first = found.setdefault(key, share)
        if first is not share:
            copies, ranks = first.copies + share.copies, first.ranks + share.ranks
            found[key] = replace(first, copies=copies, ranks=ranks, spare=first.spare + share.spare)
    yield from found.values()


def _whole(program: Program, at: Binding) -> dict[str, int]:
    """The amounts on one device."""
    found = dict.fromkeys(WHAT, 0)
    for _, share in _shares(program, at):
        found[share.what] += share.whole
    return found


def _shares(program: Program, step: Binding) -> Iterator[tuple[str, ShardedTerm]]:
    """Each term of a stage with its key; a weight's key is its parameter name, so that it is unique in the
    model.
    """
    parts = program.micro_batches
    at = Binding(**{**step.symbols, "B": int(step.symbols["B"]) // parts})
    written = Binding(**{**at.symbols, "C": at.symbols["C"] + at.symbols["T"]})  # caches after the step
    for node in program.held():
        share, name = _tensor(program, node, "weights", node.repeat, at), node.node.op.param
        yield (name if name and not is_layered(name) else node.path), share
    for node in program.instances():
        if node.node.op.role == "cache":
            yield node.path, _tensor(program, node, "kv_cache", node.repeat * parts, written)
        elif node.node.op.role != "weight":
            yield from ((s.name, s) for s in _products(program, node, node.repeat * parts, at))


def _tensor(program: Program, node: Instance, what: str, times: int, at: Binding) -> ShardedTerm:
    op: Any = node.node.op
    mesh, type = program.mesh, node.node.results[0]
    whole, copies = times * int(at(op.own.bytes)), mesh.devices // mesh.size(type.spread)
    return ShardedTerm(
        what,
        node.path,
        node.node.op.block,
        node.repeat,
        copies,
        _even(program, type, at) and not type.dtype.scale_bits,
        whole,
        times * int(at(type.local(mesh).bytes)) * mesh.devices,
        copies * (times * int(at(type.bytes)) - whole),
    )


def _products(program: Program, node: Instance, times: int, at: Binding) -> Iterator[ShardedTerm]:
    """The matrix products of an op, one per result; a product is split if any of its axes is split.

    A scan's products have no separate results, and some of them read a single operand. Each product is split
    like all products together, or like one of them (B and C of a group, if it has more heads than ranks have
    groups).
    """
    op, results, mesh = node.node.op, node.node.results, program.mesh
    operands = node.graph.operand_types(node.node)
    mine = work(op, operands, results, mesh) if operands else None
    if mine is None or not mine.matrix:
        return
    alone = work(op, tuple(t.laid() for t in operands), tuple(t.laid() for t in results), ONE_DEVICE)
    every: tuple[Tensor, ...] = (*operands, *results)
    scan = len(mine.gemms) > len(results) > 1
    parts = [(node.path, every, mine.matrix, alone.matrix)]
    if len(results) > 1:
        flops = [[2 * g.batch * g.m * g.n * g.k for g in done.gemms] for done in (mine, alone)]
        own = [every if scan else (operands[0], operands[1 + i], results[i]) for i in range(len(flops[0]))]
        parts = [(f"{node.path}#{i}", *part) for i, part in enumerate(zip(own, *flops, strict=True))]
    for name, types, local, whole in parts:
        one, ranks = times * int(at(whole)), times * int(at(local)) * mesh.devices
        # A partial sum does not split work: each rank computes all of its summand.
        splits = [{a for p in (*t.placements, t.tokens) for a in p} for t in types]
        copies, *alike = (mesh.devices // mesh.size(split) for split in (set().union(*splits), *splits))
        if scan and ranks != copies * one:
            copies = next((c for c in alike if ranks == c * one), copies)
        yield ShardedTerm(
            "matmul_flops",
            name,
            op.block,
            node.repeat,
            copies,
            all(_even(program, t, at) for t in types),
            one,
            ranks,
        )


def _even(program: Program, type: Tensor, at: Binding) -> bool:
    """Whether all pieces have the same size."""
    mesh, sizes = program.mesh, [int(at(n)) for n in type.shape]
    ranks = [mesh.size(p) for p in type.placements]
    held = [int(at(most(n, r))) for n, r in zip(type.shape, ranks, strict=True)]
    tokens = held[0] * sizes[1] % mesh.size(type.tokens) if type.tokens else 0
    return not tokens and all(m * r == n for m, r, n in zip(held, ranks, sizes, strict=True))
