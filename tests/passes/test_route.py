"""Routing skew: what falls to the busiest rank, against simulation, closed forms and published counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.backends.interpret.program import interpret
from llmir.base.errors import ParseError, PassError, VerifyError
from llmir.ir.sizes import routing_laws
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import B, T, distinct, parse
from llmir.ir.sizes.ragged import even, most, routed, together
from llmir.ir.sizes.routing_laws import Zipf, popularity
from llmir.ir.tools.text import print_program
from tests.commands import Run
from tests.strategies import PIPELINES, configs, degrees

SKEWS = st.floats(0.01, 4)
TOKENS = st.integers(0, 5000)


@st.composite
def layers(draw: st.DrawFn) -> tuple[int, int, int]:
    """Ranks, experts and how many a token chooses."""
    ranks = draw(st.sampled_from((1, 2, 3, 4, 8, 16, 64)))
    experts = ranks * draw(st.integers(1, 16))
    return ranks, experts, draw(st.integers(1, min(experts, 12)))


def simulated(ranks: int, experts: int, chosen: int, tokens: int, skew: float, steps: int) -> Any:
    """Means of rows and touched experts of the busiest rank, and of touched experts in all."""
    rng = np.random.default_rng(7)
    logits = -skew * np.log(np.arange(1, experts + 1))
    rows, touched, total = [], [], []
    for _ in range(steps):
        drawn = logits + rng.gumbel(size=(tokens, experts))
        largest = np.argpartition(-drawn, chosen - 1, axis=1)[:, :chosen]
        loads = np.bincount(largest.ravel(), minlength=experts)
        held = loads[rng.permutation(experts)].reshape(ranks, -1)
        rows.append(held.sum(1).max())
        touched.append((held > 0).sum(1).max())
        total.append((loads > 0).sum())
    return np.mean(rows), np.mean(touched), np.mean(total)


@pytest.mark.mostly_slow(11)
@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (64, 6), (128, 8), (256, 8)])
@pytest.mark.parametrize("skew", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("tokens", [4, 64, 256])
def test_formulas_agree_with_simulation(experts: int, chosen: int, skew: float, tokens: int) -> None:
    for ranks in (2, 8, 32):
        if experts % ranks or chosen > experts:
            continue
        rows, touched, total = simulated(ranks, experts, chosen, tokens, skew, 200)
        mine = Zipf(skew).busiest(ranks, chosen, tokens, experts)
        held = experts // ranks
        # A few percent, and what 200 steps and rounding up leave open.
        assert rows * 0.9 - 0.25 <= mine <= rows * 1.06 + 1.25
        assert Zipf(skew).distinct(held, chosen, tokens, experts) == pytest.approx(
            touched, rel=0.05, abs=0.25
        )
        assert Zipf(skew).distinct(experts, chosen, tokens, experts) == pytest.approx(total, rel=0.03)


def test_the_busiest_rank_of_deepseek_v3_touches_what_a_published_simulation_found() -> None:
    # 4 tokens, 256 experts of which each chooses 8, 32 chips, uniform: 3.18 (a table of 10,000 simulations).
    assert Zipf(1e-9).distinct(8, 8, 4, 256) == pytest.approx(3.18, rel=0.05)


def test_what_a_balanced_and_a_skewed_server_report_go_together() -> None:
    # DeepSeek-R1 on 32 ranks in TensorRT-LLM's load report: from the mean spread of ranks, 492 rows around
    # 1024, follows what it says of the busiest, 1 + 1.56 times the mean (examples/wide_ep/ep_load_balancer).
    def spread(skew: float) -> float:
        p = popularity(256, 8, skew)
        return float(np.sqrt(((p - 8 / 256) ** 2).sum() / 32)) * 32 / 8

    skew = min(np.linspace(0.1, 2, 200), key=lambda s: abs(spread(s) - 491.65 / 1024))
    assert Zipf(float(skew)).busiest(32, 8, 4096, 256) / 1024 == pytest.approx(2.56, rel=0.1)


@given(layers(), TOKENS, SKEWS)
def test_popularity_is_a_choice_of_so_many(layer: tuple[int, int, int], tokens: int, skew: float) -> None:
    _, experts, chosen = layer
    p = popularity(experts, chosen, skew)
    assert p.sum() == pytest.approx(chosen)
    assert (p >= 0).all() and (p <= 1).all()
    assert (np.diff(p) <= 1e-12).all()


@given(layers(), TOKENS, SKEWS)
def test_skew_touches_no_more_experts(layer: tuple[int, int, int], tokens: int, skew: float) -> None:
    ranks, experts, chosen = layer
    at = Binding(n=tokens, m=tokens + 7)
    n, more = parse("n"), parse("m")
    skewed = distinct(experts, chosen, n, experts, Zipf(skew))
    # Popularities that are almost alike are taken together, which costs the last digits.
    assert at(skewed) <= at(distinct(experts, chosen, n, experts)) * (1 + 1e-3)
    assert at(skewed) <= at(distinct(experts, chosen, more, experts, Zipf(skew))) + 1e-9
    held = experts // ranks
    of_one = at(distinct(held, chosen, n, experts, Zipf(skew)))
    assert at(skewed) * held / experts - 1e-6 <= of_one <= held + 1e-9
    assert of_one <= tokens * chosen + 1e-9


@given(layers(), TOKENS, SKEWS)
def test_the_busiest_rank_has_at_least_the_mean_and_at_most_all(
    layer: tuple[int, int, int], tokens: int, skew: float
) -> None:
    ranks, experts, chosen = layer
    rows = Zipf(skew).busiest(ranks, chosen, tokens, experts)
    assert isinstance(rows, int)
    assert -(-tokens * chosen // ranks) <= rows <= tokens * min(chosen, experts // ranks)
    grid = Binding(n=np.array([tokens, tokens]))(most(routed(parse("n"), chosen, experts, Zipf(skew)), ranks))
    assert grid.tolist() == [rows, rows]


@given(layers(), SKEWS)
def test_rows_of_the_busiest_rank_remember_all(layer: tuple[int, int, int], skew: float) -> None:
    ranks, experts, chosen = layer
    rows = routed(B * T, chosen, experts, Zipf(skew))
    assert even(rows) == B * T * chosen == together(most(rows, ranks), ranks)
    assert Binding(B=3, T=5)(rows) == 15 * chosen
    for size in (rows, most(rows, ranks), distinct(experts, chosen, B, experts, Zipf(skew))):
        assert parse(str(size)) == size


@pytest.mark.parametrize(
    "text",
    [
        *("routed(B, 0, 8, zipf(1.0))", "routed(B, 2, 8, zipf(-1.0))", "routed(B, 2, 8, zipf)"),
        *(
            "routed(B, 2, 8, 1.0)",
            "busiest(2, 2, B)",
            "busiest(2, 2, B, 8, even(1))",
            "B*1.5",
            "B + zipf(1.0)",
        ),
    ],
)
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


MOE = configs(("Qwen3MoeForCausalLM",))
OTHERS = ("even", "zipf(1.0)", "power_law(1.2)", "groups")
WAYS = ("skew=0.2", "skew=2.5", *(f"routing={law}" for law in OTHERS))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    MOE, PIPELINES, st.data(), st.sampled_from(("skew=0.2", "skew=2.5", *(f"routing={n}" for n in OTHERS)))
)
def test_programs_print_and_parse_and_order_does_not_matter(
    config: dict[str, object], pipeline: str, data: st.DataObject, how: str
) -> None:
    over = data.draw(degrees(config))
    program = llmir.run(llmir.load(config), pipeline)
    try:
        sharded = llmir.run(program, over)
    except PassError:
        return
    if not any(n.op.opcode == "grouped_linear" for g in program.graphs.values() for n in g.nodes):
        with pytest.raises(PassError, match="routes no tokens"):
            llmir.run(program, f"route{{{how}}}")
        return
    first = llmir.run(program, f"route{{{how}}},{over}")
    second = llmir.run(sharded, f"route{{{how}}}")
    assert sorted(first.notes) == sorted(second.notes)  # each pass adds its own behind the others
    assert first == second.replace(notes=first.notes)
    assert llmir.parse_program(print_program(first)) == first
    assert llmir.run(first, "route{skew=0}") == llmir.run(first, "route{routing=chance}") == sharded
    assert conservation(program, first, batch=6, new=5).problems == ()


@pytest.mark.slow
@settings(max_examples=25)
@given(MOE, st.data())
def test_a_skew_changes_no_value(config: dict[str, object], data: st.DataObject) -> None:
    over = data.draw(degrees(config))
    program = llmir.load(config)
    try:
        sharded = llmir.run(program, over)
        told = llmir.run(sharded, "route{skew=1.5}")
    except PassError:
        return
    tokens = np.array([[1, 0, 0], [0, 1, 1]] * 3) % int(str(config["vocab_size"]))

    def weights(name: str, type: llmir.Tensor) -> Any:
        return np.random.default_rng(sum(name.encode())).normal(size=type.shape) / 4

    (one,), _ = interpret(sharded, {"tokens": tokens}, weights)
    (other,), _ = interpret(told, {"tokens": tokens}, weights)
    assert np.array_equal(one, other)


@pytest.mark.parametrize("over", ["shard{tp=4, ep=4}", "shard{dp=4, ep=4}"])
def test_narrow_rows_are_sent_unevenly_too(over: str) -> None:
    fused = llmir.run(llmir.load("qwen3-30b-a3b"), llmir.pipeline_of())
    route, narrow = "route{skew=1}", "quantize{collectives=fp8}"
    first = llmir.run(fused, [route, over, narrow])
    assert llmir.run(fused, [over, narrow, route]) == first
    assert llmir.parse_program(print_program(first)) == first


def test_no_skew_is_the_program_itself() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), "fuse,shard{tp=4, ep=4}")
    assert llmir.run(program, "route") is program
    assert llmir.run(program, "route{skew=0}") is program


@pytest.mark.slow
@pytest.mark.parametrize("over", ["shard{tp=8, ep=8}", "shard{dp=8, ep=8}", "shard{dp=2, tp=4, ep=8}"])
def test_the_busiest_rank_is_priced(over: str) -> None:
    fused = llmir.run(llmir.load("qwen3-235b-a22b"), ["fuse-attention,fuse", over])
    before, after = (
        llmir.analyze(
            llmir.run(fused, f"route{{routing={law}}}"),
            "h100",
            batch=64,
            new=64,
            estimation=llmir.Estimation(cost="ideal"),
        )
        for law in ("even", "zipf:1")
    )
    rows = Zipf(1.0).busiest(8, 8, 64 * 64, 128)
    of = {op.name: op for op in before.ops}
    for op in after.ops:
        if op.kind == "moe" and op.name.endswith(("gate_up", "down_proj")):
            assert op.flops * 64 * 64 == of[op.name].flops * rows
        if op.name.endswith(("all_to_all_dispatch", "all_to_all_combine")):
            assert op.comm_bytes / of[op.name].comm_bytes == pytest.approx(rows / 64 / 64, rel=1e-3)
    assert after.time_s > before.time_s
    assert after.activation_peak_bytes >= before.activation_peak_bytes
    assert after.weight_bytes == before.weight_bytes
    assert any("busiest" in note for note in after.program.notes)


def test_few_tokens_on_one_device_read_less() -> None:
    fused = llmir.run(llmir.load("qwen3-30b-a3b"), llmir.pipeline_of())
    times = [
        llmir.analyze(
            llmir.run(fused, f"route{{skew={s}}}"),
            "h100",
            batch=16,
            new=1,
            estimation=llmir.Estimation(cost="ideal"),
        ).time_s
        for s in (0, 0.5, 1, 2)
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("skew", ["-1", "nan", "inf", "11", "much"])
def test_a_bad_skew_is_one_line(skew: str, run: Run) -> None:
    with pytest.raises(PassError, match=r"skew"):
        llmir.run(llmir.load("qwen3-30b-a3b"), f"route{{skew={skew}}}")
    ran = run("analyze", "qwen3-30b-a3b", f"--routing-skew={skew}")
    assert ran.code == 2
    assert "expected a number from 0 to 10" in ran.err


def test_a_skew_is_a_law_of_routing() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), "shard{tp=4, ep=4}")
    by_law = llmir.run(program, "route{routing=zipf(0.5)}")
    assert by_law == llmir.run(program, "route{skew=0.5}") == llmir.run(program, "route{routing= zipf( .5 )}")
    with pytest.raises(PassError, match="skew cannot be combined with routing"):
        llmir.run(program, "route{skew=0.5, routing=zipf(0.5)}")
    with pytest.raises(PassError, match=r"routing 'odd': expected one of chance, .*zipf:skew"):
        llmir.run(program, "route{routing=odd}")
    with pytest.raises(PassError, match="describes the tokens of one rank"):
        llmir.run(program, "route{routing=arrived(4, even)}")


@pytest.mark.parametrize("law", OTHERS)
def test_the_rank_that_a_law_speaks_of_is_priced(law: str) -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), f"fuse,shard{{tp=8, ep=8}},route{{routing={law}}}")
    step = llmir.analyze(
        program, "h100", batch=64, new=1, context=0, estimation=llmir.Estimation(cost="ideal")
    )
    up = next(op for op in step.ops if op.name.endswith("experts_gate_up"))
    by, (hidden, inter) = routing_laws.law(law), (2048, 768)
    rows, touched = by.busiest(8, 8, 64, 128), by.distinct(16, 8, 64, 128)
    assert up.flops == 2 * rows * hidden * 2 * inter
    moved = rows * (hidden * 2 + 4) + touched * 2 * hidden * inter * 2
    assert up.read_bytes == pytest.approx(moved)


def test_a_dense_model_routes_nothing() -> None:
    with pytest.raises(PassError, match="routes no tokens to experts"):
        llmir.run(llmir.load("llama3.1-8b"), "route{skew=1}")


def test_an_op_that_does_not_know_its_experts_is_refused() -> None:
    program = llmir.run(llmir.load("qwen3-30b-a3b"), "shard{tp=4, ep=4},route{skew=1}")
    broken = print_program(program).replace("experts=128, over=(tp0, tp1)", "experts=0, over=(tp0, tp1)")
    with pytest.raises((PassError, VerifyError), match="expected integers from 1"):
        llmir.run(llmir.parse_program(broken), "dce")


@pytest.mark.parametrize("over", [["--tp", "4", "--ep", "4"], ["--dp", "4", "--ep", "4"]])
@pytest.mark.parametrize("op", ["combine", "dispatch", "experts_gate_up"])
def test_explain_shows_the_busiest_rank(op: str, over: list[str], run: Run) -> None:
    ran = run("explain", "qwen3-30b-a3b", op, *over, "--routing-skew", "0.5")
    assert ran.code == 0, ran.err
    assert op != "experts_gate_up" or "those of the busiest of" in " ".join(ran.out.split())
