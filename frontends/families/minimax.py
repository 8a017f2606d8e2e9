"""MiniMax-Text-01 and MiniMax-M1. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer, Sublayer
from ..mixers import Lightning
from ..mlps import Moe, Routing, apart
from ..parts import attention, check_chosen, decoder, kinds, layers

_KINDS = ("linear_attention", "full_attention")


@family("MiniMaxForCausalLM", "minimax")
def minimax(config: Config) -> Decoder:
    """MiniMaxForCausalLM: lightning attention; residuals are of what norms give, times a factor each."""
    attends = attention(config, positions_default=131072, kv_default=8, theta_default=1e6)
    config.unmodelled("block_size", (256,), "a sum in other pieces")
    keeps = Lightning(attends.heads, attends.head_dim, layers(config))
    experts = Moe(
        count=config.assumed("num_local_experts", 8),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        routing=Routing(normalize=True),
        module="block_sparse_moe",
        matrices=apart("w1", "w3", "w2"),
    )
    wide = check_chosen(config, experts)
    mixers: dict[str, Sublayer] = {_KINDS[0]: keeps, _KINDS[1]: attends}
    own = {kind: Layer(mixer, wide, **_factors(config, kind)) for kind, mixer in mixers.items()}
    usual = (_KINDS[(i + 1) % 2] for i in range(layers(config)))
    stack = tuple(own[kind] for kind in kinds(config, usual, *_KINDS))
    return decoder(config, "MiniMaxForCausalLM", stack, eps_default=1e-5)


def _factors(config: Config, kind: str) -> dict[str, Any]:
    """Of what is kept, and of what mixer and mlp add, which are one."""
    mixer = kind.replace("attention", "attn")
    kept, added = (
        [config.number(f"{part}_{what}_factor", 1.0) for part in (mixer, "mlp")] for what in ("alpha", "beta")
    )
    if added[0] != added[1]:
        raise config.error(f"{mixer}_beta_factor", f"{added[0]} is not mlp_beta_factor {added[1]}")
    return {"kept": tuple(kept), "residual": added[0]}
