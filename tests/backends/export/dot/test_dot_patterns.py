"""What pictures say of patterns of layers, and of models of images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import llmir
from llmir.backends.export import units
from llmir.backends.export.dot.outline import outline, pattern
from llmir.base.errors import InputError

from .test_dot import needs_dot, shapes, shares

HYBRID: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M*-M-M*-MM-",
    "num_hidden_layers": 15,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 512,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "torch_dtype": "bfloat16",
}


def test_a_layer_that_lies_in_several_places_is_drawn_once_with_all_its_runs() -> None:
    program = llmir.run(llmir.load(HYBRID), llmir.pipeline_of())
    step = llmir.analyze(program, "h100", batch=1, new=64)
    drawn = outline(step, "x")
    counts = {section.body: section.times for section in drawn.sections if section.prefix}
    assert counts == {"mamba2_layer": 7, "dense_layer": 6, "full_nope_layer": 2}
    assert sum(b.total_s for b in drawn.boxes) == pytest.approx(float(step.time_s))
    assert [section.period for section in drawn.sections] == [None] * len(drawn.sections)
    flow = {(link.tail, link.head) for link in drawn.links}
    assert nx.is_directed_acyclic_graph(nx.DiGraph(list(flow)))


def test_the_pattern_is_said_and_a_period_has_a_frame(tmp_path: Path) -> None:
    program = llmir.run(llmir.load("gemma-3-12b"), llmir.pipeline_of())
    step = llmir.analyze(program, "h100", batch=1, new=64)
    assert pattern(program) == "8 × (5 × sliding · full)"
    assert [s.period for s in outline(step, "x").sections if s.prefix] == [("period", 8)] * 2
    text = llmir.draw(step, tmp_path / "x.dot").read_text("utf-8")
    assert "period × 8, each" in text and "5 × sliding_layer, window(1024)" in text
    assert pattern(llmir.load("llama3.1-8b")) == ""


def test_a_step_of_images_is_drawn_as_one(tmp_path: Path) -> None:
    program = llmir.run(llmir.load("DiT-XL/2"), llmir.pipeline_of())
    text = llmir.draw(llmir.workload(program, "a100", batch=4), tmp_path / "x.dot").read_text("utf-8")
    assert "ENCODE" in text and "4 images of 256 patches" in text and "images/s" in text
    assert "PREFILL" not in text and "TTFT" not in text and "tokens" not in text
    with pytest.raises(InputError, match="a workload without tokens has no prefill step; draw its encode"):
        llmir.draw(llmir.workload(program, "a100"), tmp_path / "y.dot", phase="prefill")


@needs_dot
@pytest.mark.parametrize("level", ["overview", "layer"])
def test_shares_are_of_the_step_where_a_graph_hides_launches(tmp_path: Path, level: str) -> None:
    """A decode step of DeepSeek V3 on eight ranks: kernels run in a graph, and no box is below 0."""
    how = f"quantize{{weights=fp8}},{llmir.pipeline_of()},shard{{tp=8, ep=8}}"
    program = llmir.run(llmir.load("deepseek-v3"), how)
    report = llmir.analyze(program, "h200", batch=1, new=1, context=2048)
    path = llmir.draw(report, tmp_path / "x.svg", level=level)
    words = path.read_text("utf-8").replace("&#160;", " ")
    assert units.time(float(report.time_s)) in words
    assert not re.search(r"[-−]\d[\d.,]* (s|ms|µs|ns)", words)
    found = [share for box in shapes(path, "node") for line in box.words for share in shares(line.split())]
    assert found and min(found) >= 0 and max(found) <= 100


@pytest.mark.slow
@needs_dot
def test_a_body_that_runs_once_in_its_period_says_how_often_without_a_product(tmp_path: Path) -> None:
    report = llmir.analyze(llmir.load("qwen3-next-80b-a3b"), "h200", new=1)
    path = llmir.draw(report, tmp_path / "x.svg", level="overview")
    said = [" ".join(box.words) for box in shapes(path, "node")]
    assert any("× 36 = 12 × 3" in words for words in said) and not any("12 × 1 " in words for words in said)
