"""GLM-4.5, 4.6 and 4.7 with experts, and Solar Open. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import latent
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import attention, decoder, draft, layers

from .deepseek import by_groups, by_type, experts, stack


@family("Glm4MoeForCausalLM", "glm4_moe")
def glm_moe(config: Config) -> Decoder:
    """Glm4MoeForCausalLM: DeepSeek V3's experts, and attention with positions on half of each head."""
    routing = by_groups(config, groups=1, kept=1, scale=1.0)
    mixer = attention(
        config,
        positions_default=131072,
        kv_default=8,
        head_dim_default=config.integer("hidden_size") // config.integer("num_attention_heads"),
        share_default=0.5,
        qkv_bias=config.flag("attention_bias", False),
        qk_norm="head" if config.flag("use_qk_norm", False) else "",
    )
    sparse, dense = (
        experts(config, routing, (128, 8, 1408, 1)),
        Mlp(config.assumed("intermediate_size", 10944)),
    )
    stacked, own = stack(config, mixer, dense, sparse, 1), draft(config, Layer(mixer, sparse))
    return decoder(config, "Glm4MoeForCausalLM", stacked, eps_default=1e-5, draft=own)


@family("Glm4MoeLiteForCausalLM", "glm4_moe_lite")
def glm_moe_lite(config: Config) -> Decoder:
    """Glm4MoeLiteForCausalLM, GLM-4.7-Flash: GLM's experts with DeepSeek's latent attention."""
    pairs = config.flag("rope_interleave", True)
    mixer = latent(config, (768, 512, 192, 64, 256), positions_default=202752, interleaved=pairs)
    sparse = experts(config, by_groups(config, groups=1, kept=1, scale=1.8), (64, 4, 1536, 1))
    dense = Mlp(config.assumed("intermediate_size", 10240))
    config.ignore("first_k_dense_replace")  # default of the class; `mlp_layer_types` replaces it
    stacked, own = by_type(config, mixer, dense, sparse, 1), draft(config, Layer(mixer, sparse))
    return decoder(config, "Glm4MoeLiteForCausalLM", stacked, eps_default=1e-5, draft=own)


@family("SolarOpenForCausalLM", "solar_open")
def solar_open(config: Config) -> Decoder:
    """SolarOpenForCausalLM: GLM's experts in all layers."""
    config.ignore("intermediate_size")  # the width of dense MLPs, which do not occur
    mixer = attention(
        config,
        positions_default=131072,
        kv_default=8,
        head_dim_default=128,
        theta_default=1e6,
        qkv_bias=config.flag("attention_bias", False),
    )
    layer = Layer(mixer, experts(config, by_groups(config, groups=1, kept=1, scale=1.0), (128, 8, 1280, 1)))
    return decoder(config, "SolarOpenForCausalLM", (layer,) * layers(config), eps_default=1e-5)
