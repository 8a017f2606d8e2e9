"""LFM2 of Liquid AI. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import ShortConv
from ..mlps import Mlp
from ..parts import attention, decoder, kinds, layers

_NORMS = Norms("operator_norm", before_mlp="ffn_norm")


@family("Lfm2ForCausalLM", "lfm2")
def lfm2(config: Config) -> Decoder:
    """Lfm2ForCausalLM: short convolutions, and attention in the layers of `full_attn_idxs`."""
    attends = attention(
        config,
        positions_default=128_000,
        kv_default=8,
        theta_default=1e6,
        qk_norm="head",
        matrices=("q_proj", "k_proj", "v_proj", "out_proj"),
        qk_norms=("q_layernorm", "k_layernorm"),
    )
    bias = config.flag("conv_bias", False)
    conv = ShortConv(config.integer("hidden_size"), config.integer("conv_L_cache", 3), bias)
    every = range(layers(config))
    chosen = config.integers("full_attn_idxs", every)
    usual = ("full_attention" if i in chosen else "conv" for i in every)
    mlp = Mlp(_width(config), module="feed_forward", matrices=("w1", "w3", "w2"))
    own = kinds(config, usual, "conv", "full_attention")
    stack = tuple(Layer(conv if kind == "conv" else attends, mlp, _NORMS) for kind in own)
    norm, names = Norm(config.number("norm_eps", 1e-5)), Names(norm="model.embedding_norm")
    tied = config.flag("tie_embedding", True)
    return decoder(config, "Lfm2ForCausalLM", stack, norm=norm, tied_default=tied, names=names)


def _width(config: Config) -> int:
    """That of the MLP: two thirds of what is stated, rounded up, unless `block_auto_adjust_ff_dim` is off."""
    width = config.integer("block_ff_dim", config.integer("intermediate_size", 12288))
    factor, step = config.number("block_ffn_dim_multiplier", 1.0), config.integer("block_multiple_of", 256)
    adjusted = -(-int(factor * int(2 * width / 3)) // step) * step
    return adjusted if config.flag("block_auto_adjust_ff_dim", True) else width
