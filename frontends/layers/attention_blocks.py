"""What chooses blocks of keys for each query (MiniMax-M3)."""

from __future__ import annotations

from typing import Any

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value
from llmir.ir.sizes.polynomial import B, C

from .blocks import Blocks


@dataclass(frozen=True)
class BlockIndex:
    """`top_k` blocks of `length` keys, the last `local` ones among them, by scores of heads of `size`.

    There is a head for each key/value head of the attention; keys of their own are shared by all.
    """

    size: int
    length: int
    top_k: int
    local: int = 1

    def build(self, blocks: Blocks, x: Value, module: str, how: dict[str, Any]) -> Value:
        """The scores of all blocks, of hidden states; `how` queries and keys are rotated."""
        b, at = blocks.b, blocks.sized(y=self.size)
        with b.block("indexer"):
            q = at.linear(x, "b t h", "h g y", "b t g y", "index_q", f"{module}.index_q_proj")
            q = at.normal.build(at, q, "index_q_norm", f"{module}.index_q_norm", "y", 1)
            k = at.linear(x, "b t h", "h y", "b t y", "index_k", f"{module}.index_k_proj")
            k = at.normal.build(at, k, "index_k_norm", f"{module}.index_k_norm", "y", 1)
            q, k = b.rope(q, name="rope_index_q", **how), b.rope(k, name="rope_index_k", **how)
            kept = b.cache(at.tensor(B, C, self.size), name="index_cache", axes=("batch", "cached", "latent"))
            keys = b.append(kept, k, name="append_index")
            scores: Value = b.block_scores(q, keys, length=self.length, name="block_scores")
            return scores

    def select(self, at: Blocks, scores: Value, index: Value) -> Value:
        """The scores of keys, of those blocks alone."""
        how: dict[str, Any] = {"length": self.length, "top_k": self.top_k, "local": self.local}
        result: Value = at.b.select_blocks(scores, index, name="select", **how)
        return result
