"""Nemotron-H: a layer is Mamba-2, attention, an MLP or experts. Absent fields as in transformers."""

from __future__ import annotations

from typing import Any

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import Mamba2
from ..mlps import Mlp, Moe, Routing
from ..parts import activation, attention, check_chosen, decoder, drafts
from ..scans import PLAIN, mamba2
from ..source import show

_NAMES = Names("backbone.embeddings", "backbone.layers.{layer}", "backbone.norm_f")
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLD = {"mamba": "linear_attention", "attention": "full_attention"}
_SCAN = {
    **PLAIN,
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size",
}
_MATRICES = ("up_proj", "down_proj")


@family("NemotronHForCausalLM", "nemotron_h")
def nemotron_h(config: Config) -> Decoder:
    """NemotronHForCausalLM: no rotary positions; steps of scans are `time_step_min` long at least.

    The class cuts them in prefill alone; here they are in decode too, as when the model was trained.
    """
    how: dict[str, Any] = {"activation": activation(config, "mlp_hidden_act", "relu2")}
    how |= {"bias": config.flag("mlp_bias", False), "matrices": _MATRICES}
    dense = Mlp(config.integer("intermediate_size", 21504), module="mixer", **how)
    keeps, found = _scan(config), _kinds(config)
    attends = attention(config, kv_default=8, head_dim_default=128, rope=None, module="mixer")
    experts = _experts(config, how) if "moe" in found else None
    _idle(config)
    before = Norms("norm", before_mlp="norm")
    own = {"linear_attention": Layer(keeps, None, before), "full_attention": Layer(attends, None, before)}
    own |= {"mlp": Layer(None, dense, before), "moe": Layer(None, experts, before)}
    norm, stack = Norm(config.number("layer_norm_epsilon", 1e-5)), tuple(own[kind] for kind in found)
    return decoder(config, "NemotronHForCausalLM", stack, norm=norm, names=_NAMES)


def _kinds(config: Config) -> tuple[str, ...]:
    """Of each layer, by a letter each or by its word."""
    words = config.texts("layers_block_type") or config.texts("layer_types")
    pattern = config.text("hybrid_override_pattern", "") if "hybrid_override_pattern" in config else ""
    found = [_OLD.get(word, word) for word in words] or [_LETTERS.get(letter, letter) for letter in pattern]
    field = "layers_block_type" if words else "hybrid_override_pattern"
    for kind in found:
        if kind not in _LETTERS.values():
            raise config.error(field, f"{show(kind)} is no layer; {', '.join(_LETTERS.values())} are")
    return tuple(found or _LETTERS.values())


def _scan(config: Config) -> Mamba2:
    config.unmodelled("mamba_hidden_act", (None, "silu"), "another activation")
    config.unmodelled("mamba_proj_bias", (None, config.flag("use_bias", False)), "biases unlike use_bias")
    least, eps = config.number("time_step_min", 0.001), config.number("layer_norm_epsilon", 1e-5)
    return mamba2(config.spelled(**_SCAN), size=64, groups=8, state=128, least=least, eps=eps)


def _experts(config: Config, how: dict[str, Any]) -> Moe:
    """By sigmoid with a correction; all tokens go through the shared one."""
    shared = Mlp(
        config.integer("moe_shared_expert_intermediate_size", 7688),
        module="mixer.shared_experts",
        block="shared_experts",
        prefix="shared_",
        **how,
    )
    config.unmodelled("n_shared_experts", (None, 1), "shared experts of another number")
    config.unmodelled("moe_latent_size", (None,), "experts of a latent state")
    if how["bias"]:
        raise config.error("mlp_bias", "experts have none")
    experts = Moe(
        count=config.assumed("n_routed_experts", 8),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.assumed("moe_intermediate_size", 7688),
        routing=Routing(
            "sigmoid",
            config.flag("norm_topk_prob", True),
            config.number("routed_scaling_factor", 1.0),
            config.integer("n_group", 1),
            config.integer("topk_group", 1),
            2,
            "mixer.gate.e_score_correction_bias",
        ),
        module="mixer",
        matrices=tuple(f"experts.{{expert}}.{name}.weight" for name in _MATRICES),
        activation=how["activation"],
        shared=shared,
    )
    return check_chosen(config, experts)


def _idle(config: Config) -> None:
    """What no layer of the class reads, or only those of experts."""
    drafts(config)
    config.ignore("expand", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "mamba_ssm_cache_dtype")
    config.ignore("moe_shared_expert_overlap", "attention_head_dim", "num_hidden_layers")
