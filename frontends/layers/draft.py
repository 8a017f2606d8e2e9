"""A multi-token-prediction layer (arXiv:2412.19437, section 2.2), as the phase `draft` of a program.

For each token, the layer takes its hidden state and the id of the next token, and predicts the token after
the next.
"""

from __future__ import annotations

from collections.abc import Hashable

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import INT64
from llmir.ir.core.program import Program
from llmir.ir.sizes.polynomial import B, T
from llmir.ir.tools.build import Builder

from .blocks import Blocks
from .decoder import Decoder, Draft, LayerStack


@dataclass(frozen=True)
class ModelWithDraft:
    """A model with a multi-token prediction layer as draft phase, which has separate weights and a cache."""

    model: Decoder
    draft: Draft

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """Build the model; the draft phase shares the embedding and the head of the model."""
        whole = self.model.program(logits, apart)
        return whole.replace(phases={"draft": self._drafts(logits).replace(facts=whole.facts)})

    def _drafts(self, logits: str) -> Program:
        model, draft, b = self.model, self.draft, Builder("main")
        blocks = Blocks(b, model.dtype, model.norm, h=model.hidden, v=model.vocab, s=2)
        tokens = b.input(blocks.tensor(B, T, dtype=INT64), name="tokens", axes=("batch", "seq"))
        hidden = b.input(blocks.tensor(B, T, model.hidden), name="hidden", axes=("batch", "seq", "embed"))
        with b.block("embedding"):
            table = blocks.weight("v h", "embed.weight", f"{model.names.embedding}.weight")
            x = b.embedding(table, tokens)
        x = blocks.norm(x, "embedding_norm", draft.embedding_norm)
        hidden = blocks.norm(hidden, "hidden_norm", draft.hidden_norm)
        with b.block("draft"):
            pair = b.stack(x, hidden, name="pair")
            x = blocks.linear(pair, "b t s h", "s h H", "b t H", "draft_proj", draft.projection)
        stack = LayerStack([(draft.layer, None)], f"{draft.stem}.", model.hidden, model.dtype, model.norm)
        x = stack.build(blocks.beside, x)
        x = blocks.norm(x, "final_norm", draft.norm)
        with b.block("lm_head"):
            b.output(model.headed(blocks, b.last_token(x) if logits == "last" else x, table))
        return Program(model.name, {"main": b.graph(), **stack.bodies})
