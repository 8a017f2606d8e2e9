"""Rows and touched experts of the rank that is timed, against draws of the loads and of the router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir import hw
from llmir.backends.cost.kernels import GroupedShape, Moe, MoeShape
from llmir.backends.cost.kernels.routing import balanced, limited, power_law
from llmir.backends.silicon.calibrate import FAMILIES, Table


def drawn(tokens: int, top_k: int, experts: int, ranks: int, power: float) -> tuple[float, float]:
    """Of the busiest rank: loads drawn from the law and rounded; what is lost or won is dealt out singly."""
    random = np.random.default_rng(tokens * ranks)
    rows, touched = [], []
    for _ in range(80):
        least, most = (1, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2)
        ends = np.array([least, most]) ** (1 - power)
        loads = (ends[0] + (ends[1] - ends[0]) * random.random(experts)) ** (1 / (1 - power))
        dealt = np.minimum(np.rint(loads / loads.sum() * tokens * top_k), tokens)
        while dealt.sum() < tokens * top_k:
            dealt[np.argmin(dealt + random.random(experts) / 2)] += 1
        while dealt.sum() > tokens * top_k:
            dealt[np.argmax(dealt + random.random(experts) / 2)] -= 1
        busiest = max(dealt.reshape(ranks, -1), key=np.sum)
        rows.append(busiest.sum())
        touched.append((busiest > 0).sum())
    return float(np.mean(rows)), float(np.mean(touched))


@pytest.mark.parametrize("power", [1.01, 1.2])
@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(128, 8, 1), (128, 8, 8), (128, 8, 32), (256, 8, 8)])
def test_uneven_loads_are_those_of_draws(experts: int, top_k: int, ranks: int, power: float) -> None:
    for tokens in (16, 64, 512, 2048):
        rows, touched = power_law(tokens, top_k, experts, ranks, power)
        sampled_rows, sampled_touched = drawn(tokens, top_k, experts, ranks, power)
        assert rows == pytest.approx(sampled_rows, rel=0.4)
        assert touched == pytest.approx(sampled_touched, rel=0.25, abs=1)


@pytest.mark.parametrize("ranks", [1, 2, 8, 32])
@pytest.mark.parametrize("tokens", [32, 256, 1024])
def test_a_router_of_half_the_groups_sends_ties_to_the_first_experts(tokens: int, ranks: int) -> None:
    experts, top_k, groups = 256, 8, 8
    scores = np.zeros((tokens, experts))
    for token in range(tokens):
        scores[token, (token + np.arange(top_k) * experts // top_k) % experts] = 1
    worth = np.sort(scores.reshape(tokens, groups, -1), axis=2)[:, :, -2:].sum(axis=2)
    kept = np.argsort(-worth, axis=1, kind="stable")[:, : groups // 2]
    allowed = (np.arange(experts) // (experts // groups) == kept[:, :, None]).any(axis=1)
    chosen = np.argsort(-np.where(allowed, scores, -1), axis=1, kind="stable")[:, :top_k]
    first = np.bincount(chosen.ravel(), minlength=experts)[: experts // ranks]
    rows, touched = limited(tokens, top_k, experts, ranks)
    assert rows == pytest.approx(first.sum(), rel=0.05)
    assert touched == pytest.approx((first > 0).sum(), abs=2)


def layer(framework: str, kernel: str, ranks: int, source: str = "aic", **sizes: int) -> MoeShape:
    named: dict[str, Any] = {"framework": framework, "kernel": kernel, "source": source}
    numbers = {"num_tokens": 4096, "hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256} | sizes
    numbers |= {"moe_tp": 1, "moe_ep": ranks, "distribution": 0}
    columns = {name: np.array([float(value)]) for name, value in numbers.items()}
    words = {name: np.array([value], dtype=object) for name, value in named.items()}
    shape = FAMILIES["moe_bf16"].shape(Table(columns | words))
    assert isinstance(shape, MoeShape)
    return shape


def test_rows_are_what_their_benchmark_ran() -> None:
    plain = layer("trtllm-1.3.0rc20", "deepgemm", 8)
    assert (plain.tokens, plain.rows, plain.experts) == (4096, *balanced(4096, 8, 256, 8))
    half = layer("vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8)
    assert (half.tokens, half.rows, half.experts) == (4096, *limited(4096, 8, 256, 8))
    mine = layer("vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8, source="mine")
    assert (mine.rows, mine.experts) == (plain.rows, plain.experts)
    other = layer("vllm-0.24.0", "vllm_fp8moe_triton_tritonexperts", 8, hidden=4096)
    assert (other.rows, other.experts) == (plain.rows, plain.experts)
    arrived = layer("sglang-0.5.10", "sglang_fused_moe_triton", 32)
    assert (arrived.tokens, arrived.rows, arrived.away) == (1024, 8192, 0)
    alone = layer("sglang-0.5.10", "sglang_fused_moe_triton", 1)
    assert (alone.tokens, alone.rows) == (4096, 4096 * 8)


def test_tiles_are_low_where_experts_have_few_rows_by_all_tokens() -> None:
    kernel = Moe(few=16, tile_rows=128, fetch=4)
    one, many, strange = (
        GroupedShape(np.array([rows]) * 8.0, 8, 64, 64, away) for rows, away in ((16, 0), (17, 0), (16, 8))
    )
    tile = np.cbrt(16.0**3 + 4**3), np.cbrt(128.0**3 + 4**3)
    assert kernel.padded(one) == pytest.approx(8 * tile[0])
    assert kernel.padded(many) == kernel.padded(strange) == pytest.approx(8 * tile[1])


def test_the_lower_bound_of_a_row_is_of_the_experts_that_it_touches(tmp_path: Path) -> None:
    """All 256 of them, or the half that a router of groups keeps to; the calibrated time is never below."""
    sizes = "num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep"
    rows = "".join(f"b200,fp8,64,7168,2048,8,256,1,1,999,{by},aic\n" for by in ("x", "vllm-0.24.0"))
    path = tmp_path / "moe.csv"
    path.write_text(f"gpu,dtype,{sizes},latency_us,framework,source\n{rows}")
    weights = 3 * 7168 * 2048 / hw.load("b200").memory_Bps
    bounds, found = (llmir.validate(path, cost=cost).rows for cost in ("ideal", "calibrated"))
    for touched, bound, one in zip((256, 128), bounds, found, strict=True):
        assert touched * weights <= bound.predicted_s == one.ideal_s <= one.predicted_s
        assert bound.predicted_s < 1.01 * touched * weights


@given(st.floats(0.3, 5), st.sampled_from([(128, 8), (256, 8), (8, 2)]), st.sampled_from([1, 2, 8, 32]))
def test_rows_of_the_busiest_rank_never_fall_with_more_tokens(
    power: float, router: tuple[int, int], ranks: int
) -> None:
    experts, top_k = router
    tokens = np.unique(np.geomspace(1, 1e6, 200).round())
    rows, touched = power_law(tokens, top_k, experts, min(ranks, experts), power)
    assert (np.diff(rows) >= -1e-6 * rows[1:]).all()
    assert (touched <= experts / min(ranks, experts)).all()
