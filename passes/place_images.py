"""place-images: put the rows of encoded images into the prompt, as an input of prefill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.pipeline import Pass, option

_AXES = ("batch", "image", "embed")


@dataclass(frozen=True)
class PlaceImages(Pass):
    """Insert `tokens` image embeddings into each sequence's prompt, at the positions of image token ids.

    The phase encode computes the image embeddings, and prefill takes them as an input; decode is unchanged.
    Run this pass before `shard` and `stages`.
    """

    name: ClassVar[str] = "place-images"
    phased: ClassVar[bool] = True

    tokens: int = option(1, least=1, most=10_000_000)

    def __call__(self, program: Program) -> Program:
        """Add images to prefill; decode runs the original program."""
        token = program.facts.get("image_token")
        if not isinstance(token, int):
            raise PassError(f"place-images: {program.name} has no image tower that llmir models")
        if program.image_tokens or "prefill" in program.phases:
            raise PassError(f"place-images: {program.name} already has image tokens in its prompts")
        if program.devices > 1:
            raise PassError("place-images: must run before shard and stages")
        (entry,) = program.entries
        graph = _placed(program[entry], token, self.tokens)
        phases = {"decode": program.replace(phases={}), **program.phases}
        return program.replace(graphs={**program.graphs, entry: graph}, phases=phases)


def _placed(graph: Graph, token: int, count: int) -> Graph:
    """The entry graph, with images placed into the result of the embedding lookup."""
    (ids,) = next(n for n in graph.inputs if n.op.axes == ("batch", "seq")).values

    def visit(b: Builder, node: Node, operands: Operands) -> Sequence[Value] | None:
        if ids not in node.operands:
            return None
        (embeddings,) = b.apply(node.op, *operands, name=node.name)
        type = b.type(embeddings)
        batch, _, hidden = type.shape
        images = b.input(Tensor((batch, count, hidden), type.dtype), name="images", axes=_AXES)
        how: dict[str, Any] = {"token": token, "block": node.op.block, "name": "place_images"}
        return (b.place_images(embeddings, images, operands.copy_of(ids), **how),)

    return Builder.rebuild(graph, visit)
