"""Sharding: proved by running it on all ranks, and held against closed forms."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import llmir
from llmir.base.errors import ParseError, PassError
from llmir.frontends.models.presets import find
from llmir.ir.core.mesh import Parallelism
from llmir.ir.core.program import Program
from tests.flat import records
from tests.frontends.families.window_cases import CASES as WINDOW_CASES
from tests.logits import ids, logits, same
from tests.strategies import LOGITS, configs, degrees, wide

# Weights and caches are rounded once, wherever they lie; activations would be scaled rank by rank.
BEFORE = st.sampled_from(
    (
        "",
        "fuse-attention",
        "fuse-attention,fuse",
        "fuse-attention,fuse,unroll",
        "fuse-attention,fuse,quantize{weights=fp8, kv=fp8_e5m2}",
        "quantize{weights=int4_g4},fuse-attention",
    )
)


SPLITS = st.sampled_from((1, 2, 3, 4, 6, 8))


@pytest.mark.slow
@given(SPLITS, SPLITS, st.data())
def test_a_program_says_how_it_is_split(tp: int, dp: int, data: st.DataObject) -> None:
    """As a value, which its text keeps; degrees multiply when it is sharded again."""
    ep = data.draw(st.sampled_from([n for n in range(1, tp * dp + 1) if tp * dp % n == 0]))
    pp, sp = data.draw(st.integers(1, 2)), tp > 1 and data.draw(st.booleans())
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        **{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 24, "num_key_value_heads": 24},
        **{"intermediate_size": 24, "vocab_size": 24, "head_dim": 2, "num_experts": 1152},
        **{"num_experts_per_tok": 2, "moe_intermediate_size": 1152},
    }
    how = f"stages{{pp={pp}}},shard{{tp={tp}, dp={dp}, ep={ep}, sp={int(sp)}}}"
    program = llmir.run(llmir.load(config), how)
    assert program.parallelism == Parallelism(tp=tp, pp=pp, ep=ep, dp=dp, sp=sp)
    assert program.devices == tp * dp * pp
    assert llmir.parse_program(llmir.print_program(program)) == program
    again = llmir.run(program, "shard{dp=2}").parallelism
    assert again == Parallelism(tp=tp, pp=pp, ep=ep, dp=2 * dp, sp=sp)


@pytest.mark.parametrize(
    "said", ["{ep=3}", "{ep=true}", "{sp=1}", "{sp=false, x=1}", "{ep=0}", "{ep=2, ep=2}"]
)
def test_a_mesh_that_says_what_cannot_be_is_refused(said: str) -> None:
    with pytest.raises(ParseError, match=r"^line 2: .*\bep\b|twice"):
        llmir.parse_program(f'program "x"\nmesh(tp=4) {said}\ngraph @main {{\nreturn\n}}')


@pytest.mark.slow
@given(
    configs(),
    LOGITS,
    BEFORE,
    st.integers(1, 4),
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.data(),
)
def test_sharded_is_unsharded(
    config: dict[str, Any], which: str, before: str, batch: int, pieces: list[int], data: st.DataObject
) -> None:
    odd = {"vocab_size": config["vocab_size"]}  # which the last rank has less of, or nothing
    config = wide(config, 12) | data.draw(st.sampled_from(({}, odd)))
    program = llmir.run(llmir.load(config, logits=which), before)
    how = data.draw(degrees(config))
    assume("ep=0" not in how)
    assume(f"ep={1}" in how or any("layer" in g for g in program.graphs))
    try:
        sharded = llmir.run(program, how)
    except PassError as error:  # a config whose layers are all dense has no experts to lay out
        assume("has no experts" not in str(error))
        raise
    tokens = ids(batch, sum(pieces), config["vocab_size"])
    assert same(logits(program, tokens, *pieces), logits(sharded, tokens, *pieces))


@pytest.mark.parametrize("how", ["tp=2", "tp=4", "tp=4, sp=1"])
def test_norms_over_sharded_axes_have_whole_weights(how: str) -> None:
    """BitNet normalizes the heads before o_proj and the columns before down_proj: ranks gather these."""
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = {**WINDOW_CASES["bitnet"], **sizes}
    program = llmir.load(config)
    sharded = llmir.run(program, f"fuse-attention,fuse,dce,shard{{{how}}}")
    for node in sharded["layer"].sources:
        if node.op.role == "weight":
            assert bool(node.results[0].spread) == (node.op.block != "norm"), node.name
    moves = Counter(node.op.opcode for node in sharded["layer"].nodes if node.op.kind == "collective")
    assert moves["all_gather"] >= 2
    assert llmir.equivalent(program, sharded)


@pytest.mark.parametrize(("tp", "padded"), [(2, 50_258), (4, 50_260), (8, 50_264)])
def test_a_vocabulary_that_tp_does_not_divide_is_padded_as_engines_do(tp: int, padded: int) -> None:
    """GPT-2's: each rank holds as many rows as one of Megatron's, whose vocabulary is a multiple of tp."""
    preset = find("llama-2-7b")
    assert preset
    program = llmir.load({**preset.config, "vocab_size": 50_257})
    sharded = llmir.run(program, f"shard{{tp={tp}}}")
    assert f"vocabulary of 50,257 padded to {padded:,}, to be split {tp} ways" in sharded.notes
    assert sharded["main"]["embed.weight"].results[0].local(sharded.mesh).shape == (padded // tp, 4096)
    whole, split = (
        llmir.analyze(p, "h100-sxm", batch=1, new=1, context=0).weight_bytes for p in (program, sharded)
    )
    rest, norms = whole - 2 * 2 * 50_257 * 4096, 2 * (2 * 32 + 1) * 4096
    assert split == (rest - norms) // tp + norms + 2 * 2 * (padded // tp) * 4096
    assert sharded.parameters == program.parameters
    even = llmir.run(llmir.load({**preset.config, "vocab_size": padded}), f"shard{{tp={tp}}}")
    assert not even.notes


def collectives(program: Program, graph: str) -> list[str]:
    return [n.op.opcode for n in program[graph].nodes if n.op.kind == "collective"]


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
@pytest.mark.parametrize("before", ["", llmir.pipeline_of()])
def test_megatrons_pattern_is_found(tp: int, before: str) -> None:
    """Two all_reduces a layer, one for the embedding, one gather for the logits (arXiv:1909.08053)."""
    program = llmir.run(llmir.load("llama3.1-8b"), [before, f"shard{{tp={tp}}}"])
    assert collectives(program, "layer") == ["all_reduce", "all_reduce"]
    assert collectives(program, "main") == ["all_reduce", "all_gather"]


@pytest.mark.parametrize("before", ["", llmir.pipeline_of()])
def test_sequence_parallelism_is_the_all_reduces_in_two_halves(before: str) -> None:
    """arXiv:2205.05198, section 4.2: a gather before each block and a scatter after, the same bytes."""
    base = llmir.run(llmir.load("llama3.1-8b"), before)
    plain, split = (llmir.run(base, f"shard{{tp=8, sp={sp}}}") for sp in (0, 1))
    assert collectives(split, "layer") == ["all_gather", "reduce_scatter"] * 2
    assert collectives(split, "main") == ["reduce_scatter", "all_gather", "all_gather"]
    sent = [
        sum(op.comm_bytes for op in llmir.analyze(p, "h100", batch=4, new=512).ops if op.repeat > 1)
        for p in (plain, split)
    ]
    assert sent[0] == sent[1] == 2 * (2 * 7 * (4 * 512 * 4096 * 2) // 8)


def test_weights_of_a_rank_are_the_published_ones() -> None:
    """Llama-2-70B in fp16 on 8 GPUs, norms replicated."""
    program = llmir.run(llmir.load("llama2-70b"), "shard{tp=8}")
    assert llmir.analyze(program, "a100").weight_bytes == 17_246_470_144


@pytest.mark.parametrize(
    ("name", "how", "ranks"),
    [
        ("qwen3-235b-a22b", "tp=8, ep=8", 8),
        ("qwen3-235b-a22b", "tp=8, ep=4", 8),
        ("qwen3-235b-a22b", "tp=8", 8),
        ("qwen3-235b-a22b", "tp=4, dp=4, ep=16", 16),
        ("qwen3-235b-a22b", "tp=8, dp=2, ep=16", 16),
        ("qwen3-235b-a22b", "tp=16, ep=16", 16),
        ("qwen3-235b-a22b", "tp=16", 16),
        ("llama3.1-405b", "tp=8", 8),
        ("llama3.1-405b", "tp=16", 16),
        ("llama3.1-405b", "tp=8, dp=2", 16),
    ],
)
def test_bytes_of_a_rank_by_closed_form(name: str, how: str, ranks: int) -> None:
    base = llmir.load(name)
    program = llmir.run(base, f"shard{{{how}}}")
    tp, dp = program.mesh.degree("tp"), program.mesh.degree("dp")
    kinds = base.parameters_by_kind
    layers = int(base.facts["layers"])
    kv, head, hidden = (8, 128, 16384) if "405b" in name else (4, 128, 4096)
    copies = max(tp // kv, 1)  # key/value projections are held by so many ranks
    expected = sum(kinds[k] for k in ("embedding", "lm_head")) // tp
    expected += kinds["norm"] + kinds.get("router", 0)
    expected += kinds.get("mlp", 0) // tp + kinds.get("routed_experts", 0) // ranks
    shared = 2 * layers * hidden * kv * head
    expected += (kinds["attention"] - shared) // tp + shared * copies // tp
    report = llmir.analyze(program, "h200", batch=2 * dp, new=1, context=99)
    assert report.weight_bytes == 2 * expected
    assert report.kv_cache_bytes == 2 * 100 * base.kv_cache_bytes_per_token * copies // tp


@pytest.mark.slow
@given(configs(), BEFORE, st.data(), st.integers(1, 3), st.integers(1, 5))
def test_work_is_conserved(
    config: dict[str, Any], before: str, data: st.DataObject, batch: int, new: int
) -> None:
    """Matmul FLOPs over all ranks are those of one device, but for what is known to be replicated."""
    config = wide(config, 12)
    program = llmir.run(llmir.load(config, logits="all"), before)
    if any(n.op.routing for graph in program.graphs.values() for n in graph.nodes):
        program = llmir.run(program, "route{routing=even}")  # by chance some rank has more
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or program.active_parameters < program.parameters))
    sharded = llmir.run(program, how)
    ranks, dp, tp = (sharded.mesh.devices, sharded.mesh.degree("dp"), sharded.mesh.degree("tp"))
    point = {"batch": batch * dp, "new": new * ranks}  # sizes divide
    one, each = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, sharded))
    alone = {op.name: op for op in one.ops}
    for op in each.ops:
        if op.kind == "collective" or not op.matmul_flops:
            continue
        copies = op.matmul_flops * ranks / alone[op.name].matmul_flops
        assert copies >= 1, op.name
        if copies > 1:  # the router, and key/value heads beyond their number
            assert op.block == "router" or (op.block == "attention" and tp > config["num_key_value_heads"]), (
                op.name
            )
    assert each.weight_bytes * ranks >= one.weight_bytes
    assert each.kv_cache_bytes * ranks >= one.kv_cache_bytes


@pytest.mark.slow
@given(configs(), BEFORE)
def test_one_rank_changes_nothing(config: dict[str, Any], before: str) -> None:
    program = llmir.run(llmir.load(config), before)
    assert llmir.run(program, "shard{tp=1, dp=1, ep=1}") is program


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b"])
def test_twice_by_two_is_once_by_four(name: str) -> None:
    base = llmir.run(llmir.load(name), llmir.pipeline_of())
    for first, second, whole in (
        ("tp=2", "tp=2", "tp=4"),
        ("tp=2", "dp=2", "tp=2, dp=2"),
        ("tp=2, sp=1", "tp=2", "tp=4, sp=1"),
    ):
        twice = llmir.run(base, f"shard{{{first}}},shard{{{second}}}")
        assert twice == llmir.run(base, f"shard{{{whole}}}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b", "qwen2.5-7b"])
def test_bytes_of_a_rank_never_rise_with_tp(name: str) -> None:
    base = llmir.load(name)
    found = []
    for tp in (1, 2, 4, 8, 16, 28):
        try:
            report = llmir.analyze(llmir.run(base, f"shard{{tp={tp}}}"), "h100", batch=4, new=1, context=100)
        except PassError:
            continue
        found.append((report.weight_bytes, report.kv_cache_bytes))
    assert len(found) > 2
    assert all(a >= b for x, y in pairwise(found) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        (
            "llama3.1-8b",
            "tp=3",
            "tp 3: 8 KV heads of the model cannot be split 3 ways; allowed: 1, 2, 4, 8",
        ),
        ("llama3.1-8b", "ep=2, dp=2", "ep 2: Llama-3.1-8B has no experts"),
        ("qwen3-30b-a3b", "tp=4, ep=3", "ep 3: does not divide dp × tp = 4; allowed: 1, 2, 4"),
        (
            "qwen3-30b-a3b",
            "dp=192, ep=192",
            "ep 192: 128 experts of the model cannot be split 192 ways; allowed: 1, 2",
        ),
        ("qwen2.5-0.5b", "tp=4", "tp 4: 14 heads of the model cannot be split 4 ways"),
        ("llama3.1-8b", "tp=0", "shard: tp: expected an integer from 1 to 1,048,576, got 0"),
        ("llama3.1-8b", "tp=2, sp=2", "shard: sp: expected 0 or 1, got 2"),
        ("llama3.1-8b", "tp=x", "shard: tp: expected an integer from 1 to 1,048,576, got 'x'"),
        ("llama3.1-8b", "dp=2, sp=1", "sp 1: tokens are split over the ranks of tp, and there is only one"),
    ],
)
def test_degrees_that_do_not_divide(name: str, how: str, says: str) -> None:
    with pytest.raises(PassError) as error:
        llmir.run(llmir.load(name), f"shard{{{how}}}")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@given(configs(), BEFORE, st.data())
def test_text_and_unrolling_keep_a_sharded_program(
    config: dict[str, Any], before: str, data: st.DataObject
) -> None:
    config = wide(config, 12)
    program = llmir.run(llmir.load(config), before)
    how = data.draw(degrees(config))
    assume("ep=0" not in how and ("ep=1," in how or program.active_parameters < program.parameters))
    sharded = llmir.run(program, how)
    assert llmir.parse_program(llmir.print_program(sharded)) == sharded
    flat = llmir.run(sharded, "unroll")
    one, other = (llmir.analyze(p, "h100", batch=6, new=7, context=5) for p in (sharded, flat))
    assert one.peak_memory_bytes == other.peak_memory_bytes
    assert one.comm_bytes == other.comm_bytes
    assert one.time_s == pytest.approx(other.time_s, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("batch", "beside", "says"),
    [
        (3, (), ["a batch of 3 leaves 1 of 4 data-parallel ranks idle"]),
        (4, (), []),
        (3, ({"batch": 1, "new": 8},), []),
        ([1, 4], (), []),
    ],
)
def test_a_batch_of_fewer_sequences_than_ranks_says_who_is_idle(
    batch: Any, beside: Any, says: list[str]
) -> None:
    program = llmir.run(llmir.load("llama3.2-1b"), "shard{dp=4}")
    assert list(llmir.analyze(program, "h100-sxm", batch=batch, beside=beside).notes) == says
