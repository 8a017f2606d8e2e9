"""Against numbers that torch and transformers gave for the real models. They all lie in data/."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import UnsupportedError
from llmir.frontends.models.presets import find
from tests.flat import records

from . import torch_scans

DATA = Path(__file__).parents[2] / "data"
ORACLE = json.loads((DATA / "oracle.json").read_text("utf-8"))
PEAKS = json.loads((DATA / "peak_memory.json").read_text("utf-8"))
# The fields that act, by class: those that all its models have in common, and those of each.
CONFIGS = {
    name: {**fields["all"], **own}
    for fields in json.loads((DATA / "configs.json").read_text("utf-8")).values()
    for name, own in fields["each"].items()
}


def test_no_comparison_is_left_out() -> None:
    assert len(ORACLE) == 82 and CONFIGS.keys() == ORACLE.keys()
    assert len(PEAKS["rows"]) == 43


def _logits(name: str) -> str | None:
    """At all positions, as torch has them; a model of images has none."""
    return None if "_class_name" in CONFIGS[name] else "all"


def _by_kind(model: dict[str, Any], numbers: list[int]) -> dict[str, int]:
    return {kind: n for kind, n in zip(model["kinds"], numbers, strict=True) if n}


def _equals_torch(program: llmir.Program, config: dict[str, Any], truth: dict[str, Any]) -> None:
    """`program` has logits at all positions, eager attention, scans token by token."""
    names = torch_scans.MERGED.get(truth["class"], {})
    parameters, tower = _by_kind(truth, truth["parameters"]), 0
    if any(note.startswith("the language model alone is modelled") for note in program.notes):
        tower = parameters.pop("vision_tower") + parameters.pop("projector")
    kinds = Counter[str]()
    for kind, count in program.parameters_by_kind.items():
        kinds[names.get(kind, kind)] += count
    assert kinds == parameters
    assert program.parameters == sum(truth["parameters"]) - tower
    assert program.active_parameters == truth["active"] - tower
    assert program.kv_cache_bytes_per_token == (truth["kv_bytes_per_token"] or 0)
    if "state_bytes_per_sequence" in truth:
        assert torch_scans.state_bytes(program) == truth["state_bytes_per_sequence"]
    assert truth["matmul_flops"]
    for point, numbers in truth["matmul_flops"].items():  # b8_s128 is a prefill, b8_c2048 a decode step
        batch, tokens = map(int, re.findall(r"\d+", point))
        step = {"new": tokens, "context": 0} if "_s" in point else {"new": 1, "context": tokens}
        step = {"new": 1, "context": 0} if "_latent" in point else step
        report = llmir.analyze(program, "cpu", **records(llmir.analyze, batch=batch, **step))
        scans = torch_scans.matmul_flops(program, config, batch, **step)
        found = Counter[str]()
        for kind, flops in (*report.matmul_flops_by_kind.items(), *scans.items()):
            found[names.get(kind, kind)] += flops
        due = _by_kind(truth, numbers)
        if root := due.pop("root", 0):  # of DiT, the embedders of its first block, run once more
            due["norm"] += root
        if truth["class"] == "Llama4ForCausalLM":  # which gives every token to every expert …
            due["routed_experts"] //= config["num_local_experts"] // config["num_experts_per_tok"]
            if tokens > config["attention_chunk_size"]:  # … and keeps a window as long as a chunk
                del due["attention_core"], found["attention_core"]
        assert +found == due
        assert isinstance(report.matmul_flops, int)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", ORACLE)
def test_a_config_has_the_numbers_of_torch_or_is_refused_by_its_class(name: str) -> None:
    """A family that is added is compared from then on."""
    try:
        program = llmir.load(CONFIGS[name], logits=_logits(name))
    except UnsupportedError as error:
        assert f"{ORACLE[name]['class']} is not supported; supported are " in str(error)
    else:
        _equals_torch(program, CONFIGS[name], ORACLE[name])


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("name", [name for name in ORACLE if find(name)])
def test_a_preset_computes_what_the_published_config_does(name: str) -> None:
    _equals_torch(llmir.load(name, logits=_logits(name)), CONFIGS[name], ORACLE[name])
    stated = find(name)
    assert stated is not None
    # Some are stored in few bits, which torch's counts leave out, and some counts are of another type.
    plain = {"dtype": "bfloat16", "torch_dtype": None, "quantization_config": None}
    found = [llmir.load({**c, **plain}, logits=_logits(name)) for c in (stated.config, CONFIGS[name])]
    assert found[0].graphs == found[1].graphs
    assert [{n: p.graphs for n, p in program.phases.items()} for program in found[:1]] == [
        {n: p.graphs for n, p in found[1].phases.items()}
    ]


def test_the_models_that_were_ever_supported_still_are() -> None:
    loaded = {"LlamaForCausalLM": 9, "Qwen2ForCausalLM": 5, "Qwen3ForCausalLM": 5, "Qwen3MoeForCausalLM": 2}
    loaded |= {"MistralForCausalLM": 2, "MixtralForCausalLM": 1, "Qwen2MoeForCausalLM": 1}
    loaded["Phi3ForCausalLM"] = 3
    for architecture, count in loaded.items():
        names = [name for name, model in ORACLE.items() if model["class"] == architecture]
        assert len(names) == count and all(find(name) for name in names)
        assert all(llmir.load(CONFIGS[name]).facts["architecture"] == architecture for name in names)


@pytest.mark.parametrize("row", PEAKS["rows"], ids=lambda row: "-".join(map(str, row[:-1])))
def test_live_memory_is_the_dataflow_peak_that_torch_has(row: list[object]) -> None:
    """Equal but where eager scores dominate; there, within 10% below (see docs/dev/checks.md)."""
    case: dict[str, Any] = dict(zip(PEAKS["columns"], row, strict=True))
    batch, tokens, heads, head = case["b"], case["s"], 8, 64
    wide = {"float32": 4, "bfloat16": 2}[case["dtype"]]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": heads * head,
        "num_hidden_layers": case["L"],
        "num_attention_heads": heads,
        "num_key_value_heads": case["kv_heads"],
        "intermediate_size": 1408,
        "vocab_size": case["vocab"],
        "torch_dtype": case["dtype"],
    }
    program = llmir.load(config, logits="last" if case["logits_to_keep"] else "all")
    # On the meta device scaled_dot_product_attention is its plain form, which writes the scores.
    plain = case["attn"] == "sdpa" and case["device"] == "meta"
    if case["attn"] == "sdpa" and not plain:
        program = llmir.run(program, "fuse-attention")
    report = llmir.analyze(program, "cpu", batch=batch, new=tokens, context=0)
    peak, truth = report.activation_peak_bytes, case["D_dataflow_peak"]
    if case["use_cache"]:
        peak += report.kv_cache_bytes
    else:  # the peak is in the first layer then, when torch still keeps sin and cos for the last
        peak += 2 * tokens * head * wide
    if plain:  # it takes values, repeated to all heads, and the mask in fp32
        peak += 4 * (batch * tokens * heads * head + tokens * tokens)
    if case["attn"] == "sdpa" or report.peak_at == "lm_head":
        assert peak == truth
    else:
        assert 0.9 * truth <= peak <= truth


def test_figures_that_are_right_by_definition() -> None:
    """Hidden 896, 24 layers, 14 heads, 2 key/value heads, 4864 wide, 151936 words, a prompt of 2048."""
    program = llmir.load(
        {
            "architectures": ["LlamaForCausalLM"],  # no biases
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "torch_dtype": "float16",
        }
    )
    kinds = program.parameters_by_kind
    layers = 2 * (kinds["attention"] + kinds["mlp"])
    assert layers == 715_653_120
    assert layers + 2 * kinds["lm_head"] == 987_922_432
    assert llmir.analyze(program, "a6000", batch=1, new=2048, context=0).kv_cache_bytes == 25_165_824
