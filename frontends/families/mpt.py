"""MPT. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mlps import Mlp
from ..parts import attention, decoder, layer_norm, layers

# Beside what is modelled; the class has the first of each, whatever the field says where it says null.
_FIXED = {
    "attn_type": ("multihead_attention",),
    "alibi": (True,),
    "alibi_bias_max": (8,),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
}


@family("MptForCausalLM", "mpt")
def mpt(config: Config) -> Decoder:
    """MptForCausalLM: ALiBi, no biases; q, k and v are one tensor, and may be clipped."""
    config.spelled(hidden_size="d_model", num_attention_heads="n_heads", num_hidden_layers="n_layers")
    config.spelled(max_position_embeddings="max_seq_len")
    own = config.nested("attn_config") or Config({}, name=config.name)
    for key, allowed in _FIXED.items():
        own.unmodelled(key, allowed, "another attention than the class has")
    config.unmodelled("no_bias", (True,), "biases")
    config.unmodelled("expansion_ratio", (4,), "an MLP of another width")
    clip, scale = own.optional_number("clip_qkv", zero=True) or 0.0, own.optional_number("softmax_scale")
    own.ignore("attn_impl", "attn_pdrop")
    # They act in the code that the published configs name, not in the class.
    config.ignore(
        "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type", "verbose"
    )
    matrices = ("Wqkv[0]", "Wqkv[1]", "Wqkv[2]", "out_proj")
    how: dict[str, Any] = {
        "mask": "alibi(1)",
        "scale": scale,
        "clip": clip,
        "module": "attn",
        "matrices": matrices,
    }
    mixer = attention(config, rope=None, **how)
    wide = 4 * config.integer("hidden_size")
    mlp = Mlp(wide, module="ffn", matrices=("up_proj", "down_proj"), activation="gelu")
    stack = (Layer(mixer, mlp, Norms("norm_1", before_mlp="norm_2")),) * layers(config)
    norm = layer_norm(config, "layer_norm_epsilon", learns=("weight",))
    names = Names("transformer.wte", "transformer.blocks.{layer}", "transformer.norm_f")
    return decoder(config, "MptForCausalLM", stack, norm=norm, names=names, tied_default=True)
