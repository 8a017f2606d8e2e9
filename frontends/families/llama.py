"""Llama 2, 3, 3.1, 3.2, 3.3 (text)."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, layers, mlp


@family("LlamaForCausalLM", "llama")
@family("LLaMAForCausalLM", "llama")
@family("Fairseq2LlamaForCausalLM", "llama")
def llama(config: Config) -> Decoder:
    """LlamaForCausalLM. `attention_bias` is on all four projections."""
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias)
    layer = Layer(mixer, mlp(config, bias=config.flag("mlp_bias", False)))
    return decoder(config, "LlamaForCausalLM", (layer,) * layers(config))
