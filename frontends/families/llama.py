"""Llama 2, 3, 3.1, 3.2, 3.3 (text)."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, layers, mlp


# transformers builds the Llama class for configs of the last two types, and saves the Llama class name.
@family("LlamaForCausalLM", "llama", "internlm3", "iquestcoder")
@family("LLaMAForCausalLM", "llama")
@family("Fairseq2LlamaForCausalLM", "llama")
@family("IQuestCoderForCausalLM", "iquestcoder")
def llama(config: Config) -> Decoder:
    """LlamaForCausalLM. `attention_bias` adds biases to all four projections."""
    config.unmodelled("clip_qkv", (None,), "clipped q, k and v")
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias)
    layer = Layer(mixer, mlp(config, bias=config.flag("mlp_bias", False)))
    return decoder(config, "LlamaForCausalLM", (layer,) * layers(config))
