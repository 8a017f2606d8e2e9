"""Classes of code that checkpoints bring along, of Llama's shape: that code is read, and never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..parts import attention, decoder, heads, layers, mlp


def _same(config: Config, architecture: str, norm: Norm | None = None, **differences: Any) -> Decoder:
    """Equal layers, whose attention differs so."""
    layer = Layer(attention(config, **differences), mlp(config))
    return decoder(config, architecture, (layer,) * layers(config), norm=norm)


@family("AquilaForCausalLM", "aquila")
@family("AquilaModel", "aquila")
@family("XverseForCausalLM", "xverse")
def aquila(config: Config) -> Decoder:
    """Aquila, Xverse (its model.py is Llama's)."""
    return _same(config, "AquilaForCausalLM")


@family("InternLMForCausalLM", "internlm")
def internlm(config: Config) -> Decoder:
    """InternLM: biases on q, k, v and back (modeling_internlm.py)."""
    bias = config.flag("bias", True)
    return _same(config, "InternLMForCausalLM", qkv_bias=bias, out_bias=bias)


@family("OrionForCausalLM", "orion")
def orion(config: Config) -> Decoder:
    """Orion: LayerNorm with biases (modeling_orion.py)."""
    norm = Norm(config.number("rms_norm_eps", 1e-5), "layer_norm", ("weight", "bias"))
    return _same(config, "OrionForCausalLM", norm)


@family("BaichuanForCausalLM", "baichuan")
@family("BaiChuanForCausalLM", "baichuan")
def baichuan(config: Config) -> Decoder:
    """Baichuan and Baichuan 2: q, k and v are one tensor; ALiBi in those that are not 4096 wide, as in vLLM.

    The head of Baichuan 2 is normalized when it is loaded.
    """
    config.ignore("model_max_length", "z_loss_weight")
    how: dict[str, Any] = {"matrices": ("W_pack[0]", "W_pack[1]", "W_pack[2]", "o_proj")}
    how |= {} if config.integer("hidden_size") == 4096 else {"rope": None, "mask": "alibi(1)"}
    return _same(config, "BaichuanForCausalLM", **how)


@family("InternLM2ForCausalLM", "internlm2")
def internlm2(config: Config) -> Decoder:
    """InternLM 2 and 2.5: q, k and v are one tensor, by groups of heads (modeling_internlm2.py)."""
    bias, (_, groups, _) = config.flag("bias", True), heads(config, None, None)
    q, k, v = (f"wqkv[{i}/{groups}]" for i in range(3))
    how: dict[str, Any] = {"module": "attention", "matrices": (q, k, v, "wo")}
    own = mlp(config, module="feed_forward", matrices=("w1", "w3", "w2"))
    layer = Layer(
        attention(config, qkv_bias=bias, out_bias=bias, **how),
        own,
        Norms("attention_norm", before_mlp="ffn_norm"),
    )
    names = Names("model.tok_embeddings", head="output")
    return decoder(config, "InternLM2ForCausalLM", (layer,) * layers(config), names=names)


@family("DeciLMForCausalLM", "deci")
def decilm(config: Config) -> Decoder:
    """DeciLM: each layer has key/value heads of its own number (modeling_decilm.py)."""
    key = "num_key_value_heads_per_layer"
    mixer, own, groups = attention(config), mlp(config), config.integers(key)
    if len(groups) != layers(config):
        raise config.error(key, f"{len(groups)} numbers for {layers(config)} layers")
    for i, count in enumerate(groups):
        if not count or mixer.heads % count:
            raise config.error(f"{key}[{i}]", f"{count} does not divide {mixer.heads} attention heads")
    stack = tuple(Layer(replace(mixer, kv_heads=count), own) for count in groups)
    return decoder(config, "DeciLMForCausalLM", stack)
