"""Traits are enough: passes and backends treat an op of a class that they do not know by what it states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import llmir
from llmir.backends.interpret.program import interpret
from llmir.backends.step.facts import precision
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.dtype import DType, parse_dtype
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import OPS, Gemm, Loop, Op, Work, operand_gemm
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.tools.build import Builder
from tests.logits import same, weight

RULE = "b t h, e h f -> b t f"


@pytest.fixture(autouse=True)
def own_ops() -> Iterator[None]:
    """Two ops that are nobody's subclass, for the time of a test."""
    OPS["mean_product"], OPS["twice"] = MeanProduct, Twice
    yield
    del OPS["mean_product"], OPS["twice"]


@dataclass(frozen=True)
class MeanProduct(Op):
    """x times the sum of matrices, of which a token meets one in two (or so it says)."""

    kind = "gemm"
    to: str = ""

    @property
    def matrices(self) -> range:
        return range(1, 2)

    @property
    def active(self) -> Fraction:
        return Fraction(1, 2)

    def scale_roles(self, slot: int) -> str:
        return ("mmk", "kkn")[slot]

    def giving(self, to: DType, x: DType) -> Op:
        return replace(self, to="" if to == x else to.name)

    def equation(self, operands: Any) -> Equation:
        return equation(RULE)

    def dtypes(self, operands: Any) -> tuple[DType, ...]:
        return (parse_dtype(self.to) if self.to else operands[0].dtype,)

    def gemms(self, operands: Any) -> tuple[Gemm, ...]:
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)


MeanProduct.opcode = "mean_product"


@dataclass(frozen=True)
class Twice(Op):
    """Runs a graph twice."""

    kind = "elementwise"
    graph: str = ""

    @property
    def loop(self) -> Loop:
        return Loop(self.graph, 2, 1)

    def equation(self, operands: Any) -> Equation:
        return equation("b t h -> b t h")

    def work(self, operands: Any, results: Any, mesh: Any) -> Work:
        return Work(results[0].dtype, 0, 0, (0,), (0,))


Twice.opcode = "twice"


def program() -> Program:
    body = Builder("body")
    x = body.input("bf16[B, T, 8]", name="x", axes=("batch", "seq", "embed"))
    w = body.weight("bf16[4, 8, 8]", name="w", axes=("n", "embed", "mlp"), param="layer.{layer}.w")
    body.output(body.mean_product(x, w, name="product", block="mlp"))
    main = Builder("main")
    y = main.input("bf16[B, T, 8]", name="y", axes=("batch", "seq", "embed"))
    main.output(main.twice(y, graph="body", name="layer"))
    return llmir.run(Program("own", {"main": main.graph(), "body": body.graph()}), [])


def run(p: Program) -> Any:
    y = np.random.default_rng(3).normal(size=(2, 3, 8))
    (out,), _ = interpret(p, {"y": y}, weight)
    return out


def test_a_product_of_an_unknown_class_is_a_product() -> None:
    p = program()
    assert (p.parameters, p.active_parameters) == (2 * 4 * 8 * 8, 4 * 8 * 8)
    # Stored as [out, in], as products are.
    assert {name: t.shape for name, t in expected(p).items()} == dict.fromkeys(
        ("layer.0.w", "layer.1.w"), (8, 32)
    )
    narrow = llmir.run(p, "quantize{weights=fp8, activations=fp8}")
    types = {n.name: str(n.results[0]) for n in narrow["body"].nodes}
    assert types["w"] == "fp8_e4m3_c.kkn[4, 8, 8]"
    assert types["quantize_x"] == "fp8_e4m3_c.mmk[B, T, 8]"
    assert types["product"] == "bf16[B, T, 8]"
    assert precision(narrow)["activations"] == "fp8"
    wide = llmir.run(narrow, "quantize{weights=bf16, activations=bf16}")
    assert {n.op.opcode for n in wide["body"].nodes} == {"input", "weight", "mean_product"}


def test_a_loop_of_an_unknown_class_is_a_loop() -> None:
    p = program()
    assert p.depth("main") == 2
    assert {at.path: at.repeat for at in p.instances() if at.node.op.runs} == {"layer.product": 2}
    flat = llmir.run(p, "unroll")
    assert [n.name for n in flat["main"].nodes if n.op.runs] == ["layer.0.product", "layer.1.product"]
    assert same(run(p), run(flat))
    one, other = (llmir.analyze(q, "h100", batch=2, new=3) for q in (p, flat))
    assert (one.flops, one.peak_memory_bytes) == (other.flops, other.peak_memory_bytes)


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b"])
def test_the_facts_of_a_model_follow_from_traits(name: str) -> None:
    """Products multiply weights; what is neither weight nor activation grows with the context."""
    model = llmir.load(name)
    for at in model.instances():
        op, types = at.node.op, at.graph.operand_types(at.node)
        for slot in op.matrices:
            assert at.graph[at.node.operands[slot].node].op.role == "weight"
            assert len(op.scale_roles(slot)) == len(types[slot].shape)
        assert len(op.matrices) in (0, len(at.node.results))
        assert (op.role == "cache") == (op.source and "cached" in op.axes)
        assert bool(op.param) == (op.role == "weight")


def test_tensors_of_layers_are_named_by_the_op() -> None:
    source: Any = OPS["weight"](Tensor((2,), parse_dtype("bf16")), param="a.{layer}.b")
    assert source.numbered(7).param == "a.7.b"
    assert OPS["silu"]().numbered(7) == OPS["silu"]()
