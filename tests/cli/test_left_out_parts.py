"""Each command that estimates a multimodal model states above its numbers what it does not count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmir
from tests.commands import Run

TEXT = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
TOWERS = {"vision_config": {"depth": 2}, "audio_config": {"depth": 2}}
SIZES = ("--prompt", "8", "--generate", "4")
COMMANDS: list[tuple[tuple[str, ...], str]] = [
    (("analyze", *SIZES), "TTFT"),
    (("analyze", *SIZES, "--concurrency", "2"), "TTFT"),
    (("max", *SIZES), "limit"),
    (("serve-sim", *SIZES, "--rate", "5", "--requests", "20"), "p99"),
    (("serve-sim", *SIZES, "--rates", "5,6", "--requests", "20"), "p99"),
    (("plan", *SIZES, "--rate", "5", "--requests", "100"), "TTFT"),
    (("sweep",), "tokens/s"),
    (("sensitivity", *SIZES), "resource"),
    (("diff", *SIZES), "TTFT"),
    (("explain", "memory"), "GiB"),
]


def write(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config), "utf-8")
    return str(path)


@pytest.mark.parametrize(("arguments", "first"), COMMANDS, ids=[" ".join(c[0][:1]) for c in COMMANDS])
def test_the_header_states_which_towers_are_not_counted(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], first: str
) -> None:
    classes = {"architectures": ["SomeForConditionalGeneration"]}
    model = write(tmp_path / "m.json", {**classes, **TOWERS, "text_config": TEXT | {"model_type": "llama"}})
    command, *rest = arguments
    said = run(command, model, *rest, "--hw", "h100-sxm")
    assert said.code == 0, said.err
    header = " ".join(said.out[: said.out.index(first)].split())
    assert "vision tower" in header
    assert "audio tower" in header
    assert "not counted" in header or "without vision tower, audio tower" in header
    alone = run(command, write(tmp_path / "text.json", TEXT), *rest, "--hw", "h100-sxm")
    assert "tower" not in alone.out


def test_the_name_of_a_model_stays_in_json(run: Run, tmp_path: Path) -> None:
    model = write(tmp_path / "m.json", {**TEXT, "vision_config": {}})
    assert json.loads(run("analyze", model, *SIZES, "--format", "json").out)["model"]["name"] == "m"
    assert llmir.load(model).title == "m without vision tower"
