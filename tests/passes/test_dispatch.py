"""Expert dispatch by name: rows, ranks and gather mean the same and send what they say."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.compare.conservation import conservation
from llmir.backends.cost.models import model
from llmir.backends.cost.roofline import IdealModel
from llmir.backends.interpret.program import interpret
from llmir.backends.kernels.base import kernel_calls
from llmir.backends.silicon.tables.collective import DISPATCH, dispatch
from llmir.backends.work.rows import Row, rows
from llmir.base.array_namespace import SCALARS
from llmir.base.errors import HardwareError, PassError
from llmir.hw import library
from llmir.hw.engine import SECTIONS
from llmir.ir.core.dispatch_modes import FORMS
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import B
from llmir.ir.sizes.ragged import everyone, most, sent, to_ports
from llmir.ir.sizes.routing_laws import CHANCE, Chance, Even, GroupLimitedRouting, Law, PowerLaw, Zipf
from llmir.ir.tools.text import print_program
from tests.commands import Run
from tests.strategies import configs

MOE = configs(("Qwen3MoeForCausalLM",))
MODEL = "qwen3-30b-a3b"
SPLITS = ("dp=2, ep=2", "dp=4, ep=2", "dp=2, tp=2, ep=4", "tp=2, ep=2, sp=1", "dp=2, tp=2, ep=4, sp=1")


def weights(name: str, type: llmir.Tensor) -> Any:
    return np.random.default_rng(sum(name.encode())).normal(size=type.shape) / 4


@pytest.mark.slow
@settings(max_examples=25)
@given(MOE, st.sampled_from(SPLITS), st.sampled_from(("", "fuse-attention,fuse,")))
def test_each_form_is_the_plain_program(config: dict[str, object], over: str, pipeline: str) -> None:
    """On all ranks, of prompts and of single tokens; a form prints and parses, and routes by any law."""
    plain = llmir.load(config)
    for new in (1, 3):
        tokens = np.arange(4 * new).reshape(4, new) % int(str(config["vocab_size"]))
        (expected,), _ = interpret(plain, {"tokens": tokens}, weights)
        for form in FORMS:
            try:
                program = llmir.run(plain, f"{pipeline}shard{{{over}}},dispatch{{by={form}}}")
            except PassError:  # degrees that the model's sizes do not take
                return
            (found,), _ = interpret(program, {"tokens": tokens}, weights)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
            assert llmir.parse_program(print_program(program)) == program
            one = llmir.run(plain, pipeline.rstrip(","))
            assert conservation(one, program, batch=8, new=4).problems == ()


@pytest.mark.parametrize("form", ["ranks", "gather"])
@pytest.mark.parametrize("over", ["dp=4, ep=4", "dp=2, tp=2, ep=4, sp=1"])
def test_the_order_of_passes_does_not_matter(over: str, form: str) -> None:
    fused = llmir.run(llmir.load(MODEL), llmir.pipeline_of())
    shard, route, by = f"shard{{{over}}}", "route{routing=zipf:0.5}", f"dispatch{{by={form}}}"
    first = llmir.run(fused, [route, shard, by])
    assert llmir.run(fused, [shard, by, route]) == first
    assert llmir.run(llmir.run(first, "route{skew=0}"), "dce") == llmir.run(fused, [shard, by, "dce"])


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_sent_narrow(form: str) -> None:
    """A token's values in one byte and its scales; what it chose stays as it is."""
    fused = llmir.run(llmir.load(MODEL), llmir.pipeline_of())
    wide = llmir.run(fused, f"shard{{dp=8, ep=8}},dispatch{{by={form}}}")
    narrow = llmir.run(wide, "quantize{collectives=fp8}")
    of = [
        {
            op.name: op.comm_bytes
            for op in llmir.analyze(p, "h200", batch=64, new=8, estimation=llmir.Estimation(cost="ideal")).ops
        }
        for p in (wide, narrow)
    ]
    moved = [name for name, sent in of[0].items() if sent and "dispatch" in name and "_2" not in name]
    assert moved
    for name in moved:
        assert 0.5 < of[1][name] / of[0][name] < 0.56


def distinct_ranks(ranks: int, experts: int, chosen: int) -> float:
    """On how many ranks the experts of a token lie, over all that it may choose."""
    held = experts // ranks
    found = [len({e // held for e in choice}) for choice in combinations(range(experts), chosen)]
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("ranks", "experts", "chosen"), [(2, 8, 2), (4, 8, 2), (8, 8, 3), (2, 12, 4), (4, 12, 4), (6, 12, 1)]
)
def test_many_tokens_reach_as_many_ranks_as_choices_say(ranks: int, experts: int, chosen: int) -> None:
    many = 10**8
    expected = distinct_ranks(ranks, experts, chosen) / ranks
    assert Chance().reached(ranks, chosen, many, experts) / many == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("ranks", "experts", "chosen"), [(2, 4, 1), (2, 4, 2), (4, 4, 2), (3, 6, 2)])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_few_tokens_reach_the_busiest_rank_as_every_outcome_says(
    ranks: int, experts: int, chosen: int, tokens: int
) -> None:
    held, counts = experts // ranks, []
    for choice in product(combinations(range(experts), chosen), repeat=tokens):
        counts.append(max(sum(any(e // held == r for e in c) for c in choice) for r in range(ranks)))
    expected = float(np.mean(counts))
    assert expected - 0.1 <= Chance().reached(ranks, chosen, tokens, experts) <= expected + 1.15


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("law", [Chance(), Zipf(0.0), Zipf(0.7)])
@pytest.mark.parametrize(
    ("ranks", "experts", "chosen"), [(8, 64, 6), (8, 256, 8), (32, 256, 8), (64, 256, 8)]
)
@pytest.mark.parametrize("tokens", [16, 64, 256])
def test_the_busiest_rank_is_reached_as_in_simulation(
    law: Law, ranks: int, experts: int, chosen: int, tokens: int
) -> None:
    rng = np.random.default_rng(5)
    logits = -getattr(law, "skew", 0.0) * np.log(np.arange(1, experts + 1))
    counts = []
    for _ in range(100):
        drawn = logits + rng.gumbel(size=(tokens, experts))
        choice = np.argpartition(-drawn, chosen - 1, axis=1)[:, :chosen]
        where = rng.permutation(experts)[choice] // (experts // ranks)
        counts.append((np.arange(ranks)[:, None, None] == where).any(2).sum(1).max())
    error = 0.03 if law == Chance() else 0.1  # a popular expert's tokens come for it alone
    expected = np.mean(counts)
    assert expected * (1 - error) - 0.5 <= law.reached(ranks, chosen, tokens, experts)
    assert law.reached(ranks, chosen, tokens, experts) <= expected * (1 + error) + 1


@given(
    st.sampled_from((1, 2, 4, 8, 64)),
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(0, 2000),
    st.sampled_from((Chance(), Even(), Zipf(0.8), PowerLaw(1.2), GroupLimitedRouting())),
)
def test_a_token_reaches_a_rank_once(ranks: int, held: int, chosen: int, tokens: int, law: Law) -> None:
    experts = ranks * held
    chosen = min(chosen, experts)
    reached = law.reached(ranks, chosen, tokens, experts)
    assert isinstance(reached, int)
    rows = law.busiest(ranks, chosen, tokens, experts)
    assert (
        -(-rows // min(chosen, held)) - 1
        <= reached
        <= min(tokens, max(rows, -(-tokens * min(chosen, ranks) // ranks)))
    )
    grid = Binding(B=np.array([tokens, tokens]))(most(sent(B, chosen, experts, law), ranks))
    assert np.asarray(grid).tolist() == [reached, reached]


def test_a_node_is_sent_a_token_once() -> None:
    """Of 4 nodes of 8 ranks each port takes an eighth of what reaches its node."""
    tokens = sent(B, 8, 256, CHANCE)
    assert everyone(tokens) == B
    at = Binding(B=4096)
    of_rank, port = at(most(tokens, 32)), at(to_ports(most(tokens, 32), 8))
    assert port == -(-Chance().reached(4, 8, 4096, 256) // 8)
    assert port < of_rank


@pytest.mark.parametrize("cost", ["ideal", None])
@pytest.mark.parametrize("new", [1, 256])
def test_ranks_send_less_than_rows_and_than_gather(cost: str | None, new: int) -> None:
    """Of 32 ranks in four nodes; what is sent between nodes is sent inside them too."""
    fused = llmir.run(llmir.load("deepseek-v3"), llmir.pipeline_of())
    sums: dict[str, float] = {}
    for form in FORMS:
        program = llmir.run(fused, f"shard{{dp=32, ep=32}},dispatch{{by={form}}}")
        step = llmir.analyze(
            program, "dgx-h100", batch=128, new=new, context=64, estimation=llmir.Estimation(cost=cost)
        )
        moved = [op for op in step.ops if op.comm_bytes and op.block == "routed_experts"]
        sums[form] = sum(op.comm_bytes for op in moved)
        assert step.time_s >= sum(op.time_s for op in moved) > 0
    assert sums["ranks"] < sums["rows"]
    assert sums["ranks"] < sums["gather"]


@pytest.mark.parametrize("pipeline", ["dispatch{by=ranks}", "shard{tp=4, ep=4},dispatch{by=rows}"])
def test_where_no_rows_are_exchanged_it_is_refused(pipeline: str) -> None:
    with pytest.raises(PassError, match="sends no rows to experts"):
        llmir.run(llmir.load(MODEL), pipeline)


def test_the_default_is_the_engines(run: Run) -> None:
    """vLLM, SGLang and TensorRT-LLM gather; the roofline and an engine that says nothing leave rows."""
    model = ["analyze", MODEL, "--hw", "h100-sxm", "--dp", "4", "--ep", "4", "--generate", "2"]
    for more, ops in (
        ([], ("all_gather_dispatch", "reduce_scatter_")),
        (["--engine", "sglang"], ("all_gather_dispatch", "reduce_scatter_")),
        (["--cost", "ideal"], ("all_to_all_dispatch", "all_to_all_combine")),
        (["--dispatch", "ranks"], ("send_tokens_", "return_tokens_")),
    ):
        ran = run(*model, *more)
        assert ran.code == 0, ran.err
        assert all(op in ran.out for op in ops), more
    ran = run("analyze", MODEL, "--dispatch", "gather")
    assert ran.code == 2 and "sends no rows to experts" in ran.err


def test_a_dispatch_that_no_engine_has_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"mine: dispatch must be one of rows, ranks, gather, got 'all'"):
        SECTIONS["dispatch"]("all", "mine: dispatch")


def table_row(op: str, tokens: int, hidden: int, chosen: int, experts: int, sms: int) -> Row:
    (found,) = rows(dispatch(op, 8, "bf16" if "combine" in op else "fp8", 1, 0, chosen, experts, sms))
    return found


@pytest.mark.parametrize("op", DISPATCH)
@pytest.mark.parametrize(("hidden", "chosen", "experts"), [(7168, 8, 256), (2048, 8, 128), (4096, 2, 8)])
@pytest.mark.parametrize("name", ["h100-sxm", "b200"])
def test_kernels_take_more_for_more_tokens_and_no_less_than_the_link(
    name: str, op: str, hidden: int, chosen: int, experts: int
) -> None:
    device, tokens = library.load(name), np.array([1, 8, 64, 512, 4096])
    row = table_row(op, 1, hidden, chosen, experts, 20)
    price = model(device, None, "sglang").price(row)
    at = Binding(t=tokens * 8, h=hidden)
    times = np.broadcast_to(price.time(at), tokens.shape)
    assert (np.diff(times) > 0).all()
    assert (times >= np.broadcast_to(price.least(at), times.shape)).all()
    (call,) = kernel_calls(row)
    assert call.families[0] == op.replace("_normal", "")
    shape = call.at(at)
    copies = shape.copies * 1.0
    law = Chance().busiest if "_ll_" in op else Chance().reached
    assert copies.tolist() == [law(8, chosen, int(n) * 8, experts) for n in tokens]


def test_kernels_of_low_latency_run_where_experts_are_shared_evenly() -> None:
    """512 experts on 132 multiprocessors take four rounds on 128; 8 experts run on 8."""
    device = library.load("h100-sxm")
    for experts, busy in ((8, 8), (128, 128), (160, 80), (256, 128), (384, 128), (512, 128)):
        (call,) = kernel_calls(table_row("deepep_ll_dispatch", 1, 4096, 2, experts, 0))
        assert call.at(Binding(t=8, h=4096)).busy(device, SCALARS) == busy


def test_a_model_takes_the_faster_mode() -> None:
    """Few tokens go at low latency, many by the normal kernels, which send a token once a rank."""
    device = library.load("h100-sxm")
    program = llmir.run(llmir.load(MODEL), "shard{dp=8, ep=8},dispatch{by=ranks}")
    (row,) = (r for r in rows(program) if r.node.op.opcode == "send_tokens")
    normal, quick = (
        model(device, None, "sglang")._measured(c, IdealModel(device).price(row)) for c in kernel_calls(row)
    )
    price = model(device, None, "sglang").price(row)
    for tokens, first in ((8, quick), (1 << 16, normal)):
        at = Binding(B=tokens, T=1, C=0)
        assert price.time(at) == min(normal.time(at), quick.time(at)) == first.time(at)
