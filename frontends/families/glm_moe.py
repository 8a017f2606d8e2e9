"""GLM-4.5, 4.6 and 4.7 with experts. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mlps import Mlp, Routing
from ..parts import attention, decoder, drafts, layers
from .deepseek import experts

_EXPERTS = {
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
}


@family("Glm4MoeForCausalLM", "glm4_moe")
def glm_moe(config: Config) -> Decoder:
    """Glm4MoeForCausalLM: DeepSeek V3's experts after attention with positions on half of a head."""
    drafts(config)
    routing = Routing(
        score="sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=config.integer("n_group", 1),
        kept=config.integer("topk_group", 1),
        best=2,
        correction="mlp.gate.e_score_correction_bias",
    )
    mixer = attention(
        config,
        positions_default=131072,
        kv_default=8,
        head_dim_default=config.integer("hidden_size") // config.integer("num_attention_heads"),
        share_default=0.5,
        qkv_bias=config.flag("attention_bias", False),
        qk_norm="head" if config.flag("use_qk_norm", False) else "",
    )
    sparse, dense = experts(config, routing, _EXPERTS), Mlp(config.assumed("intermediate_size", 10944))
    first = config.integer("first_k_dense_replace", 1, minimum=0)
    stack = tuple(Layer(mixer, dense if i < first else sparse) for i in range(layers(config)))
    return decoder(config, "Glm4MoeForCausalLM", stack, eps_default=1e-5)
