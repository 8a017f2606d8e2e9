"""MPT and DBRX. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import INERT, NEUTRAL, Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import attention, decoder, layer_norm, layers

_NAMES = CheckpointNames("transformer.wte", "transformer.blocks.{layer}", "transformer.norm_f")
# The accepted values of fields; for null, the class uses the first value.
_FIXED = {
    "attn_type": ("multihead_attention",),
    "alibi": (True,),
    "alibi_bias_max": (8,),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
}


@family("MptForCausalLM", "mpt")
@family("MPTForCausalLM", "mpt")
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
    own.ignore("attn_impl", "dtype")
    own.finish(INERT, NEUTRAL)  # transformers writes an object with the fields that all configs have
    # They have an effect in the code that the published configs name, not in the class.
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
    return decoder(config, "MptForCausalLM", stack, norm=norm, names=_NAMES, tied_default=True)


@family("DbrxForCausalLM", "dbrx")
def dbrx(config: Config) -> Decoder:
    """DbrxForCausalLM: clipped q, k and v, and experts in every layer; one tensor stacks their matrices."""
    config.spelled(hidden_size="d_model", num_attention_heads="n_heads", num_hidden_layers="n_layers")
    config.spelled(max_position_embeddings="max_seq_len")
    own, ffn = (config.nested(f"{of}_config") or Config({}, name=config.name) for of in ("attn", "ffn"))
    for nested in own, ffn:
        nested.ignore("attn_pdrop", "hidden_size", "model_type", "moe_jitter_eps", "moe_loss_weight")
    act = ffn.nested("ffn_act_fn") or Config({}, name=config.name)
    act.unmodelled("name", ("silu",), "another activation of experts")
    ffn.unmodelled("moe_normalize_expert_weights", (1,), "weights of experts that do not add up to one")
    groups, count = own.integer("kv_n_heads", 1), config.integer("num_attention_heads")
    if count % groups:
        raise own.error("kv_n_heads", f"{groups} does not divide {count} attention heads")
    how: dict[str, Any] = {"kv_heads": groups, "clip": own.optional_number("clip_qkv") or 0.0}
    how |= {"module": "norm_attn_norm.attn", "matrices": ("Wqkv[0]", "Wqkv[1]", "Wqkv[2]", "out_proj")}
    experts = Moe(
        count=ffn.integer("moe_num_experts", 4),
        chosen=ffn.integer("moe_top_k", 1),
        intermediate=ffn.integer("ffn_hidden_size", 3584),
        routing=Routing(normalize=True),
        module="ffn",
        router="router.layer",
        matrices=("experts.mlp.w1^F", "experts.mlp.v1^F", "experts.mlp.w2^T^F"),
    )
    if experts.chosen > experts.count:
        raise ffn.error("moe_top_k", f"{experts.chosen} is more than the {experts.count} experts")
    mixer = attention(config, theta_default=own.number("rope_theta", 10000.0), **how)
    norms = Norms("norm_attn_norm.norm_1", before_mlp="norm_attn_norm.norm_2")
    stack, norm = (Layer(mixer, experts, norms),) * layers(config), Norm(1e-5, "layer_norm")
    return decoder(config, "DbrxForCausalLM", stack, norm=norm, names=_NAMES)
