"""What configs say of latent attention, in the names that DeepSeek's have."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.reader import Config

from .latent_attention import LatentAttention
from .rope import rope, score_factor

_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent(
    config: Config,
    defaults: tuple[int | None, int, int, int, int | None],
    *,
    positions_default: int | None,
    interleaved: bool,
    whole: bool = False,
) -> LatentAttention:
    """Its sizes, with a class's `defaults` in the order of `_SIZES`, and its rotary positions, if it has any.

    Of the queries' latent null is none; of the values' size it is hidden / heads. `head_dim` is the rotary
    elements of a head or, with `whole`, all, of which `partial_rotary_factor` is the rotary share.
    """
    heads, found = config.integer("num_attention_heads"), dict(zip(_SIZES, defaults, strict=True))
    for key, default in found.items():
        if default and (key not in config or key not in ("q_lora_rank", "v_head_dim")):
            found[key] = config.assumed(key, default)
        else:
            found[key] = config.optional_integer(key)
    q_latent, kv, nope, rotary, value = found.values()
    assert kv and nope and rotary
    if rotary % 2:
        raise config.error("qk_rope_head_dim", f"rotary positions need an even size, got {rotary}")
    config.unmodelled("num_key_value_heads", (None, heads), "heads that share keys of their own")
    config.unmodelled("qk_head_dim", (None, nope + rotary), "heads of another size")
    positions, factor = None, 1.0
    if positions_default:
        size = nope + rotary if whole else rotary
        config.unmodelled("head_dim", (None, size), "heads of another size")
        positions = rope(config, size, positions_default, share=rotary / size if whole else None)
        if positions.size not in (0, rotary):
            fact = f"{positions.size} of {size} elements have positions; qk_rope_head_dim says {rotary}"
            raise config.error("partial_rotary_factor", fact)
        positions = replace(positions, size=0, interleaved=interleaved)
        factor = score_factor(config, positions)
    return LatentAttention(
        heads=heads,
        q_latent=q_latent,
        latent=kv,
        nope=nope,
        rotary=rotary,
        value=value or config.integer("hidden_size") // heads,
        rope=positions,
        scale=(nope + rotary) ** -0.5 * factor,
        bias=config.flag("attention_bias", False),
    )
