"""beam-search: select candidates of each beam in every step, and reorder caches that grow by copies."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.program import Program
from llmir.ir.ops.beam_search import MOST
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.pipeline import Pass, option
from llmir.ir.tools.rewrite import Match, Rule

from .fuse_attention import rewrite_graphs


def _concat(p: Any, cache: Value, rows: Value) -> Any:
    return p.concat(cache, rows, label="concat")


def _reordered(b: Builder, match: Match, cache: Value, rows: Value) -> Any:
    node = match["concat"]
    moved = b.reorder(cache, block=node.op.block, name=f"reorder_{node.name}")
    return b.concat(moved, rows, block=node.op.block, name=node.name)


_REORDER = (Rule("reorder", _concat, _reordered),)


def copies_caches(program: Program) -> bool:
    """Whether sequences have separate caches that grow by copies."""
    decode = program.phase("decode")
    return rewrite_graphs(decode, _REORDER) is not decode


@dataclass(frozen=True)
class BeamSearch(Pass):
    """Choose 2·`width` candidates from each row of logits; decode copies caches that grow by copies again.

    With twice as many candidates as beams, enough remain if some beams end (transformers/generation/utils.py,
    vllm/entrypoints/llm.py). If caches are updated in place, they are read through block tables, and only
    entries of these tables change places. Run it after all other passes.
    """

    name: ClassVar[str] = "beam-search"
    phased: ClassVar[bool] = True

    width: int = option(2, least=2, most=MOST)

    def __call__(self, program: Program) -> Program:
        """Rewrite prefill and decode."""
        if program.patches or not program.is_model:
            raise PassError(f"beam-search: {program.name} returns no logits over a vocabulary")
        bare = program.replace(phases={})
        later = program.phases.get("decode", bare)
        others = {name: phase for name, phase in program.phases.items() if name != "decode"}
        if "prefill" in others:
            others["prefill"] = self._chosen(others["prefill"])
        first, later = self._chosen(bare), self._chosen(rewrite_graphs(later, _REORDER))
        return first.replace(phases=others if later == first else {**others, "decode": later})

    def _chosen(self, program: Program) -> Program:
        """The program with candidates in addition to logits."""
        entry = program.entries[-1]
        given = self._candidates(program[entry], program.name)
        return program.replace(graphs={**program.graphs, entry: given})

    def _candidates(self, graph: Graph, name: str) -> Graph:
        logits = graph.outputs[0]
        type = graph.type(logits)
        if type.placements[-1]:
            raise PassError(f"beam-search: ranks of {name} hold parts of the logits, {type}")
        if any(node.op.proposes for node in graph.nodes):
            raise PassError(f"beam-search: {name} has candidates already")

        def outputs(b: Builder, values: Operands) -> tuple[Value, ...]:
            how: dict[str, Any] = {"k": 2 * self.width, "block": "lm_head", "name": "candidates"}
            return (*values, *b.log_softmax_top_k(values[0], **how))

        return Builder.rebuild(graph, lambda *_: None, outputs)
