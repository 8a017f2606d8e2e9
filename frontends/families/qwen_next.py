"""Qwen3-Next: gated delta nets, and every fourth layer gated attention. Absent fields as in transformers."""

from __future__ import annotations

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mixers import DeltaNet
from ..mlps import Mlp
from ..parts import attention, decoder, kinds, layers
from .qwen import experts_of, mlps_of

_KINDS = ("linear_attention", "full_attention")


@family("Qwen3NextForCausalLM", "qwen3_next")
def qwen3_next(config: Config) -> Decoder:
    """Qwen3NextForCausalLM: the weights of norms are stored less 1, but of those after a delta net."""
    bias = config.flag("attention_bias", False)
    attends = attention(
        config,
        positions_default=32768,
        kv_default=2,
        head_dim_default=256,
        share_default=0.25,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
        gate="q_proj",
    )
    keeps = delta_net(config, ("qkvz", "ba"), by_head=True)
    width = config.assumed("shared_expert_intermediate_size", 512)
    shared = Mlp(width, module="mlp.shared_expert", block="shared_experts", prefix="shared_")
    mlps = mlps_of(config, experts_of(config, 512, 10, 512, shared, normalize=True))
    every = config.integer("full_attention_interval", 4)
    usual = (_KINDS[(i + 1) % every == 0] for i in range(layers(config)))
    mixers = (attends if kind == _KINDS[1] else keeps for kind in kinds(config, usual, *_KINDS))
    stack = tuple(Layer(mixer, mlp) for mixer, mlp in zip(mixers, mlps, strict=True))
    norm = Norm(config.number("rms_norm_eps", 1e-6), offset=1.0)
    return decoder(config, "Qwen3NextForCausalLM", stack, norm=norm)


def delta_net(config: Config, stacks: tuple[str, ...], *, by_head: bool) -> DeltaNet:
    """What Qwen's configs say of gated delta nets, whose projections are so stacked: by key head, or not."""
    keys, values = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
    if values % keys:
        raise config.error("linear_num_value_heads", f"{values} is no multiple of {keys} key heads")
    return DeltaNet(
        keys,
        values,
        config.integer("linear_key_head_dim", 128),
        config.integer("linear_value_head_dim", 128),
        config.integer("linear_conv_kernel_dim", 4),
        config.number("rms_norm_eps", 1e-6),
        tuple((f"in_proj_{parts}", keys if by_head else 1, parts) for parts in stacks),
    )
