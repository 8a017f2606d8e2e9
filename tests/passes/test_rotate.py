"""Sums that begin layers in place of ending them, and norms that narrow: the same meaning, fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.backends.step.report import Report
from llmir.frontends.models.presets import PRESETS
from llmir.ir.core.program import Program

ENGINE = "rotate,absorb-mla{phase=decode},fuse-attention,fuse,fuse-quantize,dce"
# Layers of one kind, of two in a period, dense and then sparse, norms after products, states, layer norms.
MODELS = (
    "llama3.2-1b",
    "gemma-3-1b",
    "glm-4.5-air",
    "olmo-2-1b",
    "qwen3-next-80b-a3b",
    "gpt-2",
    "mamba-2.8b",
)


def step(program: Program) -> Report:
    return llmir.analyze(
        program, "h100", batch=2, new=16, context=64, estimation=llmir.Estimation(cost="ideal")
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("more", ["", ",shard{tp=2}", ",shard{tp=2, sp=1}", ",stages{pp=2}", ",unroll"])
def test_a_rotated_model_computes_what_it_did(model: str, more: str) -> None:
    program = llmir.load(model)
    found = llmir.equivalent(program, llmir.run(program, ENGINE + more), new=3)
    assert (found.equal, found.first) == (True, "")


@pytest.mark.mostly_slow(13)
@pytest.mark.parametrize("model", [name for name in PRESETS if not name.startswith("DiT")])
def test_a_rotated_model_never_moves_more(model: str) -> None:
    program = llmir.load(model)
    rotated = llmir.run(program, ENGINE)
    before, after = step(llmir.run(program, ENGINE.removeprefix("rotate,"))), step(rotated)
    assert after.read_bytes + after.write_bytes <= before.read_bytes + before.write_bytes
    assert after.matmul_flops == before.matmul_flops
    kernels = [sum(op.repeat for op in report.ops) for report in (before, after)]
    assert kernels[1] <= kernels[0]
    assert llmir.run(rotated, "rotate") is rotated


def test_a_llama_layer_has_nine_kernels_and_its_program_one_sum_of_zeros() -> None:
    program = llmir.run(llmir.load("llama3.1-8b"), "rotate,fuse-attention,fuse,dce")
    assert [n.name for n in program["layer"].nodes if n.op.runs] == [
        "add_input_norm",
        "qkv_proj",
        "rope_append",
        "flash_attention",
        "o_proj",
        "add_post_norm",
        "gate_up_proj",
        "silu_mul",
        "down_proj",
    ]
    (zeros,) = (n for n in program["main"].nodes if n.op.opcode == "zeros")
    assert not zeros.op.runs  # vLLM's first layer is given no residual, and adds none
    # Each of 33 norms moves one hidden state less; a sum more than before moves three.
    eager = llmir.run(llmir.load("llama3.1-8b"), "fuse-attention,fuse,dce")
    hidden = 2 * 16 * 4096 * 2
    moved = [report.read_bytes + report.write_bytes for report in map(step, (eager, program))]
    assert moved[0] - moved[1] == (33 - 3) * hidden


def test_a_norm_that_narrows_gives_what_the_two_ops_gave() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 50,
        "dtype": "float32",
    }
    narrow = llmir.run(llmir.load(config), "quantize{weights=fp8, activations=fp8}")

    def weights(name: str, type: llmir.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.random.default_rng(sum(name.encode())).normal(size=type.shape) / 6

    tokens = {"tokens": np.array([[5, 17, 3]])}
    (eager,), _ = interpret(narrow, tokens, weights)
    for pipeline, ops in ((ENGINE, 2), (ENGINE.removeprefix("rotate,"), 1)):
        fused = llmir.run(narrow, pipeline)
        assert sum(n.op.opcode == "add_rms_norm_quantize" for n in fused["layer"].nodes) == ops
        (found,), _ = interpret(fused, tokens, weights)
        assert np.allclose(eager, found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_norms_that_narrow_move_less(model: str) -> None:
    program = llmir.run(llmir.load(model), "quantize{weights=fp8, activations=fp8},fuse-attention,fuse,dce")
    before, after = step(program), step(llmir.run(program, "fuse-quantize"))
    assert after.read_bytes + after.write_bytes < before.read_bytes + before.write_bytes
    assert after.flops == before.flops
