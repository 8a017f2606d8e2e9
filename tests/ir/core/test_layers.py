"""Layers are numbered once: as run, unrolled, staged, in a checkpoint, and in what a program lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.interpret.program import interpret
from llmir.base.errors import VerifyError
from llmir.base.names import layer_name
from llmir.frontends.checkpoints.weights import expected
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor, parse_tensor
from llmir.ir.ops.region import Repeat
from llmir.ir.tools.build import Builder
from tests.figures import close, figures
from tests.flat import records
from tests.logits import same, weight
from tests.naive_liveness import simulate

TYPE = "fp32[B, T, 4]"
LISTED = ".".join(map(str, reversed(range(200))))  # all layers that there can be, in another order
SIZES = {"h": 4, "g": 1, "r": 1, "d": 2, "f": 4}


def product(b: Builder, x: Value, einsum: str, param: str) -> Value:
    """x times a weight, whose name in the checkpoint may have a `{layer}`."""
    term = einsum.partition("->")[0].split(",")[1].split()
    type = f"fp32[{', '.join(str(SIZES[a]) for a in term)}]"
    w = b.weight(type, name=f"w{len(b.nodes)}", axes=tuple(term), param=param)
    y: Value = b.linear(x, w, einsum=einsum)
    return y


def attention(b: Builder, x: Value, name: str) -> Value:
    """Attention with caches of its own."""
    param = f"{name}.{{layer}}."
    q = product(b, x, "b t h, h g r d -> b t g r d", param + "q")
    k, v = (product(b, x, "b t h, h g d -> b t g d", param + p) for p in "kv")
    axes = ("batch", "cached", "kv_heads", "head_dim")
    caches = [b.cache("fp32[B, C, 1, 2]", name=f"{p}_cache", axes=axes) for p in "kv"]
    keys, values = (b.append(c, rows) for c, rows in zip(caches, (k, v), strict=True))
    mixed = b.flash_attention(q, keys, values, mask="causal")
    return product(b, mixed, "b t g r d, g r d h -> b t h", param + "o")


def outputs(draw: st.DrawFn, b: Builder, values: list[Value], carried: int, handed: int) -> Graph:
    """The graph, which gives back sums of what it was given and what it has computed, and hands out more."""
    others = [draw(st.sampled_from(values)) for _ in range(carried - 1)]
    back = [b.add(v, w) for v, w in zip(values[:carried], [values[-1], *others], strict=True)]
    b.output(*back, *(b.scale(draw(st.sampled_from(values)), factor=0.5) for _ in range(handed)))
    return b.graph()


@st.composite
def leaves(draw: st.DrawFn, name: str) -> Graph:
    """A layer: products with weights of its own (some shared, some without a name), and maybe caches."""
    b = Builder(name)
    carried, captured = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    values = [b.input(TYPE, name=f"in{i}", axes=("batch", "seq", "embed")) for i in range(carried + captured)]
    own = f"{name}.{{layer}}.up", f"{name}.{{layer:{LISTED}}}.up"
    param = draw(st.sampled_from((*own, f"{name}.shared", "")))
    values.append(product(b, b.silu(draw(st.sampled_from(values))), "b t h, h f -> b t f", param))
    if draw(st.booleans()):
        values.append(attention(b, draw(st.sampled_from(values)), name))
    return outputs(draw, b, values, carried, draw(st.integers(0, 1)))


@st.composite
def periods(draw: st.DrawFn, name: str, inner: Sequence[Graph]) -> Graph:
    """A body of repeats, maybe with weights of its own between them."""
    b = Builder(name)
    carried, captured = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    values = [b.input(TYPE, name=f"in{i}", axes=("batch", "seq", "embed")) for i in range(carried + captured)]
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            x = draw(st.sampled_from(values))
            values.append(product(b, x, "b t h, h f -> b t f", f"{name}.{{layer}}.w{len(values)}"))
        body = draw(st.sampled_from(inner))
        given = [draw(st.sampled_from(values)) for _ in body.inputs]
        times, handed = draw(st.integers(1, 3)), sum("scale" in v.node for v in body.outputs)
        how: dict[str, Any] = {"carried": len(body.outputs) - handed, "gives": (parse_tensor(TYPE),) * handed}
        found = b.repeat(*given, body=body.name, times=times, name=f"{body.name}{len(values)}", **how)
        # All of what it gives is needed after it, or else unrolling would leave dead code.
        found = [found] if len(body.outputs) == 1 else found
        values.append(reduce(b.add, found))
    return outputs(draw, b, values, carried, draw(st.integers(0, 1)) if name != "main" else 0)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Repeats within repeats, several of each kind."""
    bodies: list[Graph] = [draw(leaves(f"leaf{i}")) for i in range(draw(st.integers(1, 2)))]
    for level in range(draw(st.integers(0, 2))):
        bodies.append(draw(periods(f"period{level}", bodies)))
    main = draw(periods("main", bodies))
    return llmir.run(Program("nested", {g.name: g for g in (main, *bodies)}), "dce")


@st.composite
def cut(draw: st.DrawFn, layers: int) -> str:
    """A `stages` pass of any sizes."""
    ends = sorted(draw(st.permutations(range(1, layers)))[: draw(st.integers(1, 4))])
    return f"stages{{layers=({', '.join(str(b - a) for a, b in pairwise([0, *ends, layers]))},)}}"


def counted(program: Program) -> Iterator[tuple[str, bool]]:
    """Each weight, and whether a checkpoint has it, by counting: a run without repeats is the next layer."""
    done = 0

    def run(graph: Graph, path: str) -> Iterator[tuple[str, bool]]:
        nonlocal done
        inner = [n for n in graph.nodes if isinstance(n.op, Repeat)]
        for node in graph.nodes:
            if node.op.opcode == "weight":
                param = getattr(node.op, "param", "")
                yield layer_name(param, done) or f"{path}{node.name}", bool(param)
        for node in inner:
            op: Any = node.op
            for _ in range(op.times):
                yield from run(program[op.body], f"{path}{node.name}.{done}.")
        done += not inner

    yield from run(program["main"], "")


def played(program: Program, *pieces: int) -> tuple[list[Any], list[str], dict[str, Any]]:
    """Outputs of the last of some steps, the weights that it asked for, and the caches after it."""
    names: list[str] = []
    caches: dict[str, Any] = {}
    out: list[Any] = []
    rng = np.random.default_rng(7)
    inputs = {f"in{i}": rng.normal(size=(2, sum(pieces), 4)) for i in range(3)}
    start = 0

    def given(name: str, type: Tensor) -> Any:
        names.append(name)
        return weight(name, type)

    for size in pieces:
        names.clear()
        step = {name: x[:, start : start + size] for name, x in inputs.items()}
        out, caches = interpret(program, step, given, caches, context=start)
        start += size
    return out, sorted(names), caches


@pytest.mark.slow
@given(programs(), st.data())
@settings(deadline=None, max_examples=150)
def test_nested_repeats_run_alike_in_every_form(program: Program, data: st.DataObject) -> None:
    note(llmir.print_program(program))
    truth = list(counted(program))
    out, names, caches = played(program, 2, 1)
    assert names == sorted(name for name, _ in truth)
    assert set(expected(program)) == {name for name, stored in truth if stored}
    staged = data.draw(cut(program.depth("main")))
    for passes in ("unroll", staged, f"{staged},unroll"):
        again, asked, held = played(llmir.run(program, passes), 2, 1)
        assert all(map(same, out, again))
        # A weight of the entry that two stages use lies on both.
        assert sorted(set(asked)) == sorted(set(names)) if "stages" in passes else asked == names
        assert held.keys() == caches.keys()
        assert all(same(held[path][0], caches[path][0]) for path in caches)


@pytest.mark.slow
@given(programs(), st.integers(1, 5), st.integers(1, 9), st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_nested_repeats_cost_alike_in_every_form(
    program: Program, batch: int, new: int, context: int
) -> None:
    point = {"batch": batch, "new": new, "context": context}
    flat = llmir.run(program, "unroll")
    one, other = (llmir.analyze(p, "h100", **records(llmir.analyze, **point)) for p in (program, flat))
    assert close(figures(one), figures(other))
    assert flat.parameters == program.parameters
    assert flat.kv_cache_bytes_per_token == program.kv_cache_bytes_per_token
    resident, transient = simulate(flat["main"], one.at)
    assert one.weight_bytes + one.kv_cache_bytes == resident
    assert one.activation_peak_bytes == transient


GEMMA = """
program "gemma"
graph @main {
  %x = input() : bf16[B, T, 8]
  %lead = repeat(%x) {body=local, times=2} : bf16[B, T, 8]
  %period = repeat(%lead) {body=period, times=3} : bf16[B, T, 8]
  %tail = repeat(%period) {body=local, times=1} : bf16[B, T, 8]
  return %tail
}
graph @period {
  %y = input() : bf16[B, T, 8]
  %local = repeat(%y) {body=local, times=5} : bf16[B, T, 8]
  %global = repeat(%local) {body=global, times=1} : bf16[B, T, 8]
  return %global
}
graph @local {
  %z = input() : bf16[B, T, 8]
  %w = weight() {axes=(mlp, embed), param="layers.{layer}.local"} : bf16[8, 8]
  %l = linear(%z, %w) {einsum="b t h, f h -> b t f"} : bf16[B, T, 8]
  return %l
}
graph @global {
  %z = input() : bf16[B, T, 8]
  %w = weight() {axes=(mlp, embed), param="layers.{layer}.global"} : bf16[8, 8]
  %l = linear(%z, %w) {einsum="b t h, f h -> b t f"} : bf16[B, T, 8]
  return %l
}
"""


def test_a_period_counts_on_from_the_layers_before_it() -> None:
    """Five local layers and a global one, as Gemma has them: the global ones are every sixth."""
    program = llmir.run(llmir.parse_program(GEMMA), [])
    assert program.depth("main") == 21
    layers = {at.path: at.layers for at in program.instances() if at.node.name == "w"}
    assert {path: list(found) for path, found in layers.items()} == {
        "lead.w": [0, 1],
        "period.local.w": [2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18],
        "period.global.w": [7, 13, 19],
        "tail.w": [20],
    }
    assert str(layers["period.local.w"]) == "layers 2–6, 8–12, 14–18"
    names = {f"layers.{i}.{'global' if i in (7, 13, 19) else 'local'}" for i in range(21)}
    assert set(expected(program)) == names


def test_a_stage_that_ends_within_a_period_writes_that_one_out() -> None:
    program = llmir.run(llmir.parse_program(GEMMA), "stages{layers=(10, 11)}")
    repeats = {
        entry: {
            n.name: (n.op.body, n.op.times, n.op.first)
            for n in program[entry].nodes
            if isinstance(n.op, Repeat)
        }
        for entry in program.entries
    }
    assert repeats == {
        "stage0": {
            "lead": ("local", 2, None),
            "period": ("period", 1, None),
            "period.8.local": ("local", 2, None),
        },
        "stage1": {
            "period.8.local": ("local", 3, 10),
            "period.8.global": ("global", 1, None),
            "period": ("period", 1, None),
            "tail": ("local", 1, None),
        },
    }
    assert llmir.parse_program(llmir.print_program(program)) == program


def test_a_first_layer_that_is_stated_counts_from_where_its_graph_begins() -> None:
    text = GEMMA.replace("times=3}", "times=3, first=10}").replace(
        "times=1} : bf16[B, T, 8]\n  return %global", "times=1, first=5} : bf16[B, T, 8]\n  return %global"
    )
    program = llmir.run(llmir.parse_program(text), [])
    layers = {at.path: list(at.layers) for at in program.instances() if at.node.name == "w"}
    assert layers["period.global.w"] == [15, 21, 27]
    assert layers["tail.w"] == [28]
    with pytest.raises(VerifyError, match="first=-1"):
        Repeat("local", 1, first=-1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), max_size=3))
def test_layers_are_what_the_loops_count(loops: list[tuple[int, int, int]]) -> None:
    """Innermost first, each as (layers before it, times, layers after it) in an iteration of the next."""
    found, numbers, size, nest = Layers(), [0], 1, []
    for before, times, after in loops:
        nest.append((before, times, size))
        numbers = [before + i * size + n for i in range(times) for n in numbers]
        size = before + times * size + after
    for loop in reversed(nest):
        found = found.inside(*loop)
    assert list(found) == numbers
    assert found.count == len(numbers)
