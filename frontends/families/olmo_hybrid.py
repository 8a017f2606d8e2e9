"""OLMo-hybrid: gated delta nets between layers of attention. Absent fields as in transformers."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import POST_NORMS, Layer
from llmir.frontends.layers.parts import attention, decoder, kinds, layers, mlp
from llmir.frontends.layers.state_config import delta_net

_KINDS = ("linear_attention", "full_attention")
_EPS = 1e-5  # for the norm after a delta net, independent of the config


@family("OlmoHybridForCausalLM", "olmo_hybrid")
def olmo_hybrid(config: Config) -> Decoder:
    """OlmoHybridForCausalLM: attention as in OLMo 2, with norms after the sublayers."""
    attends = _attention(config)
    hidden = config.integer("hidden_size")
    keys = config.optional_integer("linear_num_key_heads") or attends.heads
    values = config.optional_integer("linear_num_value_heads") or attends.heads
    size = config.optional_integer("linear_key_head_dim") or int(0.75 * hidden / keys)
    keeps = delta_net(
        config,
        (keys, values),
        (size, config.optional_integer("linear_value_head_dim") or 2 * size),
        _EPS,
        tuple((f"{name}_proj", 1, part) for name, part in zip("qkvabg", "qkvabz", strict=True)),
        norms="o_norm",
        out="o_proj",
        negative=config.flag("linear_allow_neg_eigval", True),
        block="linear_attention",
        norm_block="linear_attention",
    )
    wide, count = mlp(config), layers(config)
    own = {_KINDS[0]: Layer(keeps, wide), _KINDS[1]: Layer(attends, wide, POST_NORMS)}
    usual = (_KINDS[i % 4 == 3 or i == count - 1 < 3] for i in range(count))
    stack = tuple(own[kind] for kind in kinds(config, usual, *_KINDS))
    return decoder(config, "OlmoHybridForCausalLM", stack)


def _attention(config: Config) -> Attention:
    """OLMo 2's attention; without positions if the base of rotary positions is null."""
    bias = config.flag("attention_bias", False)
    how: dict[str, Any] = {"qk_norm": "whole", "qkv_bias": bias, "out_bias": bias}
    stated = config.nested("rope_parameters")
    if stated and stated.fields.get("rope_theta", 1) is None:
        stated.ignore("rope_theta")
        stated.unmodelled("rope_type", ("default",), "scaled positions without a base")
        how["rope"] = None
    return attention(config, positions_default=65536, **how)
