"""MiniMax-M2 and M2.5. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Moe, Routing, expert_tensor_names
from llmir.frontends.layers.parts import attention, check_chosen, decoder, either_field, layers

MODULE = "block_sparse_moe"
# Fields of MiniMax-01 that these configs contain, but the class does not read.
_UNREAD = [f"layernorm_{part}_beta" for part in ("full_attention", "linear_attention", "mlp")]
_DRAFTS = "num_mtp_modules", "mtp_transformer_layers", "use_mtp"


def experts(
    config: Config, count: int, chosen: int, width: int, *, scale: float = 1.0, **differences: Any
) -> Moe:
    """Experts with sigmoid routing and a bias; the other arguments are defaults of a class."""
    found = Moe(
        count=either_field(config, "num_local_experts", "num_experts", count),
        chosen=config.assumed("num_experts_per_tok", chosen),
        intermediate=config.assumed("intermediate_size", width),
        routing=Routing("sigmoid", True, scale, correction=f"{MODULE}.e_score_correction_bias"),
        module=MODULE,
        matrices=expert_tensor_names("w1", "w3", "w2"),
        **differences,
    )
    return check_chosen(config, found)


@family("MiniMaxM2ForCausalLM", "minimax_m2")
def minimax_m2(config: Config) -> Decoder:
    """MiniMaxM2ForCausalLM: sigmoid routing with a bias, positions on `rotary_dim` elements of a head."""
    config.fixed("another choice of experts", scoring_func="sigmoid", use_routing_bias=True)
    config.fixed("another norm of q and k", qk_norm_type="per_layer")
    config.fixed("a shared expert", shared_intermediate_size=0)
    config.unmodelled("attn_type_list", (None, [1] * layers(config)), "linear attention")
    config.ignore("mlp_intermediate_size", "shared_moe_mode", *_UNREAD)
    if config.fields.get("use_mtp"):
        config.note("the multi-token-prediction layers (use_mtp) are ignored")
    config.ignore(*_DRAFTS)
    share = (
        config.integer("rotary_dim", 64) / config.integer("head_dim", 128) if "rotary_dim" in config else 1.0
    )
    how: dict[str, Any] = {
        "kv_default": 8,
        "head_dim_default": 128,
        "theta_default": 5e6,
        "share_default": share,
    }
    mixer = attention(config, positions_default=196608, qk_norm="pair", **how)
    layer = Layer(mixer, experts(config, 256, 8, 1536))
    return decoder(config, "MiniMaxM2ForCausalLM", (layer,) * layers(config))
