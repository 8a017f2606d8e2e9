"""IR as text: golden files that a person reads in the diff, and what is not IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import LlmirError
from tests.frontends.families.expert_cases import SPARSE
from tests.frontends.families.gate_cases import CASES as FRONT
from tests.frontends.families.pre_llama_cases import OLDER
from tests.frontends.families.transformers_cases import CASES
from tests.frontends.families.window_cases import CASES as WIDE

FOLDER = Path(__file__).parents[2] / "ir" / "programs"

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "_name_or_path": "tiny-llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
TINY_MOE = TINY_LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "_name_or_path": "tiny-moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "num_hidden_layers": 3,
}
# One layer each, of which the others are copies.
TINY_MISTRAL = TINY_LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "_name_or_path": "tiny-mistral",
    "sliding_window": 16,
    "num_hidden_layers": 1,
}
TINY_MIXTRAL = TINY_LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "_name_or_path": "tiny-mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
}


def _older(case: str) -> dict[str, object]:
    """A layer of a family before Llama."""
    layers = "n_layer" if "n_layer" in OLDER[case] else "num_hidden_layers"
    return {**OLDER[case], layers: 1, "_name_or_path": f"tiny-{case}", "torch_dtype": "bfloat16"}


def _wide(case: str, layers: int = 1) -> dict[str, object]:
    """Layers of a family with norms, windows or scales of its own."""
    own = {"num_hidden_layers": layers, "_name_or_path": f"tiny-{case.partition(',')[0]}"}
    return {**WIDE[case], **own, "torch_dtype": "bfloat16"}


def _sparse(case: str, layers: int = 1) -> dict[str, object]:
    """Layers of a family with experts."""
    own = {"num_hidden_layers": layers, "_name_or_path": f"tiny-{case.partition(',')[0]}"}
    return {**SPARSE[case], **own, "torch_dtype": "bfloat16"}


def _front(case: str, layers: int = 1) -> dict[str, object]:
    """Layers of a family with gates, sinks, scales or choices of its own."""
    own = {"num_hidden_layers": layers, "_name_or_path": f"tiny-{case.partition(',')[0]}"}
    return {**FRONT[case], **own, "torch_dtype": "bfloat16"}


def _latent(case: str) -> dict[str, object]:
    """Both layers of a DeepSeek, the second with experts."""
    return {**CASES[case], "_name_or_path": f"tiny-{case.partition(',')[0]}", "torch_dtype": "bfloat16"}


def _state(case: str, *kinds: str, **fields: object) -> dict[str, object]:
    """A layer of each of these kinds, of a family that keeps states."""
    own = {"layer_types": list(kinds)} if kinds else {}
    named = {"_name_or_path": f"tiny-{case.partition(',')[0]}", "torch_dtype": "bfloat16"}
    return {**CASES[case], "num_hidden_layers": len(kinds) or 1, **own, **named, **fields}


_DELTA, _FULL = "linear_attention", "full_attention"
_LENT: dict[str, Any] = {"num_hidden_layers": 2, "num_kv_shared_layers": 1, "layer_types": [_FULL] * 2}
_SPARSE = {"activation_sparsity_pattern": [0.5, 0.0]}
_TWO = {"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"]}
GOLDEN: dict[str, tuple[dict[str, object], str]] = {
    "tiny-afmoe.fused.ir": (_front("afmoe, a window of 3", 2), llmir.pipeline_of()),
    "tiny-apertus.fused.ir": (_front("apertus"), llmir.pipeline_of()),
    "tiny-mimo-v2-flash.ir": (_front("mimo-v2-flash, a window of 3", 2), "fuse-attention"),
    "tiny-arcee.fused.ir": (_wide("arcee"), llmir.pipeline_of()),
    "tiny-cohere.fused.ir": (_wide("cohere, q and k normed, biases"), llmir.pipeline_of()),
    "tiny-gemma2.ir": (_wide("gemma2, caps that bite"), ""),
    "tiny-gemma3.fused.ir": (_wide("gemma3, a window of 3", 7), llmir.pipeline_of()),
    "tiny-gemma.fused.ir": (_wide("gemma, biases, untied"), llmir.pipeline_of()),
    "tiny-gemma3n.fused.ir": (
        _state("gemma3n, a window of 3", **_LENT, **_SPARSE),
        llmir.pipeline_of(),
    ),
    "tiny-gemma4.fused.ir": (_state("gemma4, a window of 3, shared keys", **_LENT), llmir.pipeline_of()),
    "tiny-gemma4-moe.ir": (_state("gemma4, a window of 3, experts"), "fuse-attention"),
    "tiny-cohere2.fused.ir": (_wide("cohere2, a window of 3", 4), llmir.pipeline_of()),
    "tiny-exaone4.fused.ir": (_wide("exaone4, a window of 3", 4), llmir.pipeline_of()),
    "tiny-olmo3.fused.ir": (_wide("olmo3, a window of 3", 4), llmir.pipeline_of()),
    "tiny-smollm3.fused.ir": (_wide("smollm3, a window of 3", 2), llmir.pipeline_of()),
    "tiny-granite.ir": (_wide("granite"), ""),
    "tiny-ministral3.fused.ir": (_wide("ministral3"), llmir.pipeline_of()),
    "tiny-olmo2.fused.ir": (_wide("olmo2"), llmir.pipeline_of()),
    "tiny-bloom.fused.ir": (_older("bloom"), llmir.pipeline_of()),
    "tiny-falcon.fused.ir": (_older("falcon"), llmir.pipeline_of()),
    "tiny-gpt2.ir": (_older("gpt2"), ""),
    "tiny-gptj.fused.ir": (_older("gptj"), llmir.pipeline_of()),
    "tiny-opt.fused.ir": (_older("opt"), llmir.pipeline_of()),
    "tiny-deepseek-v2.ir": (_latent("deepseek-v2, groups, biases, yarn"), ""),
    "tiny-deepseek-v3.fused.ir": (_latent("deepseek-v3"), llmir.pipeline_of()),
    "tiny-deepseek-v3.2.ir": (_latent("deepseek-v3.2"), "absorb-mla,fuse-attention"),
    "tiny-minimax-m3.ir": (_latent("minimax-m3") | {"num_hidden_layers": 2} | _TWO, "fuse-attention"),
    "tiny-glm-5.ir": (_latent("glm-5") | {"num_hidden_layers": 2}, "absorb-mla,fuse-attention"),
    "tiny-deepseek-v4.fused.ir": (_latent("deepseek-v4"), llmir.pipeline_of()),
    "tiny-ernie-4.5-moe.fused.ir": (_sparse("ernie-4.5-moe", 2), llmir.pipeline_of()),
    "tiny-glm-4.5.fused.ir": (_sparse("glm-4.5, groups", 2), llmir.pipeline_of()),
    "tiny-gpt-oss.ir": (_sparse("gpt-oss, a window of 3 in the first layer"), ""),
    "tiny-granite-moe.fused.ir": (_sparse("granite-moe"), llmir.pipeline_of()),
    "tiny-llama-4.fused.ir": (_sparse("llama-4, a window of 3 tokens as chunks", 2), llmir.pipeline_of()),
    "tiny-minimax-m2.fused.ir": (_sparse("minimax-m2"), llmir.pipeline_of()),
    "tiny-olmoe.fused.ir": (_sparse("olmoe"), llmir.pipeline_of()),
    "tiny-phi-3.5-moe.ir": (_sparse("phi-3.5-moe, biases"), ""),
    "tiny-mamba.ir": (_state("mamba"), ""),
    "tiny-falcon-mamba.fused.ir": (_state("falcon-mamba"), llmir.pipeline_of()),
    "tiny-mamba2.ir": (_state("mamba2"), ""),
    "tiny-qwen3-next.ir": (_state("qwen3-next", _DELTA, _FULL), ""),
    "tiny-qwen3.5.fused.ir": (_state("qwen3.5", _DELTA, _FULL), llmir.pipeline_of()),
    "tiny-qwen3.5-moe.fused.ir": (_state("qwen3.5-moe", _DELTA), llmir.pipeline_of()),
    "tiny-kimi-linear.ir": (_state("kimi-linear", _DELTA, _FULL), "absorb-mla,fuse-attention"),
    "tiny-olmo-hybrid.fused.ir": (_state("olmo-hybrid", _DELTA, _FULL), llmir.pipeline_of()),
    "tiny-jamba.fused.ir": (_state("jamba", num_hidden_layers=2), llmir.pipeline_of()),
    "tiny-bamba.fused.ir": (_state("bamba", attn_layer_indices=[]), llmir.pipeline_of()),
    "tiny-falcon-h1.ir": (_state("falcon-h1, multipliers, a norm"), ""),
    "tiny-granite-hybrid.fused.ir": (_state("granite-hybrid", "mamba"), llmir.pipeline_of()),
    "tiny-nemotron-h.fused.ir": (_state("nemotron-h"), llmir.pipeline_of()),
    "tiny-minimax.ir": (_state("minimax, factors, every second layer", _DELTA), ""),
    "tiny-lfm2.fused.ir": (_state("lfm2", "conv"), llmir.pipeline_of()),
    "tiny-lfm2-moe.fused.ir": (_state("lfm2-moe", "conv", num_dense_layers=0), llmir.pipeline_of()),
    "tiny-zamba2.ir": (_state("zamba2") | {"layers_block_type": ["hybrid"]}, ""),
    "tiny-llama.ir": (TINY_LLAMA, ""),
    "tiny-llama.fused.ir": (TINY_LLAMA, llmir.pipeline_of()),
    "tiny-llama.unrolled.ir": (TINY_LLAMA, "fuse-attention,fuse,unroll"),
    "tiny-mistral.fused.ir": (TINY_MISTRAL, llmir.pipeline_of()),
    "tiny-mixtral.ir": (TINY_MIXTRAL, ""),
    "tiny-moe.fused.ir": (TINY_MOE, llmir.pipeline_of()),
    "tiny-moe.quantized.ir": (TINY_MOE, "fuse-attention,quantize{weights=fp8, activations=fp8, kv=fp8}"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """To accept a change, read it with `git diff` after `python -m tests.ir.tools.test_text`."""
    config, pipeline = GOLDEN[name]
    program = llmir.run(llmir.load(config), pipeline)
    text = (FOLDER / name).read_text("utf-8")
    assert llmir.print_program(program) == text
    assert llmir.parse_program(text) == program


@pytest.mark.parametrize("path", sorted((FOLDER.parent / "invalid").glob("*.ir")), ids=lambda p: p.stem)
def test_invalid(path: Path) -> None:
    """The first line of each file says what the error must say."""
    text = path.read_text("utf-8")
    expected = text.splitlines()[0].removeprefix("# error: ")
    with pytest.raises(LlmirError) as error:
        llmir.run(llmir.parse_program(text), [])
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_names_with_any_character_survive() -> None:
    config = TINY_LLAMA | {"_name_or_path": 'a "quoted" \\ <b>name</b> & {braces}, é'}
    program = llmir.load(config)
    assert llmir.parse_program(llmir.print_program(program)) == program


@pytest.mark.parametrize("case", ["llama, yarn, mscale", "llama, longrope", "llama, dynamic"])
def test_the_numbers_of_a_rotary_scaling_survive(case: str) -> None:
    for pipeline in ("", llmir.pipeline_of()):
        program = llmir.run(llmir.load(CASES[case]), pipeline)
        assert llmir.parse_program(llmir.print_program(program)) == program


if __name__ == "__main__":
    for file, (shape, passes) in GOLDEN.items():
        (FOLDER / file).write_text(llmir.print_program(llmir.run(llmir.load(shape), passes)), "utf-8")
