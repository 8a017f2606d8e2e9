"""Layers that process only some tokens of a prompt: what they compute, what they cost, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import InputError, PassError
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from tests.flat import records

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "dtype": "float32",
}
WINDOW = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 3}
# The model of a page that this project began from: Qwen2-0.5B, read as a Llama, without biases.
PAGE: dict[str, Any] = {
    **TINY,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "torch_dtype": "float16",
    "dtype": None,
}
PAGE.pop("dtype")
BY_LAYER = [1024] * 4 + [512] * 4 + [256] * 4 + [128] * 4 + [64] * 4 + [32] * 4
RUNS = "1024x4,512x4,256x4,128x4,64x4,32x4"


def pruned(program: Program, layers: str) -> Program:
    return llmir.run(program, f"prune-tokens{{layers=({layers})}}")


def test_tokens_that_no_later_query_sees_may_be_pruned() -> None:
    """With windows of 3, the last token's last layer needs 3 tokens, that before it 5, the first 7."""
    program = llmir.load(WINDOW)
    for layers in ("7x3", "7x2, 3", "7, 5, 3"):
        assert llmir.equivalent(program, pruned(program, layers), new=7)
    for layers in ("7, 4, 3", "7, 5, 2"):
        assert not llmir.equivalent(program, pruned(program, layers), new=7)


def _by_hand(config: dict[str, Any], tokens: list[int], counts: list[int]) -> np.ndarray[Any, Any]:
    """The logits of the last token of a Llama whose layers see the last so many tokens, in plain numpy."""
    draw, d = _weights, config["hidden_size"] // config["num_attention_heads"]
    x = draw("model.embed_tokens.weight", (60, 32))[tokens]
    places = np.arange(len(tokens))
    for i, count in enumerate(counts):
        x, places, at = x[-count:], places[-count:], f"model.layers.{i}."
        h = _norm(x, draw(f"{at}input_layernorm.weight", (32,)))
        q, k, v = (
            np.einsum("th,h...->t...", h, draw(f"{at}self_attn.{name}_proj.weight", shape))
            for name, shape in (("q", (32, 2, 2, d)), ("k", (32, 2, d)), ("v", (32, 2, d)))
        )
        q, k = _turned(q, places), _turned(k, places)
        scores = np.einsum("tgrd,cgd->grtc", q, k) / np.sqrt(d)
        scores = np.where(places[:, None] >= places, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("grtc,cgd->tgrd", weights, v)
        x = x + np.einsum("tgrd,grdh->th", mixed, draw(f"{at}self_attn.o_proj.weight", (2, 2, d, 32)))
        h = _norm(x, draw(f"{at}post_attention_layernorm.weight", (32,)))
        gate, up = (h @ draw(f"{at}mlp.{name}_proj.weight", (32, 48)) for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ draw(f"{at}mlp.down_proj.weight", (48, 32))
    x = _norm(x, draw("model.norm.weight", (32,)))
    result: np.ndarray[Any, Any] = draw("lm_head.weight", (60, 32)) @ x[-1]
    return result


def _norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    return result


def _turned(x: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    half = x.shape[-1] // 2
    angles = places[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = (f(angles).reshape(len(places), *[1] * (x.ndim - 2), half) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _weights(name: str, shape: Any) -> np.ndarray[Any, Any]:
    sizes = tuple(map(Binding(), shape.shape)) if isinstance(shape, Tensor) else shape
    rng = np.random.default_rng(sum(name.encode()))
    return rng.normal(size=sizes) / np.sqrt(sizes[0])


@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 4, 4], [6, 4, 1], [6, 1, 1]])
def test_a_prompt_whose_layers_see_fewer_tokens_is_as_by_hand(counts: list[int]) -> None:
    tokens = [5, 17, 3, 40, 8, 22]
    program = pruned(llmir.load(TINY), ",".join(map(str, counts)))
    for pipeline in ("", llmir.pipeline_of(), "unroll"):
        run = llmir.run(program, pipeline)
        (found,), caches = interpret(run, {"tokens": np.array([tokens])}, _weights)
        assert np.allclose(found[0], _by_hand(TINY, tokens, counts))
        rows = sorted(pieces[0].shape[1] for pieces in caches.values())
        assert rows == sorted([*counts, *counts])
        interpret(run, {"tokens": np.array([[7]])}, _weights, caches, context=6)


REWRITES = ["shard{tp=2}", "shard{tp=2, sp=1}", "shard{dp=2}", "stages{pp=2}", "unroll"]


@pytest.mark.parametrize("pipeline", REWRITES)
def test_a_pruned_program_is_rewritten_as_any(pipeline: str) -> None:
    program = pruned(llmir.load(TINY), "5, 4, 2")
    assert llmir.equivalent(program, llmir.run(program, pipeline), new=5)
    assert llmir.parse_program(llmir.print_program(program)) == program


def test_logits_of_all_tokens_are_of_those_that_the_last_layer_sees() -> None:
    program = pruned(llmir.load(TINY, logits="all"), "5, 4, 2")
    (found,), _ = interpret(program, {"tokens": np.array([[1, 2, 3, 4, 5]])}, _weights)
    assert found.shape == (1, 2, 60)


def test_a_period_is_cut_where_its_layers_see_fewer() -> None:
    config = {**TINY, "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 8, "sliding_window": 3}
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
    program = llmir.load({**config, "layer_types": kinds, "head_dim": 8, "query_pre_attn_scalar": 8})
    assert "period" in program.graphs
    same = pruned(program, "6x8")
    assert llmir.equivalent(program, same, new=6)
    cut = pruned(program, "6x2, 5x4, 2x2")
    assert llmir.equivalent(cut, llmir.run(cut, "unroll"), new=6)
    numbers = [layer for at in cut.instances() for layer in at.layers if at.node.name.endswith("k_cache")]
    assert sorted(numbers) == list(range(8))


def test_the_figures_of_the_page_that_are_right_by_definition() -> None:
    """And those of its pruned variant: 1024 tokens in four layers, 512 in the next four, and so on to 32."""
    program = pruned(llmir.load(PAGE), RUNS)
    assert pruned(llmir.load(PAGE), ",".join(map(str, BY_LAYER))) == program
    eager = llmir.workload(program, "a100", generate=10)
    assert (eager.prompt, eager.program.facts["prompt"]) == (1024, 1024)
    layer = 2 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)  # FLOPs of a token
    kinds = eager.prefill.matmul_flops_by_kind
    assert kinds["attention"] + kinds["mlp"] == sum(n * layer for n in BY_LAYER)
    assert kinds["attention_core"] == sum(4 * 14 * 64 * n * n for n in BY_LAYER)
    assert eager.prefill.kv_cache_bytes == sum(2 * 128 * 2 * n for n in BY_LAYER) == 4_128_768
    assert eager.decode is not None  # the ninth token after the prompt
    assert eager.decode.kv_cache_bytes == sum(2 * 128 * 2 * (n + 9) for n in BY_LAYER)
    decoded = eager.decode.matmul_flops_by_kind
    assert decoded["attention_core"] == sum(4 * 14 * 64 * (n + 9) for n in BY_LAYER)
    assert decoded["attention"] + decoded["mlp"] == 24 * layer
    whole = llmir.workload(llmir.load(PAGE), "a100", prompt=1024, generate=10)
    assert eager.prefill.weight_bytes == whole.prefill.weight_bytes
    assert eager.prefill.time_s - eager.prefill.overhead_s < whole.prefill.time_s - whole.prefill.overhead_s
    assert float(eager.tpot_s or 0) <= float(whole.tpot_s or 0)


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ("5x2", "has 3 layers, got counts of 2"),
        ("5, 6, 1", "6 after 5: the number of tokens cannot increase"),
        ("5, x, 1", "expected counts by layer such as 1024x4,512x4, got ' x'"),
        ("0x3", "expected counts by layer such as 1024x4,512x4, got '0x3'"),
        ("5x0, 5x3", "got '5x0'"),
        ("5x99999999999", "got '5x99999999999'"),
        ("", "got none"),
    ],
)
def test_counts_that_do_not_fit_are_refused(layers: str, error: str) -> None:
    with pytest.raises(PassError, match=error):
        pruned(llmir.load(TINY), layers)


def test_images_are_among_the_tokens_that_are_pruned() -> None:
    both = "place-images{tokens=729},prune-tokens{layers=(1024x12, 128x12)}"
    program = llmir.run(llmir.load("llava-onevision-qwen2-0.5b"), f"{both},{llmir.pipeline_of()}")
    job = llmir.workload(program, "a100", generate=4)
    assert (job.prompt, job.length, list(job.steps)) == (295, 1024, ["encode", "prefill", "decode"])
    assert job.decode is not None
    assert job.decode.kv_cache_bytes == 2 * 2 * 128 * (12 * (1024 + 3) + 12 * (128 + 3))
    assert [n.name for n in program.phases["decode"]["main"].inputs] == ["tokens"]
    assert not [n for n in program.phases["decode"]["main"].nodes if n.op.opcode == "last_tokens"]


def test_what_cannot_be_pruned_says_so() -> None:
    program = pruned(llmir.load(TINY), "5, 4, 2")
    for before, why in (("unroll", "no repeated layers"), ("shard{tp=2}", "sharded or staged already")):
        with pytest.raises(PassError, match=why):
            pruned(llmir.run(llmir.load(TINY), before), "5, 4, 2")
    with pytest.raises(PassError, match="already"):
        pruned(program, "5, 4, 2")
    with pytest.raises(PassError, match=r"a mask by position \(chunk\)"):
        pruned(llmir.load("llama-4-scout"), "64x48")
    with pytest.raises(PassError, match="read keys of earlier ones"):
        pruned(llmir.load("gemma-3n-e4b"), "64x12, 32x23")


STEPS: list[dict[str, Any]] = [
    {"new": 4},
    {"new": 5, "context": 1},
    {"new": 1, "context": 4},
    {"new": [5, 6]},
]


@pytest.mark.parametrize("step", STEPS)
def test_a_pruned_prompt_is_read_whole(step: dict[str, Any]) -> None:
    program = pruned(llmir.load(TINY), "5, 4, 2")
    with pytest.raises(
        InputError, match="only some tokens of a prompt: expected new 5 and context 0, or new 1 after 5"
    ):
        llmir.analyze(program, "a100", **records(llmir.analyze, **step))
    with pytest.raises(InputError, match="process fewer tokens than a prompt of 5 tokens has; got 6"):
        llmir.workload(program, "a100", prompt=6)
    llmir.analyze(program, "a100", new=1, context=np.array([5, 6, 700]))
