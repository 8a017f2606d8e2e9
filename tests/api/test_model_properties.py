"""What holds for every model of the families, at every point, through every pipeline."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import llmir
from llmir.base.errors import InputError, LlmirError
from llmir.frontends.models.presets import PRESETS
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, distinct
from tests.figures import close, figures
from tests.flat import records
from tests.strategies import LOGITS, PIPELINES, configs, points, window


@pytest.mark.slow
@given(configs(), PIPELINES, st.lists(points(), min_size=1, max_size=4))
def test_a_grid_is_its_points(config: dict[str, object], pipeline: str, at: list[dict[str, int]]) -> None:
    program = llmir.run(llmir.load(config), pipeline)
    batch = np.array([p["batch"] for p in at])[:, None]
    context = np.array([p["context"] for p in at])[None, :]
    grid = llmir.analyze(program, "h100", batch=batch, new=at[0]["new"], context=context)
    for i, row in enumerate(at):
        for j, column in enumerate(at):
            point = llmir.analyze(
                program, "h100", batch=row["batch"], new=at[0]["new"], context=column["context"]
            )
            assert close({k: v[i, j] for k, v in figures(grid).items()}, figures(point))
            assert grid.peak_at[i, j] == point.peak_at
            bounds = {op.name: op.bound for op in point.ops}
            for op in grid.ops:  # a grid has a row for the launch gap if one of its points has a gap
                if op.name in bounds:
                    assert op.bound[i, j] == bounds.pop(op.name)
                else:
                    assert op.time_s[i, j] == 0
            assert not bounds


def test_a_large_grid_is_its_points_across_block_borders() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
    batch, context = np.arange(1, 301)[:, None], np.arange(300)[None, :]
    grid = llmir.analyze(program, "h100", batch=batch, new=1, context=context)
    for i, j in ((0, 0), (53, 299), (54, 0), (55, 17), (299, 299)):
        point = llmir.analyze(program, "h100", batch=i + 1, new=1, context=j)
        assert math.isclose(grid.time_s[i, j], point.time_s, rel_tol=1e-12)
        assert grid.peak_memory_bytes[i, j] == point.peak_memory_bytes


@pytest.mark.slow
@given(configs(), LOGITS, points())
def test_fusion_keeps_what_it_must(config: dict[str, object], logits: str, point: dict[str, int]) -> None:
    """Weights, caches and matmul FLOPs outside the attention core; what the mask leaves inside it."""
    program = llmir.load(config, logits=logits)
    fused = llmir.run(program, llmir.pipeline_of())
    before, after = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, fused))
    assert fused.parameters_by_kind == program.parameters_by_kind
    assert (after.weight_bytes, after.kv_cache_bytes) == (before.weight_bytes, before.kv_cache_bytes)
    eager, flash = before.matmul_flops_by_kind, after.matmul_flops_by_kind
    core = "attention_core"
    assert {k: v for k, v in flash.items() if k != core} == {k: v for k, v in eager.items() if k != core}
    width = window(config) or 10**9
    new, keys = point["new"], point["new"] + min(point["context"], width - 1)
    pairs = sum(min(point["context"] + i, width) for i in range(1, new + 1))  # brute force
    assert flash[core] * new * keys == eager[core] * pairs
    assert after.time_s <= before.time_s * (1 + 1e-12)


@pytest.mark.slow
@given(configs(), points())
def test_fusing_unmasked_attention_keeps_its_matmul_flops(
    config: dict[str, object], point: dict[str, int]
) -> None:
    text = "\n".join(
        line.replace("%mask)", "%scores)") if "%mask =" not in line else ""
        for line in llmir.print_program(llmir.load(config)).splitlines()
    )
    program = llmir.parse_program(text)
    fused = llmir.run(program, "fuse-attention")
    assert any(n.op.opcode == "flash_attention" for g in fused.graphs.values() for n in g.nodes)
    before, after = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, fused))
    assert before.matmul_flops_by_kind == after.matmul_flops_by_kind


@pytest.mark.mostly_slow(13)
@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize(("new", "context"), [(2048, 0), (1, 2048), (64, 300)])
def test_fusion_never_raises_the_peak_of_a_preset(name: str, new: int, context: int) -> None:
    program = llmir.load(name)
    step = {} if program.patches else {"new": new, "context": context}
    scans = any(n.op.chunked for g in program.graphs.values() for n in g.nodes)  # chunks take a workspace
    peaks = [
        llmir.analyze(
            llmir.run(program, p), "h100", **records(llmir.analyze, batch=4, **step)
        ).activation_peak_bytes
        for p in ("", "fuse-attention", *([llmir.pipeline_of()] if not scans else []))
    ]
    # A merged product is held until its last part is read.
    more = 1.01 if name.startswith(("DeepSeek-V4", "Gemma-3n")) else 1
    assert all(after <= before * more for before, after in pairwise(peaks))


@pytest.mark.slow
@given(configs(("Qwen3MoeForCausalLM",)), st.integers(1, 64))
def test_expert_traffic_is_that_of_the_distinct_experts(config: dict[str, Any], batch: int) -> None:
    program = llmir.load(config)
    report = llmir.analyze(program, "h100", batch=batch)
    experts, chosen = config["num_experts"], config["num_experts_per_tok"]
    one = (
        config["hidden_size"] * config["moe_intermediate_size"] * (4 if "32" in config["torch_dtype"] else 2)
    )
    rows = [r for r in report.plan.rows if r.node.op.opcode == "grouped_linear"]
    for row in rows:
        read = sum(report.at(size) for role, size in row.reads if role == "weight")
        touched = read / one
        assert chosen * (1 - 1e-12) <= touched <= experts * (1 + 1e-12)
        assert math.isclose(touched, experts * (1 - (1 - chosen / experts) ** batch), rel_tol=1e-9)


def test_distinct_experts_match_a_random_draw() -> None:
    rng = np.random.default_rng(0)
    drawn = [len({e for _ in range(24) for e in rng.permutation(32)[:4]}) for _ in range(2000)]
    expected = Binding(n=24)(distinct(32, 4, Dim.symbol("n")))
    assert abs(np.mean(drawn) - expected) < 4 * np.std(drawn) / math.sqrt(len(drawn))


TINY = {
    "architectures": ["Qwen2ForCausalLM"],
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1),
    **{"hidden_size": 2, "intermediate_size": 1, "vocab_size": 1},
    **{"torch_dtype": "bfloat16", "tie_word_embeddings": False},
}
CHUNK = {"batch": 27, "new": 44, "context": 0}  # after any token, a step's kernel could do it in less


@pytest.mark.slow
@given(configs(), PIPELINES, points())
@example(TINY, "fuse-attention,fuse", CHUNK)
def test_costs_never_fall_as_work_grows(
    config: dict[str, object], pipeline: str, point: dict[str, int]
) -> None:
    program = llmir.run(llmir.load(config), pipeline)
    here = figures(llmir.analyze(program, "h100", **records(llmir.analyze, **point)))
    for axis, value_there in point.items():
        more = figures(
            llmir.analyze(program, "h100", **records(llmir.analyze, **{**point, axis: value_there + 1}))
        )
        assert all(more[k] >= value * (1 - 1e-12) for k, value in here.items()), axis


# Attention within chunks of 8,192 tokens begins anew at each: there a longer context is less work.
MONOTONE = [name for name in PRESETS if not name.startswith("Llama-4-")]
SPLITS = ["", "shard{tp=2}", "shard{tp=8}", "shard{tp=2,sp=1}"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MONOTONE),
    st.sampled_from([row["name"] for row in llmir.devices()]),
    st.sampled_from(["vllm", "sglang", "trtllm"]),
    st.sampled_from(SPLITS),
    *(st.lists(st.integers(low, high), min_size=2, max_size=6) for low, high in ((1, 300), (1, 3000))),
    st.lists(st.integers(0, 20_000), min_size=2, max_size=6),
)
def test_grids_rise_along_each_axis(
    model: str, device: str, engine: str, split: str, batch: list[int], new: list[int], context: list[int]
) -> None:
    """Time, memory and FLOPs of what an engine runs on a device, in batch, new tokens and context."""
    try:
        program = llmir.run(llmir.load(model), [*filter(None, (llmir.pipeline_of(engine), split))])
        axes = [np.unique(values) for values in (batch, new, context)]
        at = dict(zip(("batch", "new", "context"), np.meshgrid(*axes, indexing="ij"), strict=True))
        step = llmir.analyze(program, device, **records(llmir.analyze, **at, engine=engine))
    except LlmirError:
        assume(False)  # heads that do not split, and types that the device does not have
        raise
    for name in ("time_s", "peak_memory_bytes", "flops", "read_bytes"):
        values = np.broadcast_to(getattr(step, name), at["batch"].shape)
        for axis in range(3):
            assert (np.diff(values, axis=axis) >= -1e-9 * values.max()).all(), name


@pytest.mark.slow
@given(configs(), points())
def test_chunks_do_the_work_of_one_piece(config: dict[str, object], point: dict[str, int]) -> None:
    """A prompt in two chunks has the matmul FLOPs of the prompt at once, but for the logits."""
    program = llmir.run(llmir.load(config, logits="all"), llmir.pipeline_of())
    first, second, batch = point["new"], point["context"] + 1, point["batch"]
    whole = llmir.analyze(program, "h100", batch=batch, new=first + second, context=0)
    parts = [
        llmir.analyze(program, "h100", batch=batch, new=first, context=0),
        llmir.analyze(program, "h100", batch=batch, new=second, context=first),
    ]
    assert sum(p.matmul_flops for p in parts) == whole.matmul_flops
    assert parts[1].kv_cache_bytes == whole.kv_cache_bytes


@pytest.mark.slow
@given(configs(), LOGITS, PIPELINES, points(), st.lists(points(), max_size=2))
@settings(max_examples=50)
def test_a_mixed_step_merges_its_parts(
    config: dict[str, Any], logits: str, pipeline: str, point: dict[str, int], beside: list[dict[str, int]]
) -> None:
    """Of sequences that are alike it is one step of them all; of others, what counts tokens is summed."""
    program = llmir.run(llmir.load(config, logits=logits), pipeline)
    alike = llmir.analyze(
        program, "h100", **records(llmir.analyze, **point, cost="ideal", beside=[point] * len(beside))
    )
    more = point | {"batch": point["batch"] * (1 + len(beside))}
    together = llmir.analyze(program, "h100", **records(llmir.analyze, **more, cost="ideal"))
    assert close(figures(alike), figures(together), 1e-9)
    mixed = llmir.analyze(program, "h100", **records(llmir.analyze, **point, cost="ideal", beside=beside))
    alone = [
        llmir.analyze(program, "h100", **records(llmir.analyze, **at, cost="ideal"))
        for at in (point, *beside)
    ]
    for figure in ("matmul_flops", "kv_cache_bytes"):
        assert getattr(mixed, figure) == pytest.approx(sum(getattr(r, figure) for r in alone))
    assert mixed.weight_bytes == alone[0].weight_bytes
    assert max(r.time_s for r in alone) * (1 - 1e-9) <= mixed.time_s
    assert mixed.time_s <= sum(r.time_s for r in alone) * (1 + 1e-9)
    assert mixed.read_bytes <= sum(r.read_bytes for r in alone) * (1 + 1e-9)


def test_a_mixed_step_on_a_grid_is_its_points() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), "fuse-attention,fuse,shard{tp=2,ep=2}")
    batch, new = np.arange(1, 300)[:, None], np.arange(1, 400) * 7
    grid = llmir.analyze(program, "h100", batch=batch, new=1, context=500, beside=[{"batch": 2, "new": new}])
    assert grid.time_s.shape == (299, 399)
    for i, j in ((0, 0), (17, 398), (298, 3)):
        beside = [{"batch": 2, "new": int(new[j])}]
        at = llmir.analyze(program, "h100", batch=int(batch[i, 0]), new=1, context=500, beside=beside)
        assert grid.time_s[i, j] == pytest.approx(at.time_s)
        assert grid.peak_memory_bytes[i, j] == pytest.approx(at.peak_memory_bytes)


def test_a_mixed_step_says_what_is_wrong() -> None:
    program = llmir.load("qwen3-0.6b")
    for part, says in (
        ({"tokens": 3}, "expected batch, new, context"),
        ({"new": 0}, "new: expected an integer"),
    ):
        with pytest.raises(InputError, match=says):
            llmir.analyze(program, "h100", beside=[part])
