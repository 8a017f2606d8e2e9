"""Routing by chance: the busiest rank's rows and experts, against every outcome and against simulation."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.backends.interpret.program import interpret
from llmir.ir.sizes.routing_laws import Chance, Even, excess
from llmir.ir.tools.text import print_program
from tests.ir.tools.test_text import TINY_MOE
from tests.passes.test_dispatch import weights

# Ranks, experts, how many a token chooses: of DeepSeek-V3, Qwen3, Mixtral, Llama-4, with few and many ranks.
LAYERS = [(2, 8, 2), (8, 8, 2), (8, 64, 6), (8, 128, 8), (16, 128, 1), (32, 256, 8), (64, 256, 8)]


def every_outcome(ranks: int, experts: int, chosen: int, tokens: int) -> tuple[float, float]:
    """Expected most rows and most touched experts of a rank, over all that tokens may choose."""
    rows = touched = count = 0
    for choice in product(combinations(range(experts), chosen), repeat=tokens):
        loads = np.bincount(np.array(choice).ravel(), minlength=experts).reshape(ranks, -1)
        rows, touched, count = rows + loads.sum(1).max(), touched + (loads > 0).sum(1).max(), count + 1
    return rows / count, touched / count


def simulated(ranks: int, experts: int, chosen: int, tokens: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    rows, touched = [], []
    for _ in range(300):
        choice = rng.random((tokens, experts)).argpartition(chosen - 1, axis=1)[:, :chosen]
        loads = np.bincount(choice.ravel(), minlength=experts).reshape(ranks, -1)
        rows.append(loads.sum(1).max())
        touched.append((loads > 0).sum(1).max())
    return np.mean(rows), np.mean(touched)


@pytest.mark.parametrize(
    ("ranks", "experts", "chosen"), [(2, 4, 1), (2, 4, 2), (4, 4, 1), (3, 6, 2), (4, 8, 2)]
)
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_small_layers_agree_with_every_outcome(ranks: int, experts: int, chosen: int, tokens: int) -> None:
    rows, touched = every_outcome(ranks, experts, chosen, tokens)
    mine = Chance().busiest(ranks, chosen, tokens, experts)
    assert rows - 0.2 <= mine <= rows + 1.2  # rounded up
    assert Chance().distinct(experts // ranks, chosen, tokens, experts) == pytest.approx(touched, abs=0.15)


@pytest.mark.parametrize(("ranks", "experts", "chosen"), LAYERS)
@pytest.mark.parametrize("tokens", [4, 16, 64, 256])
def test_layers_agree_with_simulation(ranks: int, experts: int, chosen: int, tokens: int) -> None:
    rows, touched = simulated(ranks, experts, chosen, tokens)
    error = 0.02 if tokens >= 16 else 0.1
    mine = Chance().busiest(ranks, chosen, tokens, experts)
    assert rows * (1 - error) <= mine <= rows * (1 + error) + 1
    of_one = Chance().distinct(experts // ranks, chosen, tokens, experts)
    assert of_one == pytest.approx(touched, rel=0.02 + error, abs=0.25)


def test_at_64_tokens_the_busiest_of_64_ranks_has_almost_twice_the_mean() -> None:
    """As simulated for 256 experts of which each token chooses 8: 1.90; rounded up to a whole row."""
    rows, _ = simulated(64, 256, 8, 64)
    assert rows / 8 == pytest.approx(1.9, abs=0.05)
    assert Chance().busiest(64, 8, 64, 256) == np.ceil(rows)
    assert Even().busiest(64, 8, 64, 256) == 8


def test_the_largest_of_normal_variables() -> None:
    """Of two 1/√π, of three 3/(2√π) (David & Nagaraja 2003, section 3.2)."""
    assert excess(1.0, 0.0, 2) == pytest.approx(np.pi**-0.5, abs=1e-3)
    assert excess(4.0, 0.0, 3) == pytest.approx(2 * 1.5 * np.pi**-0.5, abs=1e-3)


@given(st.sampled_from((1, 2, 3, 8, 64)), st.integers(1, 16), st.integers(1, 12), st.integers(0, 3000))
def test_it_lies_between_an_equal_share_and_all_and_grows(
    ranks: int, held: int, chosen: int, tokens: int
) -> None:
    experts = ranks * held
    chosen = min(chosen, experts)
    law, most = Chance(), min(chosen, held)
    rows, more = (law.busiest(ranks, chosen, n, experts) for n in (tokens, tokens + 1))
    assert isinstance(rows, int)
    assert -(-tokens * chosen // ranks) <= rows <= tokens * most
    assert rows <= more <= rows + most + 1
    touched, further = (law.distinct(held, chosen, n, experts) for n in (tokens, tokens + 1))
    mean = held * (1 - (1 - chosen / experts) ** tokens)
    assert mean - 1e-9 <= touched <= min(held, rows)
    assert touched <= further * (1 + 1e-9)
    several = np.array([tokens, tokens + 1])
    assert law.busiest(ranks, chosen, several, experts).tolist() == [rows, more]
    assert law.distinct(held, chosen, several, experts) == pytest.approx([touched, further])


@pytest.mark.parametrize("over", ["shard{tp=8, ep=8}", "shard{dp=8, ep=8}", "shard{dp=2, tp=4, ep=8}"])
def test_a_program_that_says_nothing_is_priced_by_chance(over: str) -> None:
    fused = llmir.run(llmir.load("qwen3-235b-a22b"), ["fuse-attention,fuse", over])
    step = {
        law: llmir.analyze(
            llmir.run(fused, f"route{{routing={law}}}"),
            "h100",
            batch=64,
            new=1,
            estimation=llmir.Estimation(cost="ideal"),
        )
        for law in ("chance", "even")
    }
    assert (
        step["chance"].time_s
        == llmir.analyze(fused, "h100", batch=64, new=1, estimation=llmir.Estimation(cost="ideal")).time_s
    )
    flops = {law: next(op.flops for op in s.ops if op.name.endswith("gate_up")) for law, s in step.items()}
    rows = Chance().busiest(8, 8, 64, 128)
    assert rows > 64
    assert flops["chance"] * 64 == flops["even"] * rows
    assert step["chance"].time_s > step["even"].time_s


@pytest.mark.parametrize(
    ("ranks", "experts", "chosen"), [(64, 160, 6), (8, 60, 4), (3, 128, 8), (48, 256, 8)]
)
@pytest.mark.parametrize("tokens", [16, 256])
def test_ranks_with_an_expert_more_are_the_busiest(
    ranks: int, experts: int, chosen: int, tokens: int
) -> None:
    """Where ranks do not divide the experts; all count as full, so that it is a little too much."""
    rng = np.random.default_rng(13)
    where = np.sort(np.arange(experts) % ranks)
    rows = []
    for _ in range(200):
        choice = rng.random((tokens, experts)).argpartition(chosen - 1, axis=1)[:, :chosen]
        rows.append(np.bincount(where[choice].ravel(), minlength=ranks).max())
    mine, expected = Chance().busiest(ranks, chosen, tokens, experts), np.mean(rows)
    assert expected * 0.98 <= mine <= expected * 1.12 + 1
    held = -(-experts // ranks)
    share = held * (1 - (1 - chosen / experts) ** tokens)
    assert share - 1e-9 <= Chance().distinct(held, chosen, tokens, experts) <= held


def test_weights_of_the_fullest_rank_are_counted() -> None:
    """Of 128 experts on 3 ranks 42 or 43 each; parameters are the model's."""
    program = llmir.load("qwen3-30b-a3b")
    even, uneven = (llmir.run(program, f"shard{{dp={n}, ep={n}}}") for n in (8, 3))
    held = {
        n: p["layer"].type(p["layer"]["gate_proj.weight"].values[0]).local(p.mesh).shape[0]
        for n, p in ((8, even), (3, uneven))
    }
    assert held == {8: 16, 3: 43}
    assert "128 experts on 3 ranks: 42 or 43 each" in uneven.notes
    assert uneven.parameters == program.parameters


@pytest.mark.parametrize("over", ["tp=4, ep=4", "dp=4, ep=4", "dp=2, tp=2, ep=4"])
@pytest.mark.parametrize("form", ["", ",dispatch{by=ranks}", ",dispatch{by=gather}"])
def test_uneven_experts_mean_the_same(over: str, form: str) -> None:
    config = {
        **TINY_MOE,
        **{"num_experts": 5, "mlp_only_layers": [], "num_hidden_layers": 1, "num_key_value_heads": 4},
    }
    plain, tokens = llmir.load(config), np.arange(12).reshape(4, 3)
    (expected,), _ = interpret(plain, {"tokens": tokens}, weights)
    if form and "dp" not in over:
        return
    sharded = llmir.run(plain, f"fuse-attention,fuse,shard{{{over}}}{form}")
    (found,), _ = interpret(sharded, {"tokens": tokens}, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert llmir.parse_program(print_program(sharded)) == sharded
    assert conservation(llmir.run(plain, "fuse-attention,fuse"), sharded, batch=8, new=4).problems == ()
