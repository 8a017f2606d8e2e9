"""OPT. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder, LearnedPositions
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import activation, attention, decoder, layers


@family("OPTForCausalLM", "opt")
def opt(config: Config) -> Decoder:
    """OPTForCausalLM except 350m, which has smaller embeddings and norms after sublayers."""
    config.spelled(hidden_act="activation_function")
    hidden, bias = config.integer("hidden_size"), config.flag("enable_bias", True)
    config.unmodelled("word_embed_proj_dim", (None, hidden), "embeddings of another width, as in OPT-350m")
    config.unmodelled("do_layer_norm_before", (True,), "norms behind the residual, as in OPT-350m")
    config.unmodelled("_remove_final_layer_norm", (False,), "no last norm")
    learns = ("weight", "bias") if config.flag("layer_norm_elementwise_affine", True) else ()
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")
    mixer = attention(config, rope=None, matrices=projections, bias=bias)
    act = activation(config, default="relu")
    mlp = Mlp(config.assumed("ffn_dim", 3072), bias, module="", matrices=("fc1", "fc2"), activation=act)
    layer = Layer(mixer, mlp, Norms("self_attn_layer_norm", before_mlp="final_layer_norm"))
    stem, rows = "model.decoder", config.assumed("max_position_embeddings", 2048) + 2
    names = CheckpointNames(f"{stem}.embed_tokens", f"{stem}.layers.{{layer}}", f"{stem}.final_layer_norm")
    how: dict[str, Any] = {
        "norm": Norm(1e-5, "layer_norm", learns),
        "names": names,
    }  # default epsilon of torch
    how |= {"learned": LearnedPositions(f"{stem}.embed_positions", rows, 2)}
    return decoder(config, "OPTForCausalLM", (layer,) * layers(config), tied_default=True, **how)
