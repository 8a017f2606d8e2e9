"""Equations: roles, sizes, and where sharded results lie."""

from __future__ import annotations

import pytest

from llmir.base.errors import VerifyError
from llmir.ir.core.equation import equation
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import infer
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops import make
from llmir.ir.sizes.polynomial import B, T


def types(*texts: str) -> tuple[Tensor, ...]:
    return tuple(map(parse_tensor, texts))


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("b t h, h f -> b t f", {"b": "mapped", "h": "contracted", "f": "mapped"}),
        ("[v] h, b t -> b t h", {"v": "indexed", "h": "mapped", "b": "mapped"}),
        ("b t e! -> b t k", {"e": "contracted", "k": "new"}),
        ("b t~ d, w d -> b t d", {"t": "windowed", "w": "contracted"}),
        ("s h, [e] h f, s -> s f", {"s": "mapped", "e": "indexed", "h": "contracted"}),
    ],
)
def test_roles(text: str, roles: dict[str, str]) -> None:
    rule = equation(text)
    assert {axis: rule.role(axis) for axis in roles} == roles


def test_compound_dimensions() -> None:
    rule = equation("b t h, b t k -> (b t k) h")
    sizes = rule.sizes(types("bf16[B, T, 8]", "int32[B, T, 2]"))
    assert rule.results[0][0].size(sizes) == 2 * B * T
    grown = equation("b p d, b t d -> b (p+t) d")
    assert (
        grown.results[0][1].size(grown.sizes(types("bf16[B, C, 8]", "bf16[B, T, 8]")))
        == parse_tensor("bf16[C + T]").elements
    )


@pytest.mark.parametrize(
    ("operands", "rule"),
    [
        (("bf16[B, T, 8]", "bf16[7, 3]"), "axis 'h' is both 8 and 7"),
        (("bf16[B, T]", "bf16[8, 3]"), "an operand of 3 axes cannot be bf16[B, T]"),
        (("bf16[B, T, 8]",), "takes 2 operands, got 1"),
        (("bf16[B, T, 8@tp]", "bf16[8, 3]"), "axis 'h' has two different placements"),
        (("bf16[B@tp, T, 8]", "bf16[8, 3@tp]"), "two axes are split over one mesh axis"),
        (("bf16[B, T, 8]+tp", "bf16[8, 3]"), "needs the whole sum"),
    ],
)
def test_operands_that_do_not_fit(operands: tuple[str, ...], rule: str) -> None:
    with pytest.raises(VerifyError) as error:
        infer(make("linear", einsum="b t h, h f -> b t f"), types(*operands))
    assert rule in str(error.value)


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        # Megatron's column- and row-parallel linears, and a vocabulary-parallel embedding
        ({"einsum": "b t h, h f -> b t f"}, ("bf16[B, T, 8]", "bf16[8, 32@tp]"), "bf16[B, T, 32@tp]"),
        ({"einsum": "b t f, f h -> b t h"}, ("bf16[B, T, 32@tp]", "bf16[32@tp, 8]"), "bf16[B, T, 8]+tp"),
        ({}, ("bf16[64@tp, 8]", "int64[B, T]"), "bf16[B, T, 8]+tp"),
    ],
)
def test_sharding_follows_from_the_roles(op: dict[str, str], operands: tuple[str, ...], result: str) -> None:
    opcode = "linear" if op else "embedding"
    (found,) = infer(make(opcode, **op), types(*operands))
    assert str(found) == result


def test_a_norm_axis_stays_whole() -> None:
    with pytest.raises(VerifyError, match="axis 'h' must stay whole"):
        infer(make("rms_norm"), types("bf16[B, T, 8@tp]", "bf16[8@tp]"))


def test_local_shapes_divide_and_round_up() -> None:
    mesh = Mesh((("dp", 2), ("tp", 4)))
    tensor = parse_tensor("bf16[B@dp, T, 30@tp]")
    assert str(tensor.local(mesh)) == "bf16[ceildiv(B, 2), T, 8]"
    assert tensor.local(mesh).elements == 8 * tensor.local(mesh).shape[0] * T


@pytest.mark.parametrize("text", ["b t h", "a -> b -> c", "a, ?? -> a", "a ( b -> a"])
def test_bad_equations(text: str) -> None:
    with pytest.raises(VerifyError, match="equation"):
        equation(text)


@pytest.mark.parametrize(
    "text",
    [
        "bf16[B, T, 4096@tp]+tp",
        "fp8_e4m3[]",
        "int32[8*B*T]",
        "bf16[ceildiv(B, 2)@dp.tp, max(T, 3)]",
        "mxfp4[32]",
    ],
)
def test_types_round_trip(text: str) -> None:
    assert str(parse_tensor(text)) == text
