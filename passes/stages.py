"""stages: pipeline parallelism, with one entry graph and consecutive layers per stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.program import Program
from llmir.ir.tools.loops import PipelineCut, cut_sizes
from llmir.ir.tools.pipeline import Pass, option

_MOST = 10_000  # most stages


@dataclass(frozen=True)
class Stages(Pass):
    """Split the layers over pipeline stages on separate ranks, connected by sends.

    Options: pp, the number of nearly equal stages, or `layers=(30, 32, 32, 32)`; and micro_batches, the
    number of parts into which a step splits its batch. If the layers do not divide evenly, the stages just
    before the last stage get one more layer each, as in vLLM, because the last stage also has the head. The
    first and the last stage both store a tied embedding.
    """

    name: ClassVar[str] = "stages"
    encodes: ClassVar[bool] = False  # the encoder is on the first stage

    pp: int = option(1, least=1, most=_MOST)
    layers: str | Sequence[int] = ""
    micro_batches: int = option(1, least=1, most=1 << 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = _sizes(self.layers)
        if sizes and self.pp not in (1, len(sizes)):
            each = " + ".join(map(str, sizes))
            raise PassError(f"stages: pp is {self.pp}, but layers has {len(sizes)} stages: {each}")
        object.__setattr__(self, "layers", f"({', '.join(map(str, sizes))})" if sizes else "")

    def __call__(self, program: Program) -> Program:
        """Split the entry graph between layers."""
        sizes = _sizes(self.layers)
        if self.pp > 1 or sizes:
            program = _staged(program, cut_sizes(program, sizes or self.pp))
        if self.micro_batches == 1:
            return program
        return program.replace(micro_batches=self.micro_batches * program.micro_batches)


def _sizes(layers: str | Sequence[int]) -> tuple[int, ...]:
    """Parse the layers of each stage from `(3, 4)`, `3,4` or a sequence of numbers."""
    if isinstance(layers, str):
        layers = [
            arguments.parse_field(n.strip()) for n in layers.strip().strip("()").split(",") if n.strip()
        ]
    found = arguments.items(
        "stages: layers", layers, "numbers such as (30, 32, 32, 32)", most=_MOST, error=PassError
    )
    return tuple(arguments.integer("stages: layers", n, 1, error=PassError) for n in found)


def _staged(program: Program, sizes: tuple[int, ...]) -> Program:
    if len(sizes) == 1:
        return program
    (entry,) = program.entries
    cut = PipelineCut(program, sizes)
    graphs = {g.name: g for g in map(cut.stage, range(len(sizes)))}
    bodies = {name: g for name, g in program.graphs.items() if name != entry}
    if taken := graphs.keys() & bodies.keys():
        raise PassError(f"stages: {program.name} has a graph @{min(taken)} already")
    return program.replace(graphs=graphs | bodies, entries=tuple(graphs))
