"""Hunyuan, dense. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..parts import attention, decoder, layers, mlp


@family("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")
def hunyuan_dense(config: Config) -> Decoder:
    """HunYuanDenseV1ForCausalLM: q and k are normalized after they are turned."""
    bias = config.flag("attention_bias", False)
    norms = ("query_layernorm", "key_layernorm")
    how: dict[str, Any] = {"qk_norm": "head", "qk_norms": norms, "norm_turned": True}
    mixer = attention(config, qkv_bias=bias, out_bias=bias, **how)
    stack = (Layer(mixer, mlp(config)),) * layers(config)
    return decoder(config, "HunYuanDenseV1ForCausalLM", stack, eps_default=1e-5)
