"""Scales of activations that are known before: fp8_t, and checkpoints that say so."""

from __future__ import annotations

import pytest

import llmir
from llmir.backends.step.facts import precision
from llmir.base.errors import PassError
from llmir.ir.ops.quant import Quantize

from .test_quantization_config import EIGHT, FP8_BLOCKS, LLAMA, group, load


def narrowing(program: llmir.Program) -> list[Quantize]:
    """What narrows the activations of a layer."""
    return [n.op for n in program["layer"].nodes if isinstance(n.op, Quantize)]


def test_static_scales_are_not_looked_for_on_the_way() -> None:
    eight = {"quant_method": "compressed-tensors", "config_groups": group(EIGHT, {**EIGHT, "dynamic": False})}
    for scheme, static in (
        (FP8_BLOCKS, False),
        ({**FP8_BLOCKS, "activation_scheme": "static"}, True),
        ({"quant_method": "fp8", "activation_scheme": "static"}, True),
        (eight, True),
    ):
        program = load(LLAMA, **scheme)
        ops = narrowing(program)
        assert ops and {op.static for op in ops} == {static}
        assert {op.to.partition(".")[0].endswith("_t") for op in ops} == {static}
        assert not any("scale" in note for note in program.notes)


@pytest.mark.slow
def test_a_known_scale_takes_less_than_one_that_is_found() -> None:
    """Half of the FLOPs, four bytes for all tokens instead of each, and on every device no more time."""
    types = ("weights=fp8, activations=fp8", "weights=fp8, activations=fp8_t")
    programs = [llmir.run(llmir.load(LLAMA), f"quantize{{{type}}}") for type in types]
    for device, engine in (("h100", "trtllm"), ("h100", "vllm"), ("b200", "trtllm"), ("b200", "sglang")):
        steps = [
            llmir.analyze(p, device, batch=64, estimation=llmir.Estimation(engine=engine)).ops
            for p in programs
        ]
        found, known = ([op for op in ops if "quantize" in op.name] for ops in steps)
        assert [op.name for op in found] == [op.name for op in known] != []
        for dynamic, static in zip(found, known, strict=True):
            assert dynamic.flops == 2 * static.flops
            assert dynamic.write_bytes - static.write_bytes == 4 * 63
            assert static.time_s <= dynamic.time_s


def test_scales_of_activations_are_those_that_quantize_chooses_or_known_ones() -> None:
    with pytest.raises(PassError, match="unknown dtype 'fp8_c'"):
        llmir.run(llmir.load(LLAMA), "quantize{weights=fp8, activations=fp8_c}")
    for types in ({"weights": "fp8", "activations": "fp8_t"}, {"weights": "int8", "activations": "int8_t"}):
        asked = ", ".join(f"{role}={type}" for role, type in types.items())
        found = precision(llmir.run(llmir.load(LLAMA), f"quantize{{{asked}}}"))
        assert {role: found[role] for role in types} == types
