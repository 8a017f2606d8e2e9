"""The weights of a model by block and kind: parameters and bytes, of a layer and in all."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from llmir.base.dataclass import dataclass
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

NAMES = {"embed": "embedding"}  # of weights that are called otherwise than what they are
ROUTER = "router"


@dataclass(frozen=True)
class WeightSum:
    """The weights of one kind, such as `q_proj` with its bias, in as many `layers` as have them alike.

    What lies outside of the layers has no number of them, and nothing a layer. Bytes are those of the whole
    model, scales among them: of all ranks together, but for what they hold in copies.
    """

    block: str
    name: str
    dtype: str
    layers: int | None
    layer_parameters: int | None
    layer_bytes: int | None
    parameters: int
    bytes: int


@lru_cache(maxsize=256)
def weights(program: Program) -> tuple[WeightSum, ...]:
    """All weights: the embedding, the layers, and the rest; they add up to `program.parameters`."""
    places: dict[tuple[str, str, str], list[Instance]] = {}
    for at in program.weights():
        where, name = _name(program, at)
        places.setdefault((where, at.node.op.block, name), []).append(at)
    times: dict[WeightSum, int] = {}
    for (where, block, name), held in places.items():
        one = _one(block, name, held, inside=bool(where))
        times[one] = times.get(one, 0) + held[0].repeat
    return tuple(sorted((_all(one, n) for one, n in times.items()), key=_place))


def _name(program: Program, at: Instance) -> tuple[str, str]:
    """Where it is, a path that is empty outside of layers, and what it is called."""
    path = at.path.removeprefix(program.prefix(program.entries[at.stage]))
    stem = path.removesuffix(".weight").removesuffix(".bias")
    where, _, name = stem.rpartition(".")
    name = ROUTER if at.node.op.block == ROUTER else NAMES.get(name, name)
    return f"{at.stage}.{where}" if where else "", name


def _one(block: str, name: str, held: list[Instance], *, inside: bool) -> WeightSum:
    """The weights of one kind, in one layer or outside of layers."""
    types = [at.node.results[0] for at in held]
    parameters = sum(Binding()(at.node.op.parameters) for at in held)
    size = sum(Binding()(t.bytes) for t in types)
    return WeightSum(
        block=block,
        name=name,
        dtype=types[0].dtype.short,
        layers=1 if inside else None,
        layer_parameters=parameters if inside else None,
        layer_bytes=size if inside else None,
        parameters=parameters,
        bytes=size,
    )


def _all(one: WeightSum, times: int) -> WeightSum:
    layers = times if one.layers else None
    return replace(one, layers=layers, parameters=times * one.parameters, bytes=times * one.bytes)


def _place(weight: WeightSum) -> int:
    return 1 if weight.layers else 0 if weight.name == "embedding" else 2
