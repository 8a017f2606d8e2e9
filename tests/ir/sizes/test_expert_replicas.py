"""Redundant experts: weights exactly, the layout of EPLB, and the busiest rank against simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.base.errors import PassError, VerifyError
from llmir.ir.sizes.routing_laws import Replicas, copies, law, packed

MODEL = "qwen3-30b-a3b"  # 128 experts, of which a token chooses 8


# The example of deepseek-ai/EPLB, layer 0: experts 1, 4, 5 and 10 lie in two of 16 places.
LOADS = [90.0, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]


def test_the_busiest_experts_have_copies() -> None:
    twice = {expert for expert, count in enumerate(copies(LOADS, 16)) if count == 2}
    assert twice == {1, 4, 5, 10}


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=8), st.integers(0, 8))
def test_no_other_copies_leave_a_lighter_heaviest_one(loads: list[float], more: int) -> None:
    """By every way to give one more copy to another expert in its place."""
    found = copies(loads, len(loads) + more)
    assert sum(found) == len(loads) + more and min(found) >= 1
    heaviest = max(load / count for load, count in zip(loads, found, strict=True))
    for giver in (e for e, count in enumerate(found) if count > 1):
        for taker in set(range(len(loads))) - {giver}:
            other = [count + (e == taker) - (e == giver) for e, count in enumerate(found)]
            assert max(a / b for a, b in zip(loads, other, strict=True)) >= heaviest * (1 - 1e-12)


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=6))
def test_two_ranks_are_balanced_almost_as_well_as_can_be(loads: list[float]) -> None:
    """4/3 of the best of all splits at most (Graham 1969)."""
    ranks = packed(loads, 2)
    assert sorted(load for rank in ranks for load in rank) == sorted(loads) and {
        len(rank) for rank in ranks
    } == {3}
    best = min(max(sum(one), sum(loads) - sum(one)) for one in combinations(loads, 3))
    assert max(map(sum, ranks)) <= 4 / 3 * best * (1 + 1e-9)


def simulated(skew: float, ranks: int, experts: int, chosen: int, places: int, tokens: int) -> list[float]:
    """Most rows, touched places and tokens of a rank, on average over draws of tokens and of copies."""
    rng = np.random.default_rng(5)
    weights = -skew * np.log(np.arange(1, experts + 1))
    loads = (law(f"zipf({skew})") if skew else law("chance")).popularity(chosen, experts)
    count = np.array(copies(loads.tolist(), places))
    # Which place is where: the heaviest first to the idlest rank that has room.
    each = sorted(((loads[e] / c, e, i) for e, c in enumerate(count) for i in range(c)), key=lambda x: -x[0])
    held, room = np.zeros(ranks), np.full(ranks, places // ranks)
    rank_of = np.zeros((experts, max(count)), dtype=int)
    place_of = np.zeros_like(rank_of)
    home = []
    for place, (load, e, i) in enumerate(each):
        rank = int(np.argmin(np.where(room > 0, held, np.inf)))
        held[rank], room[rank] = held[rank] + load, room[rank] - 1
        rank_of[e, i], place_of[e, i] = rank, place
        home.append(rank)
    found = []
    for _ in range(60):
        chances = rng.gumbel(size=(tokens, experts)) + weights
        picked = chances.argpartition(-chosen, axis=1)[:, -chosen:]
        copy = (rng.random(picked.shape) * count[picked]).astype(int)
        to, places_hit = rank_of[picked, copy], np.unique(place_of[picked, copy])
        hit = np.zeros((tokens, ranks), dtype=bool)
        np.put_along_axis(hit, to, values=True, axis=1)
        touched = np.bincount(np.array(home)[places_hit], minlength=ranks)
        found.append((np.bincount(to.ravel(), minlength=ranks).max(), touched.max(), hit.sum(0).max()))
    return np.mean(found, axis=0).tolist()


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("skew", [0.0, 0.3, 0.7])
@pytest.mark.parametrize(
    ("ranks", "experts", "chosen", "places"), [(8, 64, 6, 72), (32, 256, 8, 288), (64, 256, 8, 320)]
)
@pytest.mark.parametrize("tokens", [16, 64, 512])
def test_the_busiest_rank_is_that_of_simulation(
    skew: float, ranks: int, experts: int, chosen: int, places: int, tokens: int
) -> None:
    rows, touched, reached = simulated(skew, ranks, experts, chosen, places, tokens)
    by = Replicas(places, law(f"zipf({skew})") if skew else law("chance"))
    assert rows * 0.97 <= by.busiest(ranks, chosen, tokens, experts) <= rows * 1.03 + 1
    assert by.distinct(places // ranks, chosen, tokens, experts) == pytest.approx(touched, rel=0.1)
    assert by.reached(ranks, chosen, tokens, experts) == pytest.approx(reached, rel=0.1, abs=1)


@pytest.mark.parametrize("skew", [0.2, 0.7, 1.2])
def test_copies_take_load_from_the_busiest_rank(skew: float) -> None:
    plain = law(f"zipf({skew})")
    rows = [plain.busiest(32, 8, 4096, 256)]
    rows += [Replicas(256 + n, plain).busiest(32, 8, 4096, 256) for n in (32, 64, 256)]
    assert rows[0] > rows[1] and max(np.diff(rows)) <= 2  # rows are whole
    # No layout is better than chance: what falls on a rank in a step is not known before.
    assert rows[-1] >= 0.99 * law("chance").busiest(32, 8, 4096, 256)


def test_an_expert_of_all_rows_is_shared_by_its_copies() -> None:
    """One expert that every token chooses, in 8 of 15 places, one on each of 8 ranks."""
    hot = law("zipf(10)")
    one = Replicas(8, hot).busiest(8, 1, 10**6, 8)
    shared = Replicas(15, hot).busiest(8, 1, 10**6, 8)
    assert one > 0.99 * 10**6
    least = law("zipf(10)").popularity(1, 8)[0] / 8
    assert least * 10**6 <= shared <= (least + 0.006) * 10**6  # and the next expert's rows


@given(st.sampled_from(["chance", "even", "zipf(0.5)"]), st.sampled_from([8, 32]))
def test_rows_and_experts_grow_with_tokens(text: str, ranks: int) -> None:
    by = Replicas(288, law(text))
    tokens = np.unique(np.geomspace(1, 1e6, 100).round())
    rows, touched = (f(k, 8, tokens, 256) for f, k in ((by.busiest, ranks), (by.distinct, 288 // ranks)))
    assert (np.diff(rows) >= 0).all() and (np.diff(touched) >= -1e-9).all()
    assert (rows >= np.ceil(tokens * 8 / ranks)).all() and (rows <= tokens * 8).all()
    assert (touched <= 288 / ranks).all()
    assert [by.busiest(ranks, 8, int(n), 256) for n in tokens[:20]] == rows[:20].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "passes",
    [
        "shard{dp=8, ep=8, redundant=16}",
        "shard{tp=4, ep=4, redundant=4}",
        "shard{dp=2, tp=2, ep=4, sp=1, redundant=256}",
        "shard{dp=4, ep=4, redundant=8},dispatch{by=ranks}",
        "fuse,shard{dp=4, ep=4, redundant=8},dispatch{by=gather}",
        "shard{dp=6, ep=6, redundant=4}",  # 128 experts lie unevenly on 6 ranks, 132 evenly
    ],
)
def test_a_model_with_copies_means_what_it_meant(passes: str) -> None:
    program = llmir.load(MODEL)
    after = llmir.run(program, passes)
    found = llmir.equivalent(program, after, batch=24, new=2)
    assert found, found
    assert after.parameters == program.parameters
    assert after.active_parameters == program.active_parameters
    assert llmir.parse_program(llmir.print_program(after)) == after
    assert not any("or" in note.split() for note in after.notes)  # no "21 or 22 each"


def test_a_rank_holds_its_share_of_experts_and_copies() -> None:
    program = llmir.load(MODEL)
    plain, more = (llmir.run(program, f"shard{{dp=8, ep=8{how}}}") for how in ("", ", redundant=24"))
    held = [
        llmir.analyze(p, "h100-sxm", batch=8, estimation=llmir.Estimation(cost="ideal")).weight_bytes
        for p in (plain, more)
    ]
    one = 3 * 2048 * 768 * 2  # gate, up and down of one expert, in bf16
    assert held[1] - held[0] == 48 * (24 // 8) * one
    totals = conservation(program, more, batch=8, new=1)
    assert totals.problems == ()
    assert totals.totals["weights"].replicated - conservation(program, plain).totals[
        "weights"
    ].replicated == (48 * 24 * one)


def test_a_law_comes_before_or_after_copies() -> None:
    program = llmir.load(MODEL)
    skew, shard = "route{skew=0.5}", "shard{dp=4, ep=4, redundant=4}"
    first = llmir.run(program, f"{skew},{shard}")
    again = llmir.run(program, f"{shard},{skew}")
    assert first.graphs == again.graphs
    back = llmir.run(again, "route{routing=chance}")
    assert back.graphs == llmir.run(program, shard).graphs


@pytest.mark.parametrize(
    ("model", "passes", "says"),
    [
        (MODEL, "shard{dp=4, redundant=4}", "requires ep, because copies of experts lie on other ranks"),
        ("llama3.2-1b", "shard{tp=2, redundant=4}", "Llama-3.2-1B has no experts"),
        (MODEL, "shard{dp=4, ep=4, redundant=3}", "do not lie evenly on 4 ranks; expected 4, 8, … 384"),
        (MODEL, "shard{dp=4, ep=4, redundant=388}", "do not lie evenly on 4 ranks; expected 4, 8, … 384"),
        (MODEL, "shard{dp=4, ep=4, redundant=4},shard{tp=2, redundant=4}", "has copies of experts already"),
        (MODEL, "route{routing=groups},shard{dp=4, ep=4, redundant=4}", "expected chance, even or zipf:skew"),
        (MODEL, "shard{dp=4, ep=4, redundant=4},route{routing=power_law:1.2}", "expected chance, even"),
        (MODEL, "route{routing=replicas(132, chance)}", "states the places of experts"),
    ],
)
def test_what_copies_cannot_do(model: str, passes: str, says: str) -> None:
    with pytest.raises(PassError, match=says):
        llmir.run(llmir.load(model), passes)


def test_a_law_of_fewer_places_than_experts() -> None:
    with pytest.raises(VerifyError, match="128 experts do not fit in 100 places"):
        law("replicas(100, chance)").busiest(4, 8, 16, 128)
    for text in ("replicas(0, chance)", "replicas(8, 3)"):
        with pytest.raises(VerifyError):
            law(text)
