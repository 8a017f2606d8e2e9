"""Ops are methods of a Builder that editors see, and an axis is summed only where that is said."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import VerifyError
from llmir.ir.core.equation import equation
from llmir.ir.core.op import OPS, Op, RankGroup
from llmir.ir.ops import make

OWN = [name for name, kind in OPS.items() if kind.__module__.startswith("llmir.ir.ops.") and not kind.source]


@pytest.mark.parametrize("opcode", OWN)
def test_each_op_is_a_method_with_its_operands_attributes_and_docstring(opcode: str) -> None:
    kind = OPS[opcode]
    method = vars(llmir.Builder.__mro__[1])[opcode]
    assert opcode in dir(llmir.Builder())
    parameters = inspect.signature(method).parameters
    assert [p for p in parameters if p != "self"] == [
        *(name.lstrip("*") for name in kind.takes),
        *(f.name for f in fields(kind) if f.name != "block"),
        "name",
        "block",
    ]
    for f in fields(kind):
        if f.name != "block":
            needed = f.default is MISSING
            assert parameters[f.name].default == (inspect.Parameter.empty if needed else f.default)
    assert (kind.__doc__ or "").splitlines()[0] in " ".join((inspect.getdoc(method) or "").split())


@pytest.mark.parametrize("opcode", [name for name in OWN if OPS[name].rule])
def test_an_op_names_as_many_operands_as_its_equation_has(opcode: str) -> None:
    kind = OPS[opcode]
    needed = [name for name in kind.takes if not name.startswith("*")]
    assert len(needed) == len(equation(kind.rule.replace("*", "")).operands)


def test_an_op_of_a_class_that_no_script_knew_is_a_method_too() -> None:
    class Halve(Op):
        """x / 2."""

        opcode = "halve"
        kind = "elementwise"
        rule = "* -> *"
        vector_flops = 1

    try:
        b = llmir.Builder()
        b.output(b.halve(b.input("bf16[B, 4]", name="x"), name="half"))
        assert b.graph()["half"].op == Halve()
    finally:
        del OPS["halve"]
    with pytest.raises(AttributeError, match="no op or method 'halve'"):
        _ = llmir.Builder().halve


def linear(x: str, w: str, einsum: str) -> llmir.Program:
    b = llmir.Builder()
    b.output(b.linear(b.input(x, name="x"), b.weight(w, name="w"), einsum=einsum))
    return llmir.Program("product", {"main": b.graph()})


@pytest.mark.parametrize(
    ("x", "w", "einsum", "axis"),
    [
        ("bf16[B, T, 8]", "bf16[8, 32]", "b t h, k f -> b t f", "h"),
        ("bf16[B, T, 8, 2]", "bf16[8, 32]", "b t h k, h f -> b t f", "k"),
        ("bf16[B, T, 8]", "bf16[8, 32, 2]", "b t h, h f k -> b t f", "k"),
    ],
)
def test_an_axis_of_one_operand_alone_is_an_error_unless_it_is_said_to_be_summed(
    x: str, w: str, einsum: str, axis: str
) -> None:
    with pytest.raises(VerifyError, match=rf"axis '{axis}' is in one operand alone .*\+{axis} says"):
        linear(x, w, einsum)


def test_an_axis_that_is_said_to_be_summed_is() -> None:
    program = linear("bf16[B, T, 8, 2]", "bf16[8, 3]", "b t h +k, h f -> b t f")
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 8, 2)), rng.normal(size=(8, 3))
    (out,), _ = interpret(program, {"x": x}, lambda name, type: w)
    assert np.allclose(out, x.sum(axis=-1) @ w, rtol=1e-2)  # the weight is rounded to bf16
    assert llmir.parse_program(str(program)) == program
    with pytest.raises(VerifyError, match="axis 'f' is in a result, so it is not summed"):
        linear("bf16[B, T, 8]", "bf16[8, 3]", "b t h, h +f -> b t f")


def test_a_merged_projection_sums_nothing_that_one_of_its_products_lacks() -> None:
    b = llmir.Builder()
    x, up = b.input("bf16[B, T, 8]", name="x"), b.weight("bf16[8, 3]", name="up")
    stray = b.weight("bf16[5, 3]", name="stray")
    with pytest.raises(VerifyError, match="in one operand alone"):
        b.linear(x, up, stray, einsum="b t h, h f, k g -> b t f, b t g")


def test_an_op_that_joins_no_ranks_says_so() -> None:
    with pytest.raises(VerifyError, match="silu joins no ranks"):
        make("silu").meet([], 0, RankGroup(0))
