"""Sharding plans: the placements of logical axes on a mesh, by which `shard` places sources.

`plan` computes a `ShardingPlan` from the degrees of parallelism, and raises an error for an axis that a
degree does not divide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property, lru_cache
from math import gcd

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Node
from llmir.ir.core.mesh import Mesh, Parallelism, mesh_of
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement, Tensor


@dataclass(frozen=True, eq=False)
class ShardingPlan:
    """The placement of each logical axis; `tokens` is the placement of sequences × positions together.

    The mesh of the plan has no separate axes for experts and tokens.
    """

    mesh: Mesh
    axes: dict[str, Placement]
    tokens: Placement
    heads: Mapping[int, Mapping[str, Placement]] = field(default_factory=dict)  # by number of groups

    def lay(self, source: Node) -> Tensor:
        """The type of a source with the placement of this plan."""
        key = source.op.axes, source.results[0]
        if key not in self._laid:
            self._laid[key] = self._lay(source)
        return self._laid[key]

    @cached_property
    def _laid(self) -> dict[tuple[tuple[str, ...], Tensor], Tensor]:
        return {}

    def _lay(self, source: Node) -> Tensor:
        axes, type = source.op.axes, source.results[0]
        groups = next((n for axis, n in _sizes(source) if axis == "kv_heads"), 1)
        where = {**self.axes, **self.heads.get(groups, {})}
        if "expert" in axes:
            where["mlp"] = where["expert_mlp"]
        placements = [where.get(axis, ()) for axis in axes]
        tokens = self.tokens if axes[:3] == ("batch", "seq", "embed") else ()
        return type.laid(placements, (), tokens)


def plan(program: Program, degrees: Parallelism) -> ShardingPlan:
    """Compute the placements for these degrees; `PassError` names an axis that a degree does not divide."""
    found = _plan(replace(degrees, pp=1), frozenset({1, *_heads(program)}))
    _check(program, degrees, found)
    return found


@lru_cache(maxsize=256)
def _plan(degrees: Parallelism, groups: frozenset[int]) -> ShardingPlan:
    """The plan for these numbers of heads, cached for all programs with equal splits."""
    mesh = mesh_of(dp=degrees.dp, tp=degrees.tp)
    dp, tp = mesh.atoms("dp"), mesh.atoms("tp")
    heads = {g: _prefix(mesh, tp, gcd(degrees.tp, g)) for g in groups}
    expert = _prefix(mesh, (*dp, *tp), degrees.ep)
    return ShardingPlan(
        mesh,
        {
            # The ranks that share experts gather their tokens, so the axes of these ranks are innermost.
            "batch": tuple(sorted(dp, key=lambda axis: axis not in expert)),
            "mlp": tp,
            "vocab": tp,
            "expert": expert,
            "expert_mlp": tuple(a for a in (*dp, *tp) if a not in expert),
        },
        tp if degrees.sp else (),
        {g: {"kv_heads": kv, "heads": tuple(a for a in tp if a not in kv)} for g, kv in heads.items()},
    )


def _prefix(mesh: Mesh, atoms: Placement, degree: int) -> Placement:
    """Atoms whose sizes multiply to `degree`; the first atoms if possible."""
    taken: list[str] = []
    left = degree
    for atom in atoms:
        if left % mesh.size((atom,)) == 0:
            taken.append(atom)
            left //= mesh.size((atom,))
    return tuple(taken) if left == 1 else ()


def _sources(program: Program) -> Iterator[Node]:
    return (source for graph in program.graphs.values() for source in graph.sources)


def _sizes(source: Node) -> Iterator[tuple[str, int]]:
    """The logical axes of a source that have numeric sizes, with these sizes."""
    pairs = zip(source.op.axes, source.results[0].shape, strict=False)
    return ((axis, n) for axis, n in pairs if isinstance(n, int))


@lru_cache(maxsize=64)
def _heads(program: Program) -> dict[int, set[int]]:
    """For each number of key/value heads (of attention or of a scan), the numbers of query heads."""
    found: dict[int, set[int]] = {}
    for sizes in map(dict, map(_sizes, _sources(program))):
        if "kv_heads" in sizes or "heads" in sizes:
            groups = found.setdefault(sizes.get("kv_heads", 1), set())
            groups |= {sizes["heads"]} if "heads" in sizes else set()
    return {kv_heads: groups or {1} for kv_heads, groups in found.items()}


@lru_cache(maxsize=64)
def _shapes(program: Program) -> tuple[Node, ...]:
    """One weight for each set of weights with equal placements."""
    weights = (source for source in _sources(program) if source.op.role == "weight")
    return tuple({(source.op.axes, source.results[0]): source for source in weights}.values())


@lru_cache(maxsize=64)
def _all_sizes(program: Program) -> Mapping[str, list[int]]:
    """The sizes of each axis in sources, in order."""
    found: dict[str, set[int]] = {}
    for source in _sources(program):
        for axis, n in _sizes(source):
            found.setdefault(axis, set()).add(n)
    return {axis: sorted(sizes) for axis, sizes in found.items()}


def _whole_heads(program: Program, tp: int) -> Iterator[tuple[str, int]]:
    """The axes of heads that `tp` cannot split, with their sizes."""
    for kv_heads, groups in _heads(program).items():
        if tp % kv_heads and kv_heads % tp:
            yield "kv_heads", kv_heads
        elif tp > kv_heads:
            yield from (("heads", kv_heads * n) for n in sorted(groups) if n % (tp // kv_heads))


def _check(program: Program, degrees: Parallelism, found: ShardingPlan) -> None:
    if degrees.ep > 1 and not any("expert" in source.op.axes for source in _sources(program)):
        raise PassError(f"shard: ep {degrees.ep}: {program.name} has no experts")
    ranks = degrees.dp * degrees.tp
    if ranks % degrees.ep:
        raise PassError(f"shard: ep {degrees.ep}: does not divide dp × tp = {ranks}; {_allowed(ranks)}")
    for axis, heads in _whole_heads(program, degrees.tp):
        raise PassError(_refused(axis, heads, "tp", degrees.tp, program, degrees))
    for source in _shapes(program):
        axes, type = source.op.axes, source.results[0]
        for axis, size, placement in zip(axes, type.shape, found.lay(source).placements, strict=False):
            split = found.mesh.size(placement)
            if (
                isinstance(size, int)
                and size % split
                and axis != "vocab"
                and (axis != "expert" or size < split)
            ):
                name = "ep" if axis == "expert" else "dp·tp/ep" if "expert" in axes else "tp"
                raise PassError(_refused(axis, size, name, split, program, degrees))


def padding_notes(program: Program, plan: ShardingPlan) -> Iterator[str]:
    """Notes on vocabularies and experts that ranks cannot divide evenly; the largest part sets the cost.

    Engines pad a vocabulary table, so that the last rank has rows of zeros. For experts, some ranks store one
    expert fewer than others.
    """

    def uneven(wanted: str) -> tuple[int, list[int]]:
        ways = plan.mesh.size(plan.axes[wanted])
        return ways, [n for n in _all_sizes(program).get(wanted, ()) if n % ways]

    ways, sizes = uneven("vocab")
    for size in sizes:
        yield f"vocabulary of {size:,} padded to {-(-size // ways) * ways:,}, to be split {ways} ways"
    ways, sizes = uneven("expert")
    for size in sizes:
        yield f"{size} experts on {ways} ranks: {size // ways} or {size // ways + 1} each"


_AXES = {"kv_heads": "KV heads", "expert": "experts", "mlp": "columns of an MLP", "vocab": "vocabulary rows"}


def _refused(axis: str, size: int, name: str, split: int, program: Program, degrees: Parallelism) -> str:
    what = f"{size:,} {_AXES.get(axis, axis)} of the model"
    head = f"shard: {name} {split}: {what} cannot be split {split} ways"
    if name == "ep":
        ranks = degrees.dp * degrees.tp
        fit = ", ".join(str(d) for d in range(1, size + 1) if ranks % d == 0)
        return f"{head}; allowed: {fit}"
    works = ", ".join(str(n) for n in range(1, 129) if divides(program, n))
    return f"{head}; allowed: {works}"


def divides(program: Program, tp: int) -> bool:
    """Whether tensor parallelism of degree `tp` can split every axis that it applies to."""
    if any(_whole_heads(program, tp)):
        return False
    sizes = [n for source in _sources(program) for axis, n in _sizes(source) if axis == "mlp"]
    return all(n % tp == 0 for n in sizes)


def _allowed(n: int) -> str:
    return f"allowed: {', '.join(str(d) for d in range(1, n + 1) if n % d == 0)}"
