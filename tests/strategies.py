"""What the properties are tested over: small configs of every family, and points to price them at."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from llmir.passes.quantize import Quantize
from llmir.passes.stages import Stages

DTYPES = ("bfloat16", "float16", "float32")


# What each family has beside the sizes that all have.
_MOE = (
    "num_experts_per_tok",
    "num_experts",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
)
_FIELDS = {
    "LlamaForCausalLM": ("attention_bias", "mlp_bias"),
    "Qwen2ForCausalLM": (),
    "Qwen3ForCausalLM": ("attention_bias",),
    "Qwen3MoeForCausalLM": ("attention_bias", *_MOE),
    "Qwen2MoeForCausalLM": (*_MOE, "qkv_bias", "shared_expert_intermediate_size"),
    "Phi3ForCausalLM": ("sliding_window",),
    "MistralForCausalLM": ("sliding_window",),
    "MixtralForCausalLM": ("sliding_window", "num_experts_per_tok", "num_local_experts"),
}
_DRAWN: dict[str, st.SearchStrategy[object]] = {
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "qkv_bias": st.booleans(),
    "shared_expert_intermediate_size": st.integers(1, 20),
    "sliding_window": st.sampled_from((None, 1, 2, 5, 40)),
    "num_experts_per_tok": st.none(),  # of as many as there are
    "num_experts": st.integers(1, 6),
    "num_local_experts": st.integers(1, 6),
    "moe_intermediate_size": st.integers(1, 20),
    "decoder_sparse_step": st.integers(1, 2),
    "mlp_only_layers": st.lists(st.integers(0, 4), max_size=2),
}


@st.composite
def configs(draw: st.DrawFn, architectures: tuple[str, ...] = ()) -> dict[str, object]:
    """A config of a supported family with small, odd sizes."""
    architecture = draw(st.sampled_from(architectures or tuple(_FIELDS)))
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 3))
    head_dim = 2 * draw(st.integers(1, 6))
    config: dict[str, object] = {
        "architectures": [architecture],
        "hidden_size": heads * head_dim if architecture == "Qwen2ForCausalLM" else draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw(st.integers(1, 50)),
        "vocab_size": draw(st.integers(1, 60)),
        "torch_dtype": draw(st.sampled_from(DTYPES)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if architecture != "Qwen2ForCausalLM":
        config["head_dim"] = head_dim
    for field in _FIELDS[architecture]:
        config[field] = draw(_DRAWN[field])
    if "num_experts_per_tok" in config:
        experts: Any = config.get("num_experts", config.get("num_local_experts"))
        config["num_experts_per_tok"] = draw(st.integers(1, experts))
    return config


def window(config: dict[str, Any]) -> int | None:
    """How many keys a query sees, if not all."""
    found: int | None = config.get("sliding_window")
    return found


LOGITS = st.sampled_from(("last", "all"))
_FUSIONS = ("", "fuse-attention", "fuse", "fuse-attention,fuse", "fuse-attention,fuse,dce")
FUSIONS = st.sampled_from(_FUSIONS)
ALL = (
    *_FUSIONS,
    "quantize{weights=fp8, activations=fp8, kv=fp8},fuse-attention,fuse",
    "fuse,quantize{weights=int4_g8, kv=int8}",
    "quantize{weights=fp8_b4x6, activations=fp8, kv=fp16, plan=(lm_head:fp8)},fuse-attention",
    "fuse-attention,fuse,dce,quantize{weights=nvfp4, activations=nvfp4, plan=(down_proj:keep)}",
)
PIPELINES = st.sampled_from(ALL)


_PAIRS = (
    *(("fp8", ""), ("fp8", "fp8"), ("fp8_b128x128", "fp8"), ("fp8_b4x6", "fp8"), ("fp8_e5m2", "fp8_e5m2")),
    *(
        ("int8", ""),
        ("int8", "int8"),
        ("int4", ""),
        ("int4_g4", "int8"),
        ("int4_g8z", ""),
        ("int4_g4", "fp8"),
    ),
    *(("nvfp4", "nvfp4"), ("mxfp4", ""), ("mxfp4", "fp8"), ("mxfp4", "mxfp4"), ("nvfp4", ""), ("", "")),
    *(("nf4", ""), ("nf4_dq", ""), ("bnb_fp4", ""), ("int4_g4zi", ""), ("int8_c16zi", "")),
)
_PLANS = (
    "",
    "(lm_head:int8)",
    "(down_proj:keep)",
    "(o_proj:int4_g6, attention:fp8_t)",
    "(embedding:fp8)",
    "(*_norm:fp32, lm_head:nvfp4)",
)


@st.composite
def quantizations(draw: st.DrawFn) -> Quantize:
    """A `quantize` of some of weights, activations and cache, with or without a plan."""
    weights, activations = draw(st.sampled_from(_PAIRS))
    kv = draw(st.sampled_from(("", "fp8", "fp8_e5m2", "int8", "fp16")))
    plan = draw(st.sampled_from(_PLANS))
    # To keep something is an error where nothing is changed.
    return Quantize(weights, activations, kv, plan if weights or "keep" not in plan else "")


@st.composite
def points(draw: st.DrawFn) -> dict[str, int]:
    """A step: a prefill, a decode, or a chunk."""
    return {
        "batch": draw(st.integers(1, 40)),
        "new": draw(st.integers(1, 70)),
        "context": draw(st.integers(0, 90)),
    }


@st.composite
def degrees(draw: st.DrawFn, config: dict[str, Any]) -> str:
    """A shard pass whose degrees divide what they must, as text."""
    kv = config["num_key_value_heads"]
    group = config["num_attention_heads"] // kv
    split = ("intermediate_size", "shared_expert_intermediate_size")
    sizes = [config[k] for k in split if k in config]
    tp = draw(
        st.sampled_from(
            [
                n
                for n in (1, 2, 3, 4, 6)
                if all(s % n == 0 for s in sizes)
                and (kv % n == 0 or (n % kv == 0 and group % (n // kv) == 0))
            ]
        )
    )
    dp = draw(st.sampled_from((1, 2, 3, 6)))
    experts = config.get("num_experts", config.get("num_local_experts", 1))
    routed = "num_experts_per_tok" in config
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    eps = [n for n in range(1, dp * tp + 1) if (dp * tp) % n == 0 and experts % n == 0]
    eps = [n for n in eps if inner % (dp * tp // n) == 0] if routed else [1]
    ep = draw(st.sampled_from(eps or [0]))
    return f"shard{{tp={tp}, dp={dp}, ep={ep}, sp={draw(st.integers(0, int(tp > 1)))}}}"


def wide(config: dict[str, Any], factor: int) -> dict[str, Any]:
    """The config with sizes that many degrees divide."""
    more = {k: config[k] * factor for k in ("intermediate_size", "vocab_size")}
    if "moe_intermediate_size" in config:
        more |= {"moe_intermediate_size": config["moe_intermediate_size"] * factor}
    return {**config, **more}


@st.composite
def cuts(draw: st.DrawFn, layers: int) -> Stages:
    """A `stages` pass for so many layers: as equal as can be, or of any sizes."""
    pp = draw(st.integers(1, layers))
    micro = draw(st.sampled_from((1, 1, 2, 3)))
    if draw(st.booleans()):
        return Stages(pp, micro_batches=micro)
    ends = sorted(draw(st.permutations(range(1, layers)))[: pp - 1])
    return Stages(layers=[b - a for a, b in pairwise([0, *ends, layers])], micro_batches=micro)
