"""What configs say of an index that chooses blocks of keys (MiniMax-M3)."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.reader import Config

from .attention import Attention
from .attention_blocks import BlockIndex
from .parts import kinds, layers

_KINDS = ("full_attention", "minimax_m3_sparse")
_OBJECT = "sparse_attention_config"
# In that object, or beside it.
_SIZES = {
    "index_n_heads": ("sparse_num_index_heads", 4),
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}


def block_attention(config: Config, mixer: Attention) -> list[Attention]:
    """By layer the attention as it is, or of the blocks that an index chooses; in either spelling."""
    stated, none = config.nested(_OBJECT), (0,) * layers(config)
    places = stated.integers("sparse_attention_freq", none) if stated else none
    found = kinds(config, [_KINDS[bool(place)] for place in places], *_KINDS)
    own = dict(
        zip(_KINDS, (mixer, replace(mixer, blocks=_index(config, stated, mixer.kv_heads))), strict=True)
    )
    return [own[kind] for kind in found]


def _index(config: Config, stated: Config | None, kv_heads: int) -> BlockIndex:
    """What chooses blocks; an error for other heads than those of keys."""
    heads, size, length, top_k, local = (
        stated.integer(old, beside) if stated else beside
        for beside, old in ((config.integer(key, default), old) for key, (old, default) in _SIZES.items())
    )
    if heads != kv_heads:
        raise config.error(
            "index_n_heads", f"{heads} heads for {kv_heads} key/value heads, which need one each"
        )
    if local > top_k:
        raise config.error(
            "index_local_blocks", f"{local} is more than the {top_k} blocks of index_topk_blocks"
        )
    if stated:
        stated.ignore("use_sparse_attention", "sparse_init_block", "sparse_score_type")
    return BlockIndex(size, length, top_k, local)
