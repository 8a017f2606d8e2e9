"""Readers of fields that Llama-like configs share; a family passes only its differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from llmir.base.errors import UnsupportedError
from llmir.frontends.config.reader import Config
from llmir.frontends.config.source import show
from llmir.ir.core.dtype import dtype

from .attention import Attention
from .blocks import Norm
from .decoder import Decoder, Draft
from .layer import Layer, LayerLike, Norms, Sublayer
from .mlp import Mlp, Moe, Routing
from .rope import rope

_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_MOST_LAYERS = 10_000


def layer_norm(config: Config, key: str, *, learns: tuple[str, ...] = ("weight", "bias")) -> Norm:
    """A LayerNorm with the epsilon in the field `key`; the default is PyTorch's."""
    return Norm(config.number(key, 1e-5), "layer_norm", learns)


def layers(config: Config) -> int:
    """The number of layers; the deepest published models have about 130."""
    return config.integer("num_hidden_layers", maximum=_MOST_LAYERS)


def kinds(config: Config, default: Iterable[str], *known: str) -> tuple[str, ...]:
    """The kind of each layer by `layer_types`, or the `default`; only `known` kinds are allowed."""
    found = config.texts("layer_types") or tuple(default)
    if len(found) != layers(config):
        raise config.error("layer_types", f"{len(found)} kinds for {layers(config)} layers")
    for i, kind in enumerate(found):
        if kind not in known:
            fact = f"{show(kind)} is not modelled; {' or '.join(map(show, known))} is"
            raise config.error(f"layer_types[{i}]", fact, UnsupportedError)
    return found


def widths(config: Config) -> tuple[int, ...]:
    """The MLP width of each layer; `intermediate_size` is one number, or one number per layer."""
    key, count = "intermediate_size", layers(config)
    several = isinstance(config.fields.get(key), list | tuple)
    found = config.integers(key) if several else (config.integer(key),) * count
    if len(found) != count or not all(found):
        raise config.error(key, f"expected {count} widths from 1 up, one a layer, got {show(found)}")
    return found


def heads(config: Config, kv_default: int | None, head_dim_default: int | None) -> tuple[int, int, int]:
    """(heads, key/value heads, head size); null means the number of heads, and hidden / heads."""
    hidden, count = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv = _optional_integer(config, "num_key_value_heads", kv_default) or count
    if count % kv:
        raise config.error("num_key_value_heads", f"{kv} does not divide {count} attention heads")
    size = _optional_integer(config, "head_dim", head_dim_default)
    if size is None and hidden % count:
        fact = f"{count} does not divide hidden_size {hidden}, and there is no head_dim"
        raise config.error("num_attention_heads", fact)
    return count, kv, size or hidden // count


def _optional_integer(config: Config, key: str, default: int | None) -> int | None:
    """An integer or null; an absent field has the family's default, and adds a note."""
    if default is None or key in config:
        return config.optional_integer(key)
    return config.assumed(key, default)


def attention(
    config: Config,
    *,
    positions_default: int = 2048,
    kv_default: int | None = None,
    head_dim_default: int | None = None,
    theta_default: float = 10000.0,
    trained_default: int | None = None,
    share_default: float | None = None,
    bias: bool = False,
    **differences: Any,
) -> Attention:
    """Read the attention of Llama-like configs; `differences` are fields of `Attention`.

    With `bias`, all four projections have a bias.
    """
    if bias:
        differences |= {"qkv_bias": True, "out_bias": True}
    count, kv, size = heads(config, kv_default, head_dim_default)
    if "rope" not in differences:
        if size % 2:
            raise config.error("head_dim", f"rotary positions need an even head size, got {size}")
        stated = rope(config, size, positions_default, theta_default, trained_default, share_default)
        differences["rope"] = stated
    found = Attention(**{"heads": count, "kv_heads": kv, "head_dim": size, **differences})
    if found.scale is None:
        for key, usual in (("query_pre_attn_scalar", size), ("attention_multiplier", size**-0.5)):
            config.unmodelled(key, (None, usual), "another scale of the attention scores")
    # Qwen3's configs may state the norm and the biases, which the class fixes.
    config.unmodelled("use_qk_norm", (None, bool(found.qk_norm)), "normalized q and k, as in Llama 4")
    config.unmodelled("qkv_bias", (None, found.qkv_bias), "biases of q, k and v unlike the class's")
    return found


def interleaved(mixer: Attention) -> Attention:
    """The rotary positions with pairs of neighboring elements."""
    return replace(mixer, rope=mixer.rope and replace(mixer.rope, interleaved=True))


def mlp_kinds(config: Config, default: Iterable[str], *known: str) -> tuple[str, ...]:
    """The kind of each layer's MLP by `mlp_layer_types`, or the `default`; only `known` kinds are allowed."""
    count, key = layers(config), "mlp_layer_types"
    found = config.texts(key) or tuple(default)
    if len(found) != count or not {*found} <= {*known}:
        raise config.error(key, f"expected {' or '.join(known)} for each of {count} layers")
    return found


def has_experts(config: Config, first: int) -> tuple[bool, ...]:
    """Whether each layer has experts, by `mlp_layer_types`, or in all layers except the `first`."""
    default = ("dense" if i < first else "sparse" for i in range(layers(config)))
    return tuple(kind == "sparse" for kind in mlp_kinds(config, default, "dense", "sparse"))


def window(config: Config, default: int | None, *, acts: bool = True) -> str:
    """The mask of `sliding_window`: absent means the family's default, null means no window."""
    key = "sliding_window"
    width = config.optional_integer(key, 0) if key in config else default
    if width == 0 and acts:
        raise config.error(key, "expected an integer from 1 to 2**48, or null for no window, got 0")
    return f"window({width})" if width and acts else "causal"


def sliding_layers(config: Config, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer has a window, by `layer_types` or the family's default."""
    count, kinds = layers(config), config.texts("layer_types")
    if len(kinds) == count:
        return tuple(kind == "sliding_attention" for kind in kinds)
    return tuple(map(default, range(count)))


def all_but_every(count: int) -> Callable[[int], bool]:
    """A predicate of layer numbers: true except for every `count`-th layer; always false if `count` is 0."""
    return lambda layer: count > 0 and (layer + 1) % count > 0


# Opcodes by the names of activations in configs, as in transformers' ACT2FN.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def activation(config: Config, key: str = "hidden_act", default: str = "silu") -> str:
    """The opcode of the activation that a config names."""
    name = config.text(key, default)
    config.unmodelled(key, tuple(_ACTIVATIONS), "another activation")
    return _ACTIVATIONS.get(name, "silu")


def mlp(config: Config, **differences: Any) -> Mlp:
    """Read the MLP of a family without experts; `differences` are fields of `Mlp` that it sets."""
    for key in _EXPERTS:
        config.unmodelled(key, (None, 0), "experts in a dense family")
    acts = differences.pop("activation", None) or activation(config)
    return Mlp(config.integer("intermediate_size"), activation=acts, **differences)


_NORMS = Norms()


def layer_pairs(
    mixers: Iterable[Sublayer], mlps: Iterable[Sublayer], norms: Norms = _NORMS, **differences: Any
) -> tuple[Layer, ...]:
    """A layer for each pair of mixer and MLP; equal pairs share one object, for fast comparisons.

    `differences` are fields of `Layer`.
    """
    made: dict[tuple[int, int], Layer] = {}
    return tuple(
        made.setdefault((id(mixer), id(mlp)), Layer(mixer, mlp, norms, **differences))
        for mixer, mlp in zip(mixers, mlps, strict=True)
    )


def drafts(config: Config, key: str = "num_nextn_predict_layers") -> None:
    """Add a note on multi-token prediction layers that the program omits."""
    if count := config.optional_integer(key, 0):
        config.note(f"layers that predict further tokens, {count} here, are not modelled")


def draft(
    config: Config, layer: Layer, key: str = "num_nextn_predict_layers", names: tuple[str, ...] = ()
) -> Draft | None:
    """The multi-token prediction layer; `names` are fields of `Draft`, by default as in DeepSeek-V3.

    Returns None without such a layer. With several layers, adds a note and returns None.
    """
    if config.optional_integer(key, 0) != 1:
        drafts(config, key)
        return None
    own = f"model.layers.{layers(config)}"
    around = (f"{own}.{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
    return Draft(layer, *(names or (own, *around)))


def either_field(config: Config, first: str, second: str, default: int) -> int:
    """A number under one of two field names; if both are present, they must agree."""
    spellings = [key for key in (first, second) if key in config]
    found = [config.integer(key) for key in spellings]
    if len(set(found)) > 1:
        raise config.error(second, f"{found[1]} contradicts {first} {found[0]}")
    return found[0] if found else config.assumed(first, default)


def moe(config: Config, count: int, chosen: int, width: int, **differences: Any) -> Moe:
    """Read experts of a given width, with a class's defaults; `differences` are fields of `Moe`."""
    sizes = config.assumed("num_local_experts", count), config.assumed("num_experts_per_tok", chosen)
    return check_chosen(config, Moe(*sizes, width, **{"routing": Routing(normalize=True), **differences}))


def check_chosen(config: Config, experts: Moe) -> Moe:
    """Return the experts; ConfigError if a token chooses more experts than exist."""
    config.unmodelled("hidden_act", ("silu", "swish"), "another activation of experts")
    if experts.chosen > experts.count:
        fact = f"{experts.chosen} is more than the {experts.count} experts"
        raise config.error("num_experts_per_tok", fact)
    return experts


def decoder(
    config: Config,
    architecture: str,
    layers: tuple[LayerLike, ...],
    *,
    eps_default: float = 1e-6,
    tied_default: bool = False,
    norm: Norm | None = None,
    **differences: Any,
) -> Decoder:
    """Build the decoder of a Llama-like config around its layers; `differences` are fields of `Decoder`."""
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, Attention)]
    if len(mixers) == len(layers) and not any(mixer.blocks for mixer in mixers):
        config.every("layer_types", *(f"{mixer.sees}_attention" for mixer in mixers))
    return Decoder(
        name=config.name,
        architecture=architecture,
        dtype=dtype(config.dtype()),
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        norm=norm or Norm(config.number("rms_norm_eps", eps_default)),
        positions=config.optional_integer("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings", tied_default),
        layers=layers,
        **differences,
    )


def untied(config: Config, found: Decoder) -> Decoder:
    """The decoder with a separate head, independent of `tie_word_embeddings`.

    For classes with an empty `_tied_weights_keys` in transformers.
    """
    if found.tied:
        config.note("tie_word_embeddings is true, but the class has a head of its own")
    return replace(found, tied=False)
