"""Small decoders whose layers differ in any way that layers can.

A mixer or an MLP of a new kind is drawn in `mixers` or `mlps`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from llmir.frontends.layers.attention import Attention, BlockIndex, Rope, Temper
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.compressed_attention import CompressedAttention, Compressor
from llmir.frontends.layers.decoder import Decoder, LearnedPositions
from llmir.frontends.layers.latent_attention import Indexer, LatentAttention
from llmir.frontends.layers.layer import Layer, Norms, Streams, Sublayer
from llmir.frontends.layers.linear_attention import DeltaNet, Lightning
from llmir.frontends.layers.mamba import Mamba, Mamba2, ParallelMixers, ShortConv
from llmir.frontends.layers.mlp import Mlp, Moe, Routing, expert_tensor_names
from llmir.frontends.layers.shared_block import SharedBlock
from llmir.ir.core.dtype import BF16, FP32

_ROPES = (Rope(100.0), Rope(50.0, size=4), Rope(100.0, interleaved=True), Rope(9.0, size=2, interleaved=True))
_BLOCKS = BlockIndex(size=6, length=2, top_k=2)
_NORMS = (
    Norm(1e-3),
    Norm(1e-3, offset=1.0),
    Norm(1e-3, "layer_norm"),
    Norm(1e-3, "layer_norm", ("weight", "bias")),
    Norm(1e-3, "layer_norm", ("weight", "bias"), offset=1.0),
    Norm(1e-3, "layer_norm", ()),
)
_ROUTINGS = (
    Routing(),
    Routing(normalize=True),
    Routing(jitter=0.1),
    Routing("sigmoid", normalize=True, scale=2.0, correction="correction"),
    Routing("sqrt_softplus", table="table", rows=13),
    Routing("sigmoid", groups=2, kept=1, best=2, correction="correction", learned=True),
)
_PLACES = (
    Norms(),
    Norms(after_mixer="mixed", after_mlp="fed"),
    Norms(None, "mixed", None, "fed"),
)


@st.composite
def keepers(draw: st.DrawFn) -> Sublayer:
    """Mixers that keep states of fixed size."""
    flag, taps = draw(st.booleans()), draw(st.integers(2, 4))
    mamba2 = Mamba2(
        *(4, 3, draw(st.sampled_from((1, 2, 4))), 5, taps, flag),
        norm=draw(st.sampled_from(("gated", "before", ""))),
        least=draw(st.sampled_from((0.0, 0.5))),
        conv_bias=draw(st.booleans()),
        out_bias=draw(st.sampled_from((None, True))),
        scales=draw(st.sampled_from(((1.0,) * 5, (0.5, 2.0, 1.0, 0.7, 1.5)))),
    )
    stacks = (("qkvz", 2, "qkvz"), ("ba", 2, "ba")), tuple((part, 1, part) for part in "qkvzba")
    delta = DeltaNet(
        *(2, 4, 3, 5, taps, 1e-3),
        projections=draw(st.sampled_from(stacks)),
        negative=flag,
    )
    low = (*((f"{part}_proj", 1, part) for part in "qkvb"), ("fa fb", 1, "a"), ("ga gb", 1, "z"))
    kda = DeltaNet(*(4, 4, 3, 5, taps, 1e-3), low, conv="{part}_conv", decays="g r d", gate="sigmoid")
    mamba = Mamba(8, 5, 3, taps, flag, norm=draw(st.sampled_from((None, Norm(1e-3), Norm(1e-3, learns=())))))
    sides = ParallelMixers(mamba2, Attention(4, 2, 6, None), 0.5, (2.0, 0.7))
    others = (mamba, Lightning(4, 3, 9), ShortConv(8, taps, flag))
    return draw(st.sampled_from((mamba2, delta, kda, sides, *others)))


@st.composite
def compressed(draw: st.DrawFn) -> CompressedAttention:
    """A window, beside it entries of a few tokens or none, of which each query sees all or the best two."""
    rope, series = Rope(100.0, size=2, interleaved=True), draw(st.sampled_from((0, 1, 2)))
    choice = draw(st.sampled_from(({}, {"index_heads": 2, "index_size": 4, "top_k": 2}))) if series else {}
    entries = Compressor(draw(st.sampled_from((2, 3))), series, 6, rope) if series else None
    return CompressedAttention(4, 6, 3, 2, 5, draw(st.sampled_from((3, 5))), rope, entries, **choice)


@st.composite
def mixers(draw: st.DrawFn, hidden: int) -> Sublayer:
    """What mixes tokens."""
    if draw(st.booleans()):
        return draw(st.one_of(keepers(), keepers(), compressed()))
    if not draw(st.integers(0, 4)):
        indexer = draw(st.sampled_from((None, None, Indexer(heads=3, size=5, keys=2))))
        q_latent = 3 if indexer else draw(st.sampled_from((None, 3)))
        rope = _ROPES[2] if indexer else draw(st.sampled_from((None, _ROPES[2])))
        return LatentAttention(4, q_latent, 5, 3, 4, 6, rope, 0.3, draw(st.booleans()), indexer)
    return Attention(
        heads=4,
        kv_heads=2,
        head_dim=6,
        rope=(rope := draw(st.sampled_from((None, *_ROPES)))),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        qk_norm=draw(st.sampled_from(("", "head", "heads", "whole", "bare"))),
        mask=(mask := draw(st.sampled_from(("causal", "window(3)", "chunk(4)", "alibi(1)", "alibi(6)")))),
        blocks=draw(st.sampled_from((None, _BLOCKS))) if rope and mask == "causal" else None,
        scale=draw(st.sampled_from((None, 0.3))),
        cap=draw(st.sampled_from((0.0, 1.5))),
        clip=draw(st.sampled_from((0.0, 0.0, 0.7))),
        sinks=draw(st.sampled_from(("", "sinks"))),
        temper=draw(st.sampled_from((None, None, Temper(0.3, 2, 1.0)))),
        norm_turned=draw(st.booleans()),
        gate=(gate := draw(st.sampled_from(("", "q_proj", "gate_proj")))),
        value_dim=(wide := None if gate == "q_proj" else draw(st.sampled_from((None, None, 4)))),
        bare_v=draw(st.booleans()),
        one_kv=draw(st.booleans()) and wide is None,
        value_scale=draw(st.sampled_from((1.0, 0.7))),
    )


@st.composite
def experts(draw: st.DrawFn) -> Moe:
    """Of four experts two, by any choice, beside one for all tokens or not."""
    biased, stacked, gated = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2)) > 0
    names = ("both[0/8]^T", "both[1/8]^T", "down^T") if stacked else expert_tensor_names()
    biases = ("both_bias[0/8]", "both_bias[1/8]", "down_bias") if biased else None
    if not gated:
        names, biases = ("up^T", "down^T") if stacked else names[1:], biases and ("up_bias", "down_bias")
    shared = draw(st.sampled_from((None, Mlp(8, module="shared", block="shared_experts", prefix="shared_"))))
    return Moe(
        count=4,
        chosen=2,
        intermediate=8,
        routing=draw(st.sampled_from(_ROUTINGS)),
        router_bias=biased,
        matrices=names,
        router_dtype=draw(st.sampled_from((None, FP32))),
        biases=biases,
        activation=draw(st.sampled_from(("silu", "gelu"))),
        clamp=draw(st.sampled_from((None, (0.5, 1.2), (0.5, 1.2, 0.0)))) if gated else None,
        scaled_inputs=draw(st.booleans()),
        shared=shared,
        shared_gate="shared_gate" if shared and draw(st.booleans()) else "",
    )


@st.composite
def mlps(draw: st.DrawFn) -> Sublayer:
    """What follows."""
    if draw(st.booleans()):
        return draw(experts())
    return Mlp(
        intermediate=8,
        bias=draw(st.booleans()),
        matrices=draw(st.sampled_from((("gate_proj", "up_proj", "down_proj"), ("fc1", "fc2")))),
        activation=(act := draw(st.sampled_from(("silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu")))),
        learned=("above", "below") if act == "xielu" else (),
        scales=draw(st.sampled_from(((1.0, 1.0), (0.5, 2.0)))),
        clamp=(clamp := draw(st.sampled_from((None, None, (0.5, 1.2, 0.0))))),
        sparsity=0.0 if clamp else draw(st.sampled_from((0.0, 0.0, 0.5))),
    )


# Blocks that layers share, and what adapts the second, of whichever layer.
_ADAPTERS = {"self_attn.q_proj": "q_adapter", "mlp.both": "both_adapter"}
_SHARED = tuple(
    SharedBlock(
        f"{name}.",
        Attention(4, 2, 6, None, given="s h"),
        Mlp(8, matrices=("both[0]", "both[1]", "down_proj"), activation="gelu"),
        adapters,
        rank=3,
    )
    for name, adapters in (("first", ()), ("second", tuple(_ADAPTERS.items())))
)


@st.composite
def kinds(draw: st.DrawFn, hidden: int) -> Layer:
    """A layer; one of the two sublayers may be missing."""
    mixer, mlp = draw(mixers(hidden)), draw(mlps())
    missing = draw(st.sampled_from(("", "", "", "mixer", "mlp")))
    parallel = draw(st.booleans())
    one_norm = parallel and draw(st.booleans())
    shared = draw(st.sampled_from((None, None, None, *_SHARED)))
    return Layer(
        None if missing == "mixer" else mixer,
        None if missing == "mlp" else mlp,
        Norms(before_mlp=None) if one_norm else draw(st.sampled_from(_PLACES)),
        parallel=parallel,
        residual=draw(st.sampled_from((1.0, 0.5))),
        kept=None if parallel else draw(st.sampled_from((None, None, (0.5, 2.0)))),
        shared=shared,
    )


@st.composite
def decoders(draw: st.DrawFn, most: int = 7) -> Decoder:
    """Up to `most` layers of up to three kinds, often in periods."""
    hidden = 8
    found = draw(st.lists(kinds(hidden), min_size=1, max_size=3))
    period = draw(st.lists(st.sampled_from(found), min_size=1, max_size=3))
    before = draw(st.lists(st.sampled_from(found), max_size=1))
    stack = (before + period * most)[: draw(st.integers(1, most))]
    if isinstance(stack[0].mixer, Attention) and not draw(st.integers(0, 3)):
        lent = replace(stack[0], mixer=replace(stack[0].mixer, lends="kv"))
        stack = [lent, *stack[1:], replace(stack[0], mixer=replace(stack[0].mixer, borrows="kv"))]
    elif not draw(st.integers(0, 7)):
        streams = Streams(draw(st.integers(2, 3)), 3, 1e-3, 1e-3)
        whole = [layer for layer in stack if layer.mixer and layer.mlp]
        stack = [Layer(x.mixer, x.mlp, streams=streams) for x in whole] or stack
    caps: dict[str, Any] = {"logits_cap": draw(st.sampled_from((0.0, 2.0))), "head_bias": draw(st.booleans())}
    return Decoder(
        name="drawn",
        architecture="DrawnForCausalLM",
        dtype=draw(st.sampled_from((FP32, BF16))),
        vocab=draw(st.sampled_from((12, 13))),
        hidden=hidden,
        norm=draw(st.sampled_from(_NORMS)),
        positions=64,
        tied=draw(st.booleans()),
        layers=tuple(stack),
        embedding_scale=draw(st.sampled_from((1.0, 3.0))),
        logits_scale=draw(st.sampled_from((1.0, 0.25))),
        learned=draw(st.sampled_from((None, LearnedPositions("wpe", 80, 2)))),
        embedding_norm=draw(st.sampled_from(("", "embed_norm"))),
        **caps,
    )
