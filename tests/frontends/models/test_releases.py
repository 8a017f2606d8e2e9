"""Ids of checkpoints that are no preset's: those in the local cache, and those with a release's suffixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmir
from llmir.base.errors import ConfigError
from llmir.frontends.models import hub
from llmir.frontends.models.presets import find
from tests.commands import TINY


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, model: str, config: dict[str, Any], commit: str = "c0ffee", main: str = "") -> None:
    """A config in the cache as huggingface_hub lays it out."""
    folder = cache / f"models--{model.replace('/', '--')}"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps(config))
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(main)


@pytest.mark.parametrize(
    ("name", "of", "quantization"),
    [
        ("Qwen/Qwen3-32B-FP8", "Qwen3-32B", "weights=fp8_b128x128, activations=fp8"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen2.5-7B", "weights=int4_g128z"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen2.5-72B", "weights=int8_g128"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "Llama-3.1-70B", "weights=int4_g128"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "Llama-3.3-70B", "weights=fp8_c, activations=fp8"),
        ("zai-org/GLM-4.5-FP8", "GLM-4.5", "weights=fp8_c, activations=fp8"),
        ("zai-org/GLM-5-FP8", "GLM-5", "weights=fp8_b128x128, activations=fp8"),
        ("zai-org/GLM-5.1-FP8", "GLM-5", "weights=fp8_b128x128, activations=fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B", "weights=fp8_t, activations=fp8_t"),
        ("nvidia/Llama-3.1-405B-Instruct-NVFP4", "Llama-3.1-405B", "weights=nvfp4, activations=nvfp4"),
        ("casperhansen/llama-3.3-70b-instruct-awq", "Llama-3.3-70B", "weights=int4_g128z"),
        ("unsloth/Qwen2.5-7B-Instruct-bf16", "Qwen2.5-7B", None),
        ("Qwen/Qwen2.5-7B-Instruct-2501", "Qwen2.5-7B", None),
    ],
)
def test_a_release_has_the_sizes_of_its_model_and_the_types_of_its_publisher(
    cache: Path, name: str, of: str, quantization: str | None
) -> None:
    program, model = llmir.load(name), llmir.load(of)
    assert program.parameters == model.parameters and program.name == name.partition("/")[2]
    stated = program.facts.get("quantization")
    assert stated is None if quantization is None else str(stated).startswith(f"quantize{{{quantization}")
    assert f"is treated as a release of {of}" in program.notes[0]


def test_experts_are_stored_in_few_bits_and_what_chooses_them_is_not(cache: Path) -> None:
    program = llmir.load("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    types = {n.name: str(n.results[0].dtype) for n in program["layer"].nodes if n.name.endswith(".weight")}
    assert types["gate.weight"] == "bf16" and types["up_proj.weight"].startswith("fp8_e4m3_b128x128")


def test_the_405b_of_meta_keeps_attention_and_the_layers_at_both_ends(cache: Path) -> None:
    """Its checkpoint has some 410 GB where all matrices but the head's would have 403."""
    program = llmir.load("meta-llama/Llama-3.1-405B-Instruct-FP8")
    attention = 126 * (2 * 16384**2 + 2 * 16384 * 1024)
    kept = attention + 2 * (3 * 16384 * 53248) + 2 * 128256 * 16384
    norms, scales = (2 * 126 + 1) * 16384, 124 * (2 * 53248 + 16384)
    assert llmir.analyze(program, "h200-sxm", batch=1, new=1, context=0).weight_bytes == (
        program.parameters - kept - norms + 2 * (kept + norms) + 4 * scales
    )


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct-1M", "x/y-AWQ", "-FP8", "Qwen3-32B-FP8-FP8"])
def test_what_no_suffix_explains_is_unknown(cache: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="unknown model"):
        llmir.load(name)


def test_an_id_in_the_local_cache_is_read_from_it(cache: Path) -> None:
    put(cache, "some/tiny-model-AWQ", {**TINY, "num_hidden_layers": 3}, main="c0ffee")
    program = llmir.load("some/tiny-model-AWQ")
    assert (program.name, program.facts["layers"], program.notes) == ("tiny-model-AWQ", 3, ())


def test_the_main_revision_is_what_is_meant(cache: Path) -> None:
    put(cache, "some/model", {**TINY, "num_hidden_layers": 1}, commit="old")
    put(cache, "some/model", {**TINY, "num_hidden_layers": 2}, commit="new", main="old")
    assert llmir.load("some/model").facts["layers"] == 1


def test_a_preset_is_itself_whatever_the_cache_says(cache: Path) -> None:
    put(cache, "Qwen/Qwen3-8B", dict(TINY))
    preset = find("Qwen/Qwen3-8B")
    assert preset and llmir.load("Qwen/Qwen3-8B").parameters == preset.parameters


def test_no_id_leaves_the_cache(cache: Path) -> None:
    (cache / "outside").mkdir()
    (cache / "outside" / "config.json").write_text(json.dumps(dict(TINY)))
    put(cache, "some/model", dict(TINY), main="../../outside")
    for name in ("../x", "a/../b", "a" * 200, "some/model\x00"):
        assert hub.config(name) is None
    assert hub.config("some/model") is None


def test_the_cache_lies_where_the_hub_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache() == tmp_path / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert hub.cache() == tmp_path / "x/huggingface/hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert hub.cache() == tmp_path / "hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    assert hub.cache() == tmp_path / "own"
