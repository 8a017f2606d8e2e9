"""Decoders of layers of any kinds: folded, staged, sharded, fused, quantized, printed they mean the same."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import PassError
from llmir.base.names import checkpoint_place
from llmir.frontends.checkpoints.weights import expected
from llmir.frontends.layers import (
    attention,
    compressed_attention,
    latent_attention,
    linear_attention,
    mamba,
    shared_block,
)
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from tests.decoders import decoders, kinds
from tests.figures import close, figures
from tests.flat import records
from tests.ir.core.test_layers import cut
from tests.logits import ids, same, weight
from tests.naive_liveness import simulate
from tests.strategies import ALL, PIPELINES, points

SHARDS = st.sampled_from(
    ("shard{tp=2}", "shard{tp=4}", "shard{tp=2, sp=1}", "shard{dp=2, tp=2, sp=1}", "shard{dp=2}")
)
EXPERTS = st.sampled_from(("", ", ep=2"))
NARROW = ("quantize{weights=fp8, activations=fp8, kv=fp8}", "quantize{weights=int4_g4}")
FUSED = "fuse-attention,fuse"
MIXERS = (
    attention,
    compressed_attention,
    latent_attention,
    linear_attention,
    mamba,
    shared_block,
)


def after(program: Program, pipeline: str) -> Program:
    """The program after a pipeline that does something for it."""
    try:
        return llmir.run(program, pipeline)
    except PassError:
        assume(condition=False)
        raise


def apart(decoder: Decoder) -> Program:
    """Each layer with a body of its own, so that none are repeated."""
    return decoder.program("all", tuple(range(len(decoder.layers))))


def logits(program: Program, *pieces: int) -> Any:
    """All logits, of weights that follow from their names in the checkpoint alone."""
    tokens, caches, found, start = ids(2, sum(pieces), 12), {}, [], 0

    def given_weight(name: str, type: Tensor) -> Any:
        return weight(checkpoint_place(name)[0], type)

    for size in pieces:
        step = {"tokens": tokens[:, start : start + size]}
        (out,), caches = interpret(program, step, given_weight, caches, context=start)
        found.append(out)
        start += size
    return np.concatenate(found, axis=1)


@pytest.mark.slow
@given(decoders(), points(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_a_folded_model_is_the_one_written_out_in_any_chunks(
    decoder: Decoder, point: dict[str, int], pieces: list[int]
) -> None:
    """Rings of windows and chunks hold what full caches would give: the whole prompt at once needs none."""
    folded, flat = decoder.program("all"), apart(decoder)
    assert sum(n.op.opcode == "repeat" for n in flat["main"].nodes) == len(decoder.layers)
    assert folded.depth("main") == flat.depth("main") == len(decoder.layers)
    assert folded.parameters_by_kind == flat.parameters_by_kind
    assert folded.kv_cache_bytes_per_token == flat.kv_cache_bytes_per_token
    assert expected(folded) == expected(flat)
    one, other = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (folded, flat))
    assert close(figures(one), figures(other))
    assert one.matmul_flops_by_kind == other.matmul_flops_by_kind
    assert same(logits(folded, *pieces), logits(flat, sum(pieces)))


@pytest.mark.slow
@given(decoders(5), PIPELINES, points())
@settings(deadline=None, max_examples=30)
def test_unrolled_costs_what_rolled_costs(decoder: Decoder, pipeline: str, point: dict[str, int]) -> None:
    rolled = after(decoder.program("last"), pipeline)
    flat = llmir.run(rolled, "unroll")
    assert len(flat.graphs) == len(flat.entries)
    assert flat.parameters_by_kind == rolled.parameters_by_kind
    assert flat.active_parameters == rolled.active_parameters
    one, other = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (rolled, flat))
    assert close(figures(one), figures(other))
    assert one.matmul_flops_by_kind == other.matmul_flops_by_kind
    assert one.peak_at.split(".")[-1] == other.peak_at.split(".")[-1]


@given(decoders(5), PIPELINES, points())
@settings(deadline=None, max_examples=30)
def test_live_memory_is_what_a_simulation_holds(
    decoder: Decoder, pipeline: str, point: dict[str, int]
) -> None:
    program = after(decoder.program("last"), pipeline)
    report = llmir.analyze(program, "h100", **records(llmir.analyze, phase="prefill", **point))
    flat = llmir.run(program, "unroll").replace(phases={})
    resident, transient = simulate(flat.graphs["main"], report.at)
    assert report.weight_bytes + report.kv_cache_bytes == resident
    assert report.activation_peak_bytes == transient


@pytest.mark.slow
@given(decoders(), st.data())
@settings(deadline=None, max_examples=40)
def test_a_stage_may_end_within_a_period(decoder: Decoder, data: st.DataObject) -> None:
    program = decoder.program("all")
    depth = program.depth("main")
    if depth > 1:
        staged = llmir.run(program, data.draw(cut(depth)))
        assert expected(staged) == expected(program) or decoder.tied
        assert llmir.equivalent(program, staged)


@pytest.mark.slow
@given(decoders(4), SHARDS, EXPERTS, st.sampled_from(("", FUSED)))
@settings(deadline=None, max_examples=60)
def test_sharded_is_unsharded(decoder: Decoder, shard: str, experts: str, before: str) -> None:
    program = decoder.program("last")
    routed = any(isinstance(layer.mlp, Moe) for layer in decoder.layers)
    shard = shard.replace("}", f"{experts}}}") if routed else shard
    found = llmir.equivalent(program, llmir.run(program, f"{before},{shard}".strip(",")))
    assert found, str(found)


@pytest.mark.slow
@given(decoders(4), st.sampled_from(("unroll", f"absorb-mla,{FUSED}", f"{FUSED},unroll", f"unroll,{FUSED}")))
@settings(deadline=None, max_examples=60)
def test_fused_absorbed_and_unrolled_mean_the_same(decoder: Decoder, pipeline: str) -> None:
    """Scans go in chunks where they are fused, and as recurrences before."""
    program = decoder.program("last")
    found = llmir.equivalent(program, llmir.run(program, pipeline))
    assert found, str(found)


@pytest.mark.slow
@given(decoders(4), st.sampled_from(NARROW))
@settings(deadline=None, max_examples=30)
def test_fused_after_quantizing_means_the_same(decoder: Decoder, quantize: str) -> None:
    program = after(decoder.program("last"), quantize)
    found = llmir.equivalent(program, llmir.run(program, FUSED))
    assert found, str(found)


@pytest.mark.slow
@given(decoders(4), st.sampled_from((*ALL, "shard{tp=2}", "stages{pp=2}", "unroll", "absorb-mla")))
@settings(deadline=None, max_examples=50)
def test_what_is_printed_is_the_program(decoder: Decoder, pipeline: str) -> None:
    program = after(decoder.program("last"), pipeline)
    text = llmir.print_program(program)
    again = llmir.parse_program(text)
    assert again == program
    assert llmir.print_program(again) == text
    assert llmir.run(again, []) is again  # it verifies


@pytest.mark.slow
def test_all_mixers_and_mlps_are_drawn() -> None:
    seen: set[type] = set()

    def note(spec: Any) -> None:
        seen.add(type(spec))
        for field in fields(spec):
            if is_dataclass(value := getattr(spec, field.name)):
                note(value)

    @given(kinds(8))
    @settings(max_examples=400, database=None, derandomize=True)
    def draw(layer: Layer) -> None:
        note(layer)

    draw()
    specs = {
        spec
        for module in MIXERS
        for name, spec in vars(module).items()
        if isinstance(spec, type) and spec.__module__ == module.__name__ and not name.startswith("_")
    }
    assert len(specs) >= 15
    assert specs | {Mlp, Moe, Routing, Norms} <= seen
