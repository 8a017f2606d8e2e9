"""Conservation: all ranks together against one device, with what is replicated named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from llmir.backends.report import count
from llmir.dim import Binding
from llmir.graph import Instance, Program
from llmir.mesh import ONE_DEVICE
from llmir.op import work
from llmir.ops.source import Cache, Weight
from llmir.tensor import Tensor

WHAT = ("weights", "kv_cache", "matmul_flops")


@dataclass(frozen=True)
class Share:
    """A weight, a cache or the products of an op: bytes or matmul FLOPs of all its `repeat`s.

    `whole` is what one device has, `ranks` what all have together, the fullest taken for all; `copies` is on
    how many ranks each piece is. `even` says that its sizes divide and that it has no scales.
    """

    what: str
    name: str
    block: str
    repeat: int
    copies: int
    even: bool
    whole: int
    ranks: int

    @property
    def replicated(self) -> int:
        """What the copies beyond the first add."""
        return (self.copies - 1) * self.whole

    @property
    def uneven(self) -> int:
        """What is left: pieces that are rounded up, and scales that each piece has for itself."""
        return self.ranks - self.copies * self.whole


@dataclass(frozen=True)
class Total:
    """All of one kind: `ranks` together = `unsharded` + `replicated` + `uneven`."""

    unsharded: int
    replicated: int
    uneven: int
    ranks: int
    per_rank: float


@dataclass(frozen=True)
class Conservation:
    """A sharded program against itself on one device, in one step."""

    before: Program
    after: Program
    at: Binding

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Every weight, cache and product of the sharded program."""
        return tuple(_shares(self.after, self.at))

    @cached_property
    def totals(self) -> dict[str, Total]:
        """By what: `weights` and `kv_cache` in bytes, `matmul_flops`."""
        one, found = _whole(self.before, self.at), {}
        ranks = _ranks(self.after)
        for what in WHAT:
            mine = [s for s in self.shares if s.what == what]
            together = sum(s.ranks for s in mine)
            replicated = sum(s.replicated for s in mine)
            # Against the program before: what it lost or gained would be left over here.
            rest = together - one[what] - replicated
            found[what] = Total(one[what], replicated, rest, together, together / ranks)
        return found

    @property
    def replicated(self) -> tuple[Share, ...]:
        """What is on several ranks."""
        return tuple(s for s in self.shares if s.copies > 1)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Where the sum does not come out: nothing may be lost, and only what is uneven may be left over."""
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        shares = [{**asdict(s), "replicated": s.replicated} for s in self.replicated]
        for share in shares:
            del share["even"]
        return {
            "conserved": not self.problems,
            "problems": list(self.problems),
            "totals": {what: asdict(total) for what, total in self.totals.items()},
            "replicated": shares,
        }


def conservation(
    before: Program, after: Program, *, batch: int = 1, new: int = 1, context: int = 0
) -> Conservation:
    """Hold `after`, which is `before` laid over a mesh, against it, in one step.

    >>> import llmir
    >>> model = llmir.load("llama3.1-8b")
    >>> held = conservation(model, llmir.run(model, "shard{tp=16}"))
    >>> held.problems, [(s.name, s.copies) for s in held.replicated if s.block == "norm"][:2]
    ((), [('final_norm.weight', 16), ('layer.input_norm.weight', 16)])
    """
    at = {"B": count("batch", batch, 1), "T": count("new", new, 1), "C": count("context", context, 0)}
    return Conservation(before, after, Binding(**at))


def _ranks(program: Program) -> int:
    """How many ranks hold each op."""
    return program.mesh.devices // program.mesh.degree("pp")


def _whole(program: Program, at: Binding) -> dict[str, int]:
    """What one device has."""
    found = dict.fromkeys(WHAT, 0)
    for share in _shares(program.replace(mesh=ONE_DEVICE), at):
        found[share.what] += share.whole
    return found


def _shares(program: Program, at: Binding) -> Iterator[Share]:
    written = Binding(**at.symbols | {"C": at.symbols["C"] + at.symbols["T"]})  # caches after the step
    for node in program.instances():
        if isinstance(node.node.op, Weight):
            yield _tensor(program, node, "weights", at)
        elif isinstance(node.node.op, Cache):
            yield _tensor(program, node, "kv_cache", written)
        else:
            yield from _products(program, node, at)


def _tensor(program: Program, node: Instance, what: str, at: Binding) -> Share:
    ranks, mesh, type = _ranks(program), program.mesh, node.node.results[0]
    return Share(
        what,
        node.path,
        node.node.op.block,
        node.repeat,
        ranks // mesh.size(type.spread),
        _even(program, type, at) and not type.dtype.scale_bits,
        node.repeat * int(at(type.bytes)),
        node.repeat * int(at(type.local(mesh).bytes)) * ranks,
    )


def _products(program: Program, node: Instance, at: Binding) -> Iterator[Share]:
    """The products of an op, one a result; each is split where any of its axes is."""
    op, results, ranks = node.node.op, node.node.results, _ranks(program)
    operands = node.graph.operand_types(node.node)
    mine = work(op, operands, results, program.mesh) if operands else None
    if mine is None or not mine.matrix:
        return
    alone = work(op, tuple(t.laid() for t in operands), tuple(t.laid() for t in results), ONE_DEVICE)
    parts = [(node.path, (*operands, *results), mine.matrix, alone.matrix)]
    if len(results) > 1:
        flops = [[2 * g.batch * g.m * g.n * g.k for g in done.gemms] for done in (mine, alone)]
        parts = [
            (f"{node.path}#{i}", (operands[0], operands[1 + i], result), *done)
            for i, (result, *done) in enumerate(zip(results, *flops, strict=True))
        ]
    for name, types, local, whole in parts:
        # A sum is not split work: each rank does all of its summand.
        split = {a for t in types for p in (*t.placements, t.tokens) for a in p}
        yield Share(
            "matmul_flops",
            name,
            op.block,
            node.repeat,
            ranks // program.mesh.size(split),
            all(_even(program, t, at) for t in types),
            node.repeat * int(at(whole)),
            node.repeat * int(at(local)) * ranks,
        )


def _even(program: Program, type: Tensor, at: Binding) -> bool:
    """Whether each piece is as large as the others."""
    mesh, sizes = program.mesh, [int(at(n)) for n in type.shape]
    pieces = [(n, mesh.size(p)) for n, p in zip(sizes, type.placements, strict=True)]
    if type.tokens:
        batch = -(-sizes[0] // pieces[0][1])
        pieces.append((batch * sizes[1], mesh.size(type.tokens)))
    return all(n % p == 0 for n, p in pieces)
