"""ChatGLM 2 and 3, and GLM-4 by the code in its checkpoints, which is never run."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, interleaved, layers, mlp

_NAMES = CheckpointNames(
    "transformer.embedding.word_embeddings",
    "transformer.encoder.layers.{layer}",
    "transformer.encoder.final_layernorm",
    "transformer.output_layer",
)


@family("ChatGLMForConditionalGeneration", "chatglm")
@family("ChatGLMModel", "chatglm")
def chatglm(config: Config) -> Decoder:
    """ChatGLM: rotation of neighboring pairs in half of each head; merged weights of q, k, v and gate, up."""
    config.spelled(num_hidden_layers="num_layers", vocab_size="padded_vocab_size", head_dim="kv_channels")
    config.spelled(intermediate_size="ffn_hidden_size", num_key_value_heads="multi_query_group_num")
    config.spelled(max_position_embeddings="seq_length", rms_norm_eps="layernorm_epsilon")
    for key in ("multi_query_attention", "original_rope", "post_layer_norm", "rmsnorm"):
        config.unmodelled(key, (None, True), "another ChatGLM than the published ones")
    for key in ("add_bias_linear", "apply_residual_connection_post_layernorm", "interleaved_qkv"):
        config.unmodelled(key, (None, False), "another ChatGLM than the published ones")
    config.unmodelled("quantization_bit", (None, 0), "ChatGLM's own quantization")
    config.unmodelled("pre_seq_len", (None,), "a learned prefix")
    # A copy of the padded size, a choice of implementation, and the length of a learned prefix.
    config.ignore("vocab_size", "apply_query_key_layer_scaling", "fp32_residual_connection")
    config.ignore("prefix_projection")
    bias = config.flag("add_qkv_bias", False)
    to = (*(f"query_key_value[{i}]" for i in range(3)), "dense")
    how: dict[str, Any] = {"module": "self_attention", "matrices": to, "qkv_bias": bias}
    theta = 10000.0 * config.number("rope_ratio", 1.0)
    mixer = interleaved(attention(config, share_default=0.5, theta_default=theta, **how))
    own = mlp(config, matrices=("dense_h_to_4h[0]", "dense_h_to_4h[1]", "dense_4h_to_h"))
    return decoder(
        config,
        "ChatGLMForConditionalGeneration",
        (Layer(mixer, own),) * layers(config),
        eps_default=1e-5,
        names=_NAMES,
    )
