"""Llama-like classes that the code in their checkpoints defines; this code is never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp, Routing
from llmir.frontends.layers.parts import attention, decoder, drafts, heads, layers, mlp

from .deepseek import experts, stack


def _same(config: Config, architecture: str, norm: Norm | None = None, **differences: Any) -> Decoder:
    """A decoder with equal layers; `differences` are fields of their attention."""
    layer = Layer(attention(config, **differences), mlp(config))
    return decoder(config, architecture, (layer,) * layers(config), norm=norm)


@family("AquilaForCausalLM", "aquila")
@family("AquilaModel", "aquila")
@family("XverseForCausalLM", "xverse")
def aquila(config: Config) -> Decoder:
    """Aquila and Xverse, whose model.py is equal to Llama's."""
    return _same(config, "AquilaForCausalLM")


@family("InternLMForCausalLM", "internlm")
def internlm(config: Config) -> Decoder:
    """InternLM: biases on q, k, v and the output projection (modeling_internlm.py)."""
    return _same(config, "InternLMForCausalLM", bias=config.flag("bias", True))


@family("PanguEmbeddedForCausalLM", "PanguEmbedded")
def pangu(config: Config) -> Decoder:
    """openPangu-Embedded: biases on q, k, v and the output projection (modeling_openpangu_dense.py)."""
    return _same(config, "PanguEmbeddedForCausalLM", bias=config.flag("bias"))


@family("OrionForCausalLM", "orion")
def orion(config: Config) -> Decoder:
    """Orion: LayerNorm with biases (modeling_orion.py)."""
    norm = Norm(config.number("rms_norm_eps", 1e-5), "layer_norm", ("weight", "bias"))
    return _same(config, "OrionForCausalLM", norm)


@family("BaichuanForCausalLM", "baichuan")
@family("BaiChuanForCausalLM", "baichuan")
def baichuan(config: Config) -> Decoder:
    """Baichuan and Baichuan 2: one tensor for q, k and v; ALiBi unless the width is 4096, as in vLLM.

    Loading normalizes the weights of Baichuan 2's head.
    """
    config.ignore("model_max_length", "z_loss_weight")
    how: dict[str, Any] = {"matrices": ("W_pack[0]", "W_pack[1]", "W_pack[2]", "o_proj")}
    how |= {} if config.integer("hidden_size") == 4096 else {"rope": None, "mask": "alibi(1)"}
    return _same(config, "BaichuanForCausalLM", **how)


@family("InternLM2ForCausalLM", "internlm2")
def internlm2(config: Config) -> Decoder:
    """InternLM 2 and 2.5: one tensor stores q, k and v by groups of heads (modeling_internlm2.py)."""
    bias, (_, groups, _) = config.flag("bias", True), heads(config, None, None)
    q, k, v = (f"wqkv[{i}/{groups}]" for i in range(3))
    how: dict[str, Any] = {"module": "attention", "matrices": (q, k, v, "wo")}
    own = mlp(config, module="feed_forward", matrices=("w1", "w3", "w2"))
    layer = Layer(attention(config, bias=bias, **how), own, Norms("attention_norm", before_mlp="ffn_norm"))
    names = CheckpointNames("model.tok_embeddings", head="output")
    return decoder(config, "InternLM2ForCausalLM", (layer,) * layers(config), names=names)


@family("InternLM3ForCausalLM", "internlm3")
def internlm3(config: Config) -> Decoder:
    """InternLM 3: biases on q, k and v, and on all later projections (modeling_internlm3.py).

    transformers saves the two settings as `attention_bias` and `mlp_bias`.
    """
    config.spelled(qkv_bias="attention_bias", bias="mlp_bias")
    qkv, rest = config.flag("qkv_bias", False), config.flag("bias", False)
    layer = Layer(attention(config, qkv_bias=qkv, out_bias=rest), mlp(config, bias=rest))
    return decoder(config, "InternLM3ForCausalLM", (layer,) * layers(config))


@family("MiMoForCausalLM", "mimo")
def mimo(config: Config) -> Decoder:
    """MiMo-7B: Qwen2's layers (modeling_mimo.py)."""
    drafts(config)
    config.unmodelled("attention_bias", (None, True), "q, k and v without biases")
    config.ignore("sliding_window")  # has no effect, because `use_sliding_window` must be off
    return _same(config, "MiMoForCausalLM", qkv_bias=True)


@family("TeleFLMForCausalLM", "TeleFLM")
def teleflm(config: Config) -> Decoder:
    """Tele-FLM: Llama with embeddings and logits scaled by muP (modeling_teleflm.py)."""
    plain = _same(config, "TeleFLMForCausalLM")
    if not config.flag("use_mup", False):
        return plain
    into, out = config.number("input_mult"), config.number("output_mult") / config.number("mup_scale_factor")
    return replace(plain, embedding_scale=into, logits_scale=out)


_BLOCKS = CheckpointNames("transformer.wte", "transformer.h.{layer}", "transformer.ln_f")
_LN = Norms("ln_1", before_mlp="ln_2")


@family("ExaoneForCausalLM", "exaone")
def exaone(config: Config) -> Decoder:
    """EXAONE 3 and 3.5: Llama under the names of GPT-2 (modeling_exaone.py)."""
    config.spelled(num_hidden_layers="num_layers", rms_norm_eps="layer_norm_epsilon")
    config.spelled(hidden_act="activation_function")
    config.flag("tie_word_embeddings")  # the default of the class changed
    to = ("q_proj", "k_proj", "v_proj", "out_proj")
    own = mlp(config, matrices=("c_fc_0", "c_fc_1", "c_proj"))
    layer = Layer(attention(config, module="attn.attention", matrices=to), own, _LN)
    return decoder(config, "ExaoneForCausalLM", (layer,) * layers(config), eps_default=1e-5, names=_BLOCKS)


@family("QWenLMHeadModel", "qwen")
def qwen(config: Config) -> Decoder:
    """Qwen 1 up to its trained length; the MLP width is half of the field (modeling_qwen.py)."""
    config.spelled(head_dim="kv_channels", partial_rotary_factor="rotary_pct", rope_theta="rotary_emb_base")
    config.spelled(rms_norm_eps="layer_norm_epsilon")
    config.unmodelled("no_bias", (True,), "biases")
    config.unmodelled("scale_attn_weights", (True,), "scores that are not scaled")
    config.ignore("bf16", "fp16", "fp32", "onnx_safe", "use_flash_attn")  # a choice of implementation
    config.ignore("use_dynamic_ntk", "use_logn_attn")  # fields with an effect beyond the trained length
    to = ("c_attn[0]", "c_attn[1]", "c_attn[2]", "c_proj")
    own = mlp(config, matrices=("w2", "w1", "c_proj"))
    layer = Layer(
        attention(config, module="attn", matrices=to, qkv_bias=True),
        replace(own, intermediate=own.intermediate // 2),
        _LN,
    )
    return decoder(config, "QWenLMHeadModel", (layer,) * layers(config), names=_BLOCKS)


@family("DeepseekForCausalLM", "deepseek")
def deepseek(config: Config) -> Decoder:
    """DeepSeek MoE: Llama's attention, and V2's experts after some dense layers (modeling_deepseek.py)."""
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias)
    routed = experts(config, Routing(normalize=config.flag("norm_topk_prob", False)))
    stacked = stack(config, mixer, Mlp(config.integer("intermediate_size")), routed, 0)
    return decoder(config, "DeepseekForCausalLM", stacked)


@family("DeciLMForCausalLM", "deci")
def decilm(config: Config) -> Decoder:
    """DeciLM: the number of key/value heads differs by layer (modeling_decilm.py)."""
    key = "num_key_value_heads_per_layer"
    mixer, own, groups = attention(config), mlp(config), config.integers(key)
    if len(groups) != layers(config):
        raise config.error(key, f"{len(groups)} numbers for {layers(config)} layers")
    for i, count in enumerate(groups):
        if not count or mixer.heads % count:
            raise config.error(f"{key}[{i}]", f"{count} does not divide {mixer.heads} attention heads")
    stack = tuple(Layer(replace(mixer, kv_heads=count), own) for count in groups)
    return decoder(config, "DeciLMForCausalLM", stack)
