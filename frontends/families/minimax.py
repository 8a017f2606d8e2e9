"""MiniMax-Text-01 and MiniMax-M1. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llmir.base.errors import UnsupportedError
from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Sublayer
from llmir.frontends.layers.linear_attention import Lightning
from llmir.frontends.layers.mlp import Moe, Routing, expert_tensor_names
from llmir.frontends.layers.parts import attention, check_chosen, decoder, kinds, layers

_KINDS = ("linear_attention", "full_attention")
_OLD = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}


@family("MiniMaxForCausalLM", "minimax")
def minimax(config: Config) -> Decoder:
    """MiniMaxForCausalLM: lightning attention; the residual is the scaled output of each norm."""
    return _decoder(config, (_KINDS[(i + 1) % 2] for i in range(layers(config))))


@family("MiniMaxM1ForCausalLM", "minimax_m1")
@family("MiniMaxText01ForCausalLM", "minimax_text_01")
def minimax_01(config: Config) -> Decoder:
    """The model with the field names of the code in its checkpoints, and with partially rotated heads."""
    for new, old in _OLD.items():
        config.spelled(**{f"{new}_{what}_factor": f"layernorm_{old}_{what}" for what in ("alpha", "beta")})
    if not config.flag("postnorm", False):
        raise config.error("postnorm", "residuals before norms are not modelled; true is", UnsupportedError)
    config.unmodelled("shared_intermediate_size", (None, 0), "a shared expert")
    config.ignore("shared_moe_mode")
    found, count = config.integers("attn_type_list"), layers(config)
    if len(found) != count or not {*found} <= {0, 1}:
        raise config.error("attn_type_list", f"expected 0 or 1 for each of {count} layers")
    size = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
    share = config.integer("rotary_dim", size) / size
    return _decoder(config, (_KINDS[kind] for kind in found), share_default=share)


def _decoder(config: Config, usual: Iterable[str], **positions: Any) -> Decoder:
    how: dict[str, Any] = {"positions_default": 131072, "kv_default": 8, "theta_default": 1e6, **positions}
    attends = attention(config, **how)
    config.unmodelled("block_size", (256,), "a sum in other pieces")
    keeps = Lightning(attends.heads, attends.head_dim, layers(config))
    experts = Moe(
        count=config.assumed("num_local_experts", 8),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        routing=Routing(normalize=True),
        module="block_sparse_moe",
        matrices=expert_tensor_names("w1", "w3", "w2"),
    )
    wide = check_chosen(config, experts)
    mixers: dict[str, Sublayer] = {_KINDS[0]: keeps, _KINDS[1]: attends}
    own = {kind: Layer(mixer, wide, **_factors(config, kind)) for kind, mixer in mixers.items()}
    stack = tuple(own[kind] for kind in kinds(config, usual, *_KINDS))
    return decoder(config, "MiniMaxForCausalLM", stack, eps_default=1e-5)


def _factors(config: Config, kind: str) -> dict[str, Any]:
    """The factors of the residual and of sublayer outputs, which must be equal for mixer and MLP."""
    mixer = kind.replace("attention", "attn")
    kept, added = (
        [config.number(f"{part}_{what}_factor", 1.0) for part in (mixer, "mlp")] for what in ("alpha", "beta")
    )
    if added[0] != added[1]:
        raise config.error(f"{mixer}_beta_factor", f"{added[0]} is not that of the MLP, {added[1]}")
    return {"kept": tuple(kept), "residual": added[0]}
