"""Laws of routing against draws of what they speak of: dealt cards, drawn loads, a router of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmir.base.errors import VerifyError
from llmir.ir.sizes.routing_laws import (
    Chance,
    Even,
    GroupLimitedRouting,
    Law,
    LocalRouting,
    PowerLaw,
    Zipf,
    law,
)


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


def shares(law: Law, tokens: Any, top_k: int, experts: int, ranks: int) -> tuple[Any, Any]:
    """Rows of the rank that is timed, and the experts of it that they touch."""
    held = experts // ranks
    return law.busiest(ranks, top_k, tokens, experts), law.distinct(held, top_k, tokens, experts)


@pytest.mark.parametrize("power", [1.01, 1.2])
@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(128, 8, 1), (128, 8, 8), (128, 8, 32), (256, 8, 8)])
def test_uneven_loads_are_those_of_draws(experts: int, top_k: int, ranks: int, power: float) -> None:
    for tokens in (16, 64, 512, 2048):
        rows, touched = shares(PowerLaw(power), tokens, top_k, experts, ranks)
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
    rows, touched = shares(GroupLimitedRouting(), tokens, top_k, experts, ranks)
    assert rows == pytest.approx(first.sum(), rel=0.05)
    assert touched == pytest.approx((first > 0).sum(), abs=2)


@given(st.integers(1, 4096), st.sampled_from([(128, 8), (16, 1), (256, 8)]), st.sampled_from([1, 4, 16]))
def test_even_routing_is_dealing_cards(tokens: int, router: tuple[int, int], ranks: int) -> None:
    experts, top_k = router
    dealt = np.zeros(experts, dtype=int)
    for routed in range(tokens * top_k):
        dealt[(routed % ranks) * (experts // ranks) + (routed // ranks) % (experts // ranks)] += 1
    rows = Even().busiest(ranks, top_k, tokens, experts)
    touched = Even().distinct(experts // ranks, top_k, tokens, experts)
    first = dealt[: experts // ranks]
    assert (int(rows), int(touched)) == (first.sum(), np.count_nonzero(first))


@given(st.integers(1, 1 << 14), st.sampled_from([1, 2, 8, 32]), st.floats(0.5, 2))
def test_skewed_routing_gives_the_busiest_rank_more_but_no_row_twice(
    tokens: int, ranks: int, skew: float
) -> None:
    rows, even = (law.busiest(ranks, 8, tokens, 128) for law in (PowerLaw(skew), Even()))
    touched = PowerLaw(skew).distinct(128 // ranks, 8, tokens, 128)
    assert even - 1 <= rows <= max(1, tokens * min(8, 128 // ranks))
    assert 1 <= touched <= min(rows, 128 / ranks)


def test_the_busiest_of_many_ranks_is_as_far_off_as_random_loads_are() -> None:
    random, experts, ranks = np.random.default_rng(0), 256, 16
    loads = np.exp(random.uniform(0, np.log(0.8 * 4096), (2000, experts)))  # density ∝ 1/load
    sums = loads.reshape(2000, ranks, -1).sum(axis=2) / loads.sum(axis=1, keepdims=True)
    rows = PowerLaw(1.0).busiest(ranks, 8, 4096, experts)
    assert rows / (4096 * 8) == pytest.approx(sums.max(axis=1).mean(), rel=0.15)


@given(st.floats(0.3, 5), st.sampled_from([(128, 8), (256, 8), (8, 2)]), st.sampled_from([1, 2, 8, 32]))
def test_rows_of_the_busiest_rank_never_fall_with_more_tokens(
    power: float, router: tuple[int, int], ranks: int
) -> None:
    experts, top_k = router
    tokens = np.unique(np.geomspace(1, 1e6, 200).round())
    rows, touched = shares(PowerLaw(power), tokens, top_k, experts, min(ranks, experts))
    assert (np.diff(rows) >= -1e-6 * rows[1:]).all()
    assert (touched <= experts / min(ranks, experts)).all()


@pytest.mark.parametrize("by", [Even(), PowerLaw(1.2)])
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_what_arrived_at_a_rank_touches_what_all_tokens_touch_there(by: Law, ranks: int) -> None:
    """Of a rank's tokens, each once: a program that starts with them touches the same experts."""
    experts, top_k = 128, 8
    for tokens in (1, 4, 16, 100, 4096):
        arrived = min(tokens, by.busiest(ranks, top_k, tokens, experts))
        mine = LocalRouting(ranks, by).distinct(experts // ranks, top_k, arrived, experts // ranks)
        assert mine == pytest.approx(by.distinct(experts // ranks, top_k, tokens, experts), rel=0.05)
        assert LocalRouting(ranks, by).busiest(1, top_k, arrived, experts // ranks) == arrived * top_k


LAWS = st.one_of(
    st.sampled_from([Chance(), Even(), GroupLimitedRouting()]),
    st.builds(Zipf, st.floats(0, 10)),
    st.builds(PowerLaw, st.floats(0, 10)),
)


@given(st.one_of(LAWS, st.builds(LocalRouting, st.integers(1, 512), LAWS)))
def test_a_law_is_made_again_from_its_text(by: Law) -> None:
    assert law(str(by)) == by
    assert by.about


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "odd",
            "zipf",
            "zipf()",
            "zipf(a)",
            "zipf(-1)",
            "zipf(11)",
            "zipf(nan)",
            "zipf(1e999)",
            "zipf(True)",
        ),
        *("even(1)", "power_law", "power_law(1, 2)", "power_law(10.5)", "zipf(skew=1)", "zipf(1).x", "1.0"),
        *("arrived(8)", "arrived(0, even)", "arrived(1.5, even)", "arrived(even, 8)", "even\neven", "(" * 70),
    ],
)
def test_a_bad_law_is_one_line(text: str) -> None:
    with pytest.raises(VerifyError) as found:
        law(text)
    assert "\n" not in str(found.value)


@given(
    st.one_of(LAWS),
    st.sampled_from([(128, 8), (256, 8), (64, 6), (8, 2)]),
    st.sampled_from([1, 2, 8]),
    st.integers(0, 5000),
)
def test_a_rank_has_its_share_at_least_and_touches_no_more_than_it_holds(
    by: Law, router: tuple[int, int], ranks: int, tokens: int
) -> None:
    experts, top_k = router
    held = experts // ranks
    rows, touched = shares(by, tokens, top_k, experts, ranks)
    assert isinstance(rows, int)
    assert -(-tokens * top_k // ranks) <= rows <= tokens * top_k
    assert 0 <= touched <= min(held, tokens * top_k) * (1 + 1e-9)
    many = np.array([tokens, 2 * tokens], dtype=float)
    grid_rows, grid_touched = shares(by, many, top_k, experts, ranks)
    assert grid_rows[0] == rows <= grid_rows[1]
    assert grid_touched[0] == pytest.approx(touched) and grid_touched[1] >= touched * (1 - 1e-6)
