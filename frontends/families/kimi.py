"""Kimi-Linear of Moonshot AI. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Iterator

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import latent
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Sublayer
from llmir.frontends.layers.mlp import Mlp, expert_tensor_names
from llmir.frontends.layers.parts import decoder, has_experts, kinds, layer_pairs, layers, untied
from llmir.frontends.layers.state_config import kimi_delta

from .deepseek import by_groups, experts

_KINDS = ("linear_attention", "full_attention")
_SPELLED = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_LISTS = ("full_attn_layers", "kda_layers")
_MODULE = "block_sparse_moe"


@family("KimiLinearForCausalLM", "kimi_linear")
def kimi_linear(config: Config) -> Decoder:
    """KimiLinearForCausalLM: KDA, and latent attention without positions; DeepSeek V3's experts."""
    config.spelled(**_SPELLED)
    config.unmodelled("mla_use_nope", (None, True), "latent attention with positions")
    config.unmodelled("moe_router_activation_func", (None, "sigmoid"), "another score of the router")
    config.ignore("head_dim", "rope_theta", "rope_scaling", "rope_parameters", "use_grouped_topk")
    attends = latent(config, (None, 512, 128, 64, 128), positions_default=None, interleaved=False)
    routing = by_groups(config, groups=1, kept=1, scale=2.446, module=_MODULE)
    names = expert_tensor_names("w1", "w3", "w2")
    sparse = experts(config, routing, (256, 8, 1024, 1), module=_MODULE, matrices=names)
    dense = Mlp(config.assumed("intermediate_size", 9216))
    linear = config.nested("linear_attn_config") or Config({}, name=config.name)
    linear.ignore(*_LISTS)  # replaced by layer_types
    mixers: dict[str, Sublayer] = {_KINDS[0]: kimi_delta(config, linear), _KINDS[1]: attends}
    first = config.integer("first_k_dense_replace", 1, minimum=0)
    found = (mixers[kind] for kind in kinds(config, _usual(config, linear), *_KINDS))
    stack = layer_pairs(found, (sparse if routed else dense for routed in has_experts(config, first)))
    return untied(config, decoder(config, "KimiLinearForCausalLM", stack, eps_default=1e-5))


def _usual(config: Config, linear: Config) -> Iterator[str]:
    """The kinds of layers if `layer_types` is missing; other lists of layers number layers from 1."""
    count, (full, others) = layers(config), map(linear.integers, _LISTS)
    if not full and not others:
        full = tuple(range(5, count + 1, 4))
    elif sorted(full + others) != list(range(1, count + 1)):
        raise linear.error(_LISTS[1], f"with {_LISTS[0]} they are not each of {count} layers once")
    yield from (_KINDS[i in full] for i in range(1, count + 1))
