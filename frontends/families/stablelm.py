"""StableLM. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import attention, decoder, layer_norm, layers, mlp


@family("StableLmForCausalLM", "stablelm")
@family("StableLMEpochForCausalLM", "stablelm_epoch")
def stablelm(config: Config) -> Decoder:
    """StableLmForCausalLM: LayerNorm, and positions on a quarter of each head."""
    config.spelled(layer_norm_eps="norm_eps", partial_rotary_factor="rope_pct")
    config.unmodelled("rotary_scaling_factor", (None, 1.0), "stretched positions")
    config.unmodelled("qk_layernorm", (None, False), "q and k normalized head by head, as in StableLM-2-12B")
    beside = config.flag("use_parallel_residual", False)
    mixer = attention(
        config,
        positions_default=4096,
        kv_default=32,
        share_default=0.25,
        qkv_bias=config.flag("use_qkv_bias", False),
    )
    norms = Norms(before_mlp=None) if beside else Norms()
    stack = (Layer(mixer, mlp(config), norms, parallel=beside),) * layers(config)
    return decoder(config, "StableLmForCausalLM", stack, norm=layer_norm(config, "layer_norm_eps"))
