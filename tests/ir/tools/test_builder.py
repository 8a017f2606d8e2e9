"""Ops are methods of a Builder that editors see, and an axis is summed only where that is said."""

from __future__ import annotations

import inspect
import runpy
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import VerifyError
from llmir.ir.core.equation import equation
from llmir.ir.core.graph import Node, Value
from llmir.ir.core.op import OPS, Op, RankGroup
from llmir.ir.core.tensor import parse_tensor
from llmir.ir.ops import make
from llmir.ir.tools import build
from llmir.ir.tools.build import Builder, Operands, Replacement

STUB = Path(build.__file__).with_name("op_methods.pyi")
METHODS = vars(runpy.run_path(str(STUB))["OpMethods"])  # as type checkers read them
OWN = [name for name, kind in OPS.items() if kind.__module__.startswith("llmir.ir.ops.") and not kind.source]


@pytest.mark.parametrize("opcode", OWN)
def test_each_op_is_a_method_with_its_operands_attributes_and_docstring(opcode: str) -> None:
    kind = OPS[opcode]
    method = METHODS[opcode]
    assert opcode in dir(llmir.Builder())
    assert getattr(llmir.Builder(), opcode).__doc__ == kind.__doc__
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


def chain() -> llmir.Builder:
    """%x → %silu → %gelu → %add of both."""
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x", axes=("batch", "seq", "embed"))
    first = b.silu(x)
    b.output(b.add(first, b.gelu(first)), first)
    return b


def test_a_graph_that_is_rebuilt_without_changes_is_the_same() -> None:
    for program in (llmir.load("qwen3-30b-a3b"), llmir.run(llmir.load("llama3.1-8b"), "unroll")):
        for graph in program.graphs.values():
            copied = Builder.rebuild(graph, lambda *_: None)
            assert copied == graph
            assert all(new is old for new, old in zip(copied.nodes, graph.nodes, strict=True))


def test_types_of_a_rebuilt_graph_follow_from_its_sources() -> None:
    def widened(b: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        return b.apply(node.op.typed(parse_tensor("fp32[B, T, 8]"))) if node.op.source else None

    copied = Builder.rebuild(chain().graph(), widened, into=Builder("wide"))
    assert copied.name == "wide"
    assert {str(node.results[0]) for node in copied.nodes} == {"fp32[B, T, 8]"}
    assert copied.sources[0].op.axes == ("batch", "seq", "embed")


def test_a_replacement_is_built_where_it_is_first_taken_and_once() -> None:
    built: list[str] = []

    def later(b: Builder, node: Node, operands: Operands) -> list[Replacement] | None:
        if node.name != "silu":
            return None
        x = operands[0]

        def build() -> Value:
            built.append("silu")
            return b.apply(node.op, x, name="later")[0]

        return [build]

    copied = Builder.rebuild(chain().graph(), later)
    assert (built, [node.name for node in copied.nodes]) == (["silu"], ["x", "later", "gelu", "add"])
    assert [str(v) for v in copied.outputs] == ["%add", "%later"]
    only = Builder.rebuild(chain().graph(), later, lambda b, values: values[:0])
    assert only.outputs == ()


def test_a_node_can_be_dropped_and_outputs_chosen() -> None:
    def dropped(b: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
        return operands[:1] if node.name == "silu" else None

    def more(b: Builder, values: Operands) -> tuple[Value, ...]:
        return (*values, b.silu(values[0], name="add"))

    copied = Builder.rebuild(chain().graph(), dropped, more)
    assert [node.name for node in copied.nodes] == ["x", "gelu", "add", "add_2"]
    assert [str(v) for v in copied.outputs] == ["%add", "%x", "%add_2"]


def test_attributes_are_those_of_the_class_that_an_op_is_of() -> None:
    (node,) = (n for n in chain().graph().nodes if n.name == "silu")
    assert node.op_as(type(make("silu"))) is node.op
    with pytest.raises(VerifyError, match="%silu is of silu, expected gelu"):
        node.op_as(type(make("gelu")))


@pytest.mark.parametrize("names", [("a", "b"), ("up_proj", "gate_proj")])
def test_names_of_ops_decide_no_fusion(names: tuple[str, str]) -> None:
    """Products of an MLP merge as gate and up, whatever they are called."""
    b = llmir.Builder()
    x = b.input("bf16[B, T, 8]", name="x")
    with b.block("mlp"):
        w = [b.weight("bf16[8, 32]", name=f"{name}.w") for name in names]
        gate, up = (
            b.linear(x, v, einsum="b t h, h f -> b t f", name=n) for v, n in zip(w, names, strict=True)
        )
        b.output(b.mul(b.silu(gate), up))
    fused = llmir.run(llmir.Program("named", {"main": b.graph()}), "fuse")
    assert [n.name for n in fused["main"].nodes if n.operands] == ["gate_up_proj", "silu_mul"]
