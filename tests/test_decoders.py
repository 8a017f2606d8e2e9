"""Decoders of layers of any kinds: folded, staged, sharded, fused, quantized, printed they mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret import interpret
from llmir.frontends.decoder import Decoder
from llmir.frontends.mixers import Attention, Sides
from llmir.frontends.mlps import Moe
from llmir.frontends.weights import expected
from llmir.graph import Program
from llmir.names import stored
from llmir.tensor import Tensor

from .decoders import decoders
from .strategies import points
from .test_interpret import ids, same, weight
from .test_layers import cut
from .test_properties import close, figures

SHARDS = st.sampled_from(
    ("shard{tp=2}", "shard{tp=4}", "shard{tp=2, sp=1}", "shard{dp=2, tp=2, sp=1}", "shard{dp=2}")
)
EXPERTS = st.sampled_from(("", ", ep=2"))
NARROW = ("quantize{weights=fp8, activations=fp8, kv=fp8}", "quantize{weights=int4_g4}")
FUSED = "fuse-attention,fuse"


def apart(decoder: Decoder) -> Program:
    """Each layer with a body of its own, so that none are repeated."""
    return decoder.program("all", tuple(range(len(decoder.layers))))


def logits(program: Program, *pieces: int) -> Any:
    """All logits, of weights that follow from their names in the checkpoint alone."""
    tokens, caches, found, start = ids(2, sum(pieces), 12), {}, [], 0

    def given_weight(name: str, type: Tensor) -> Any:
        return weight(stored(name)[0], type)

    for size in pieces:
        step = {"tokens": tokens[:, start : start + size]}
        (out,), caches = interpret(program, step, given_weight, caches, context=start)
        found.append(out)
        start += size
    return np.concatenate(found, axis=1)


@given(decoders(), points())
@settings(deadline=None, max_examples=60)
def test_a_folded_model_is_the_one_written_out(decoder: Decoder, point: dict[str, int]) -> None:
    folded, flat = decoder.program("all"), apart(decoder)
    assert sum(n.op.opcode == "repeat" for n in flat["main"].nodes) == len(decoder.layers)
    assert folded.depth("main") == flat.depth("main") == len(decoder.layers)
    assert folded.parameters_by_kind == flat.parameters_by_kind
    assert folded.kv_cache_bytes_per_token == flat.kv_cache_bytes_per_token
    assert expected(folded) == expected(flat)
    one, other = (llmir.analyze(p, "h100", **point) for p in (folded, flat))
    assert close(figures(one), figures(other))
    assert one.matmul_flops_by_kind == other.matmul_flops_by_kind
    assert one.kv_cache_bytes == other.kv_cache_bytes
    assert same(logits(folded, 5, 1), logits(flat, 5, 1))


@given(decoders(), st.data())
@settings(deadline=None, max_examples=40)
def test_a_stage_may_end_within_a_period(decoder: Decoder, data: st.DataObject) -> None:
    program = decoder.program("all")
    depth = program.depth("main")
    if depth > 1:
        staged = llmir.run(program, data.draw(cut(depth)))
        assert expected(staged) == expected(program) or decoder.tied
        assert llmir.equivalent(program, staged)


@given(decoders(4), SHARDS, EXPERTS, st.sampled_from(("", FUSED)))
@settings(deadline=None, max_examples=60)
def test_sharded_is_unsharded(decoder: Decoder, shard: str, experts: str, before: str) -> None:
    program = decoder.program("last")
    routed = any(isinstance(layer.mlp, Moe) for layer in decoder.layers)
    shard = shard.replace("}", f"{experts}}}") if routed else shard
    found = llmir.equivalent(program, llmir.run(program, f"{before},{shard}".strip(",")))
    assert found, str(found)


@given(decoders(4), st.sampled_from(("unroll", FUSED, f"{FUSED},unroll", f"unroll,{FUSED}")))
@settings(deadline=None, max_examples=60)
def test_fused_and_unrolled_mean_the_same(decoder: Decoder, pipeline: str) -> None:
    program = decoder.program("last")
    found = llmir.equivalent(program, llmir.run(program, pipeline))
    assert found, str(found)


@given(decoders(4), st.sampled_from(NARROW))
@settings(deadline=None, max_examples=30)
def test_fused_after_quantizing_means_the_same(decoder: Decoder, quantize: str) -> None:
    caches = any(isinstance(layer.mixer, Attention | Sides) for layer in decoder.layers)
    assume("kv" not in quantize or caches)
    program = llmir.run(decoder.program("last"), quantize)
    found = llmir.equivalent(program, llmir.run(program, FUSED))
    assert found, str(found)


@given(decoders(4), st.sampled_from(("", FUSED, "shard{tp=2}", "stages{pp=2}", "unroll")))
@settings(deadline=None, max_examples=40)
def test_what_is_printed_is_the_program(decoder: Decoder, pipeline: str) -> None:
    program = decoder.program("last")
    if "pp" not in pipeline or program.depth("main") > 1:
        program = llmir.run(program, pipeline)
    assert llmir.parse_program(llmir.print_program(program)) == program
