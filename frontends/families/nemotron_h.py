"""Nemotron-H: each layer is Mamba-2, attention, an MLP or experts. Absent fields as in transformers."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms, kinds_by_letter
from llmir.frontends.layers.mamba import Mamba2
from llmir.frontends.layers.mlp import Mlp, Moe, expert_tensor_names
from llmir.frontends.layers.parts import activation, attention, decoder, drafts, untied
from llmir.frontends.layers.state_config import PLAIN, mamba2

from .deepseek import by_groups, experts

_NAMES = CheckpointNames("backbone.embeddings", "backbone.layers.{layer}", "backbone.norm_f")
_SCAN = {
    **PLAIN,
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size",
}
_MATRICES = ("up_proj", "down_proj")
_OF_EXPERTS = (
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
)


@family("NemotronHForCausalLM", "nemotron_h")
def nemotron_h(config: Config) -> Decoder:
    """NemotronHForCausalLM: no rotary positions; the steps of scans are at least `time_step_min`.

    The class clips steps only in prefill. llmir also clips them in decode, as in training.
    """
    how: dict[str, Any] = {"activation": activation(config, "mlp_hidden_act", "relu2")}
    how |= {"bias": config.flag("mlp_bias", False), "matrices": _MATRICES}
    dense = Mlp(config.integer("intermediate_size", 21504), module="mixer", **how)
    keeps, found = _scan(config), kinds_by_letter(config)
    attends = attention(config, kv_default=8, head_dim_default=128, rope=None, module="mixer")
    if "moe" in found:
        sparse = _experts(config, how)
    else:  # transformers also saves the fields of experts for models without experts
        sparse = None
        config.ignore(*_OF_EXPERTS)
    drafts(config)
    config.ignore("expand", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "mamba_ssm_cache_dtype")
    config.ignore("moe_shared_expert_overlap", "attention_head_dim", "num_hidden_layers")
    before = Norms("norm", before_mlp="norm")
    own = {"linear_attention": Layer(keeps, None, before), "full_attention": Layer(attends, None, before)}
    own |= {"mlp": Layer(None, dense, before), "moe": Layer(None, sparse, before)}
    norm, stack = Norm(config.number("layer_norm_epsilon", 1e-5)), tuple(own[kind] for kind in found)
    return untied(config, decoder(config, "NemotronHForCausalLM", stack, norm=norm, names=_NAMES))


def _scan(config: Config) -> Mamba2:
    config.unmodelled("mamba_hidden_act", (None, "silu"), "another activation")
    config.unmodelled("mamba_proj_bias", (None, config.flag("use_bias", False)), "biases unlike use_bias")
    least, eps = config.number("time_step_min", 0.001), config.number("layer_norm_epsilon", 1e-5)
    return mamba2(config.spelled(**_SCAN), size=64, groups=8, state=128, least=least, eps=eps)


def _experts(config: Config, how: dict[str, Any]) -> Moe:
    """DeepSeek's experts without gates, and a shared expert with a separate width."""
    config.unmodelled("n_shared_experts", (None, 1), "shared experts of another number")
    if how["bias"]:
        raise config.error("mlp_bias", "experts have none")
    width = config.integer("moe_shared_expert_intermediate_size", 7688)
    always = Mlp(width, module="mixer.shared_experts", block="shared_experts", prefix="shared_", **how)
    own = {"matrices": expert_tensor_names(*_MATRICES), "activation": how["activation"], "shared": always}
    own |= {"latent": config.optional_integer("moe_latent_size")}
    return experts(config, by_groups(config, 1, 1, 1.0, "mixer"), (8, 2, 7688, 0), module="mixer", **own)
