"""Layers that predict a further token: what they mean, what they hold, and the phase that they are."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import InputError, PassError, VerifyError
from llmir.ir.core.dtype import FP32
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from tests.commands import Run
from tests.flat import records
from tests.frontends.families.sparse_attention_cases import CASES as NEWEST
from tests.frontends.families.transformers_cases import CASES

DEFAULT = llmir.pipeline_of()
LAYERS = 2
QWEN = ("qwen3.5-moe",)  # whose norms store their weights less 1
OWN = f"model.layers.{LAYERS}"
DEEPSEEK = (OWN, f"{OWN}.enorm", f"{OWN}.hnorm", f"{OWN}.eh_proj", f"{OWN}.shared_head.norm")
MTP = ("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
MODELS = {
    "deepseek-v3": CASES["deepseek-v3"],
    "glm-4.5": CASES["glm-4.5, groups"],
    "qwen3.5-moe": {**CASES["qwen3.5-moe"], "num_experts": 8},
    "glm-5": {**NEWEST["glm-5"], "num_hidden_layers": LAYERS, "pad_token_id": None},
}


def config(model: str, **changes: object) -> dict[str, Any]:
    count = "mtp_num_hidden_layers" if model in QWEN else "num_nextn_predict_layers"
    kinds = {"layer_types": ["full_attention"] * LAYERS} if model in QWEN else {}
    drafts = {count: 1, "num_hidden_layers": LAYERS, "torch_dtype": "float32"}
    return {**MODELS[model], **kinds, **drafts, **changes}


def random(name: str, type: Tensor) -> np.ndarray[Any, Any]:
    shape = tuple(map(Binding(), type.shape))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return 1 + 0.1 * rng.normal(size=shape) if "norm" in name else rng.normal(size=shape) / 3


def drafter(model: str, **changes: object) -> tuple[Program, Program]:
    program = llmir.load(config(model, **changes), logits="all", draft=True)
    return program, program.phases["draft"]


def normed(x: np.ndarray[Any, Any], name: str, eps: float, less: int) -> np.ndarray[Any, Any]:
    weight = less + random(f"{name}.weight", Tensor((x.shape[-1],), FP32))
    found: np.ndarray[Any, Any] = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
    return found


@pytest.mark.parametrize("model", MODELS)
def test_a_draft_is_a_layer_of_the_projected_pair_of_embedding_and_hidden_state(model: str) -> None:
    """arXiv:2412.19437, equations 21 to 23: W · [norm(embedding); norm(h)], a layer, the shared head.

    What the layer computes is what a model of that one layer does, whose embeddings are that product, and
    which transformers has computed too (`test_transformers`). Released code has the embedding first.
    """
    _, draft = drafter(model)
    hidden, vocab, eps = 24, 13, 1e-6 if model in QWEN else 1e-5
    rng = np.random.default_rng(1)
    tokens, states = rng.integers(vocab, size=(1, 7)), rng.normal(size=(1, 7, hidden))
    (found,), _ = interpret(draft, {"tokens": tokens, "hidden": states}, random)

    own, embedding_norm, hidden_norm, product, norm = MTP if model in QWEN else DEEPSEEK
    table = random("model.embed_tokens.weight", Tensor((vocab, hidden), FP32))
    matrix = random(f"{product}.weight", Tensor((2, hidden, hidden), FP32)).reshape(2 * hidden, hidden)
    less = int(model in QWEN)
    given = normed(table[tokens], embedding_norm, eps, less), normed(states, hidden_norm, eps, less)
    rows = (np.concatenate(given, axis=-1) @ matrix)[0]

    def weights(name: str, type: Tensor) -> np.ndarray[Any, Any]:
        if name == "model.embed_tokens.weight":
            return np.concatenate([rows, np.zeros((vocab - len(rows), hidden))])
        name = {"model.norm.weight": f"{norm}.weight"}.get(name, name)
        return random(name.replace("model.layers.0.", f"{own}."), type)

    kinds = {"mlp_layer_types": ["sparse"]} if model == "glm-5" else {"first_k_dense_replace": 0}
    kinds = {"layer_types": ["full_attention"]} if model in QWEN else kinds
    count = "mtp_num_hidden_layers" if model in QWEN else "num_nextn_predict_layers"
    alone = llmir.load({**config(model, num_hidden_layers=1), **kinds, count: 0}, logits="all")
    (due,), _ = interpret(alone, {"tokens": np.arange(7)[None]}, weights)
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-9 * np.abs(due).max())


@pytest.mark.parametrize("model", MODELS)
def test_a_draft_in_pieces_is_the_draft(model: str) -> None:
    _, draft = drafter(model)
    rng = np.random.default_rng(2)
    tokens, states = rng.integers(13, size=(2, 6)), rng.normal(size=(2, 6, 24))
    (whole,), _ = interpret(draft, {"tokens": tokens, "hidden": states}, random)
    caches: dict[str, Any] = {}
    found, start = [], 0
    for size in (3, 1, 2):
        part = slice(start, start + size)
        step = {"tokens": tokens[:, part], "hidden": states[:, part]}
        (out,), caches = interpret(draft, step, random, caches, context=start)
        found, start = [*found, out], start + size
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, rtol=0, atol=1e-9)


@pytest.mark.mostly_slow(16)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "pipeline", [DEFAULT, "unroll", "shard{tp=2}", f"{DEFAULT},shard{{tp=2, dp=2, ep=2}}"]
)
def test_passes_run_on_the_draft_too(model: str, pipeline: str) -> None:
    program, draft = drafter(model, vocab_size=16, num_attention_heads=8, num_key_value_heads=8)
    after = llmir.run(program, pipeline)
    assert llmir.equivalent(draft, after.phases["draft"]) and after.phases["draft"].mesh == after.mesh
    assert llmir.equivalent(program.replace(phases={}), after)
    assert llmir.parse_program(llmir.print_program(after)) == after


def test_deepseek_v3_with_its_draft_has_the_numbers_of_the_released_files() -> None:
    """huggingface.co/deepseek-ai/DeepSeek-V3: 680,571,043,840 in fp8 and 3,918,786,560 in bf16.

    They have copies of embedding and head. Its README says 671B, 14B of the draft, and 11.5B without them.
    """
    program = llmir.load("DeepSeek-V3", draft=True)
    draft = program.phases["draft"]
    assert program.parameters == llmir.load("DeepSeek-V3").parameters == 671_026_404_352
    assert program.parameters + draft.parameters == 680_571_043_840 + 3_918_786_560
    shared = draft.parameters_by_kind["embedding"] + draft.parameters_by_kind["lm_head"]
    assert 11.5e9 < draft.parameters - shared < 11.7e9
    assert draft.kv_cache_bytes_per_token == 2 * (512 + 64)
    assert program.kv_cache_bytes_per_token == 61 * 2 * (512 + 64)


@pytest.mark.parametrize(
    ("name", "total"), [("GLM-4.5", 358_337_776_896), ("GLM-4.5-Air", 110_468_824_832 - 46 * 128)]
)
def test_glm_with_its_draft_has_the_released_total(name: str, total: int) -> None:
    """huggingface.co/zai-org, less the numbers by which the choice of experts is corrected."""
    program = llmir.load(name, draft=True)
    assert program.parameters + program.phases["draft"].parameters == total


def test_a_draft_is_memory_of_all_steps_and_a_step_of_its_own() -> None:
    how = {"batch": 8, "new": 1, "context": 4096}
    alone, both = (llmir.run(llmir.load("DeepSeek-V3", draft=draft), DEFAULT) for draft in (False, True))
    one, two = (llmir.analyze(program, "b200", **records(llmir.analyze, **how)) for program in (alone, both))
    step = llmir.analyze(both, "b200", **records(llmir.analyze, **how, phase="draft"))
    assert two.time_s == one.time_s and two.flops == one.flops
    assert step.weight_bytes == two.weight_bytes > one.weight_bytes + 11.5e9
    assert two.kv_cache_bytes == step.kv_cache_bytes == one.kv_cache_bytes * 62 // 61
    assert 0 < step.ideal_time_s < two.ideal_time_s / 15 and step.time_s < two.time_s / 5
    assert all(op.basis for op in step.ops if op.kind != "overhead")
    names = {op.name for op in step.ops}  # few tokens, so over latents, as decode
    assert {
        "draft_proj",
        "layer.q_to_latent",
        "lm_head",
    } <= names and "layer.kv_b_proj" not in names


def test_a_workload_has_the_draft_beside_and_times_without_it() -> None:
    alone, both = (llmir.run(llmir.load("DeepSeek-V3", draft=draft), DEFAULT) for draft in (False, True))
    jobs = [llmir.workload(program, "b200", batch=4, prompt=512, generate=16) for program in (alone, both)]
    assert jobs[0].draft is None and jobs[1].draft is not None
    assert list(jobs[1].steps) == ["prefill", "decode", "draft"]
    assert (jobs[0].ttft_s, jobs[0].tpot_s) == (jobs[1].ttft_s, jobs[1].tpot_s)
    assert jobs[1].to_dict()["phases"]["draft"]["time_s"] == jobs[1].draft.time_s
    assert jobs[1].peak_bytes(4) > jobs[0].peak_bytes(4)


def test_what_cannot_be_drafted_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^draft: Llama-3\.2-1B has no draft layer that llmir models"):
        llmir.load("llama3.2-1b", draft=True)
    with pytest.raises(InputError, match=r"^draft: .* has no draft layer"):
        llmir.load(config("deepseek-v3", num_nextn_predict_layers=2), draft=True)
    several = llmir.load(config("deepseek-v3", num_nextn_predict_layers=2)).notes
    assert several == ("layers that predict further tokens, 2 here, are not modelled",)
    program, draft = drafter("deepseek-v3")
    with pytest.raises(InputError, match="has no draft, the step of a layer that predicts further tokens"):
        llmir.analyze(program.replace(phases={}), "b200", phase="draft")
    with pytest.raises(PassError, match=r"the phase that drafts is one stage; load .* without it"):
        llmir.run(program, "stages{pp=2}")
    with pytest.raises(VerifyError, match="phase draft: expected one stage, of tokens and hidden states"):
        llmir.run(program.replace(phases={"draft": program.replace(phases={})}), [])
    with pytest.raises(VerifyError, match="phase draft: mesh is"):
        llmir.run(program.replace(phases={"draft": llmir.run(draft, "shard{tp=2}")}), [])


@pytest.mark.slow
def test_the_commands_have_the_draft(run: Run) -> None:
    shown = run("analyze", "DeepSeek-V3", "--hw", "b200", "--tp", "8", "--draft").out
    assert "draft_proj" in shown and "draft" in shown.lower()
    assert "draft_proj" not in run("analyze", "DeepSeek-V3", "--hw", "b200", "--tp", "8").out
    explained = run("explain", "DeepSeek-V3", "draft_proj", "--hw", "b200", "--draft", "--phase", "draft").out
    assert "b t s h" in explained
    printed = run("opt", "DeepSeek-V3", "-p", "", "--draft").out
    assert "phase draft" in printed and "model.layers.61.eh_proj.weight" in printed
