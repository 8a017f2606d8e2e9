"""Phi-1 to Phi-4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import activation, attention, decoder, layer_norm, layers, mlp, window

_POSITIONS = 4096


@family("PhiForCausalLM", "phi")
def phi(config: Config) -> Decoder:
    """PhiForCausalLM: Phi-1, 1.5 and 2: parallel sublayers after one norm, positions on half of each head."""
    normed = "head" if config.flag("qk_layernorm", False) else ""
    mixer = attention(
        config,
        share_default=0.5,
        qkv_bias=True,
        out_bias=True,
        matrices=("q_proj", "k_proj", "v_proj", "dense"),
        qk_norm=normed,
        qk_norms=("q_layernorm", "k_layernorm"),
    )
    own = mlp(config, bias=True, matrices=("fc1", "fc2"), activation=activation(config, default="gelu_new"))
    stack = (Layer(mixer, own, Norms(before_mlp=None), parallel=True),) * layers(config)
    norm, names = layer_norm(config, "layer_norm_eps"), CheckpointNames(norm="model.final_layernorm")
    return decoder(config, "PhiForCausalLM", stack, norm=norm, names=names, head_bias=True)


@family("Phi3ForCausalLM", "phi3")
def phi3(config: Config) -> Decoder:
    """Phi3ForCausalLM: one tensor stores q, k and v, and another stores gate and up."""
    mixer = attention(
        config,
        positions_default=_POSITIONS,
        trained_default=_POSITIONS,
        share_default=1.0,
        mask=window(config, None),
        matrices=("qkv_proj[0]", "qkv_proj[1]", "qkv_proj[2]", "o_proj"),
    )
    layer = Layer(mixer, mlp(config, matrices=("gate_up_proj[0]", "gate_up_proj[1]", "down_proj")))
    return decoder(config, "Phi3ForCausalLM", (layer,) * layers(config), eps_default=1e-5)
