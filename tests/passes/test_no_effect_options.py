"""An option that can do nothing for a program is an error, which names the option and says why."""

from __future__ import annotations

import pytest

import llmir
from llmir.base.errors import PassError
from llmir.ir.core.program import Program

PRODUCT = """
program "product"
graph @main {
  %x = input() {axes=(rows, embed)} : bf16[B, 64]
  %norm.weight = weight() {block=norm} : bf16[64]
  %norm = rms_norm(%x, %norm.weight) {block=norm} : bf16[B, 64]
  %w = weight() {block=BLOCK, axes=AXES} : bf16[64, 32]
  %y = linear(%norm, %w) {block=BLOCK, einsum="b h, h f -> b f"} : bf16[B, 32]
  return %y
}
"""


def product(block: str = "mlp", axes: str = "(embed, inner)") -> Program:
    return llmir.parse_program(PRODUCT.replace("BLOCK", block).replace("AXES", axes))


@pytest.mark.parametrize(
    ("program", "step", "says"),
    [
        (product("lm_head"), "quantize{weights=mxfp4}", "weights mxfp4: no weight of program 'product'"),
        (
            product("router"),
            "quantize{weights=fp8}",
            "weights of compressor, embedding, lm_head, norm, router, streams stay",
        ),
        (product("lm_head"), "quantize{weights=mxfp4, activations=mxfp4}", "weights mxfp4: no weight"),
        (
            product(),
            "quantize{activations=fp8}",
            "activations fp8: requires weights of the same kind, at most as wide",
        ),
        (product(), "quantize{kv=fp8}", "kv fp8: program 'product' has no cache"),
        (product(), "quantize{collectives=fp8}", "collectives fp8: no collective joins ranks"),
        (
            product("lm_head", "(embed, vocab)"),
            "shard{tp=2},quantize{collectives=fp8}",
            "collectives fp8: no collective of program 'product' can have this dtype",
        ),
        (product(), "quantize{plan=(norm:mxfp4)}", "'norm' has no weights that can be mxfp4"),
        (product(), "quantize{plan=(norm:tf32)}", "'norm' has no weights that can be tf32"),
        (
            product(),
            "quantize{plan=(mlp:keep)}",
            "nothing to keep 'mlp' from, because there is no dtype for weights",
        ),
        (
            product(),
            "quantize{weights=fp8, plan=(mlp:(activations=keep))}",
            "nothing to keep 'mlp' from, because there is no dtype for activations",
        ),
        (
            product(),
            "shard{tp=2}",
            "tp 2: has no effect, because no weight, cache or input has an axis that tp shards",
        ),
        (product(), "shard{dp=2}", "the axes of 'product' are rows, embed, inner"),
        (product(), "shard{ep=2, dp=2}", "ep 2: product has no experts"),
        (product(axes="(embed, mlp)"), "shard{sp=1}", "sp 1: tokens are split over the ranks of tp"),
        (
            product(axes="(embed, mlp)"),
            "shard{tp=2, sp=1}",
            "sp 1: 'product' has no tokens that can be split",
        ),
        (product(), "stages{pp=2}", "has no repeated layers to split"),
        (product(), "route{skew=0.5}", "skew 0.5: program 'product' routes no tokens to experts"),
        (product(), "route{routing=chance}", "routing chance: program 'product' routes no tokens"),
    ],
)
def test_an_option_that_does_nothing_is_refused(program: Program, step: str, says: str) -> None:
    with pytest.raises(PassError) as error:
        llmir.run(program, step)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "step",
    [
        "quantize{weights=mxfp4}",
        "quantize{weights=fp32}",
        "quantize{weights=fp8, plan=(mlp:keep)}",
        "quantize{plan=(norm:fp32)}",
        "quantize{plan=(norm:tf32, norm:fp32)}",
    ],
)
def test_an_option_that_does_something_is_not(step: str) -> None:
    """Nor is one that does it a second time, or whose modules a plan keeps or says again."""
    once = llmir.run(product(), step)
    assert llmir.run(once, step) is once


@pytest.mark.parametrize(
    "step", ["dce", "fuse", "fuse-attention", "unroll", "route", "shard", "stages", "quantize"]
)
def test_a_pass_without_options_may_find_nothing_to_do(step: str) -> None:
    program = product()
    assert llmir.run(program, step) is program
