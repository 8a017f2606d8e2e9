"""Peak memory equals a brute-force simulation of the flat schedule, always."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import llmir
from llmir.backends.memory.liveness import Lifetimes, LivenessPoint, RankMemory, stage_memories
from llmir.backends.memory.liveness import _iterations as iterations
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import B, T
from llmir.ir.tools.build import Builder
from tests.flat import records
from tests.naive_liveness import simulate
from tests.strategies import PIPELINES, configs, points

TYPE = "bf16[B, T, 8]"


@st.composite
def bodies(draw: st.DrawFn, name: str, inputs: int, carried: int, repeats: dict[str, Graph]) -> Graph:
    """Random ops over the values so far: some in place, some with two results, some repeats."""
    b = Builder(name)
    values = [b.input(TYPE, name=f"in{i}") for i in range(inputs)]
    weight = b.weight("bf16[8]", name="w")
    wide = b.weight("bf16[8, 24]", name="up")
    narrow = b.weight("bf16[24, 8]", name="down")
    for _ in range(draw(st.integers(1, 8))):
        pick = st.sampled_from(values)
        kind = draw(st.sampled_from(("add", "silu", "fused", "mlp", *repeats)))
        if kind == "add":
            values.append(b.add(draw(pick), draw(pick)))
        elif kind == "silu":
            values.append(b.silu(draw(pick)))
        elif kind == "fused":
            values += b.add_rms_norm(draw(pick), draw(pick), weight)
        elif kind == "mlp":
            up = b.silu(b.linear(draw(pick), wide, einsum="b t h, h f -> b t f"))
            values.append(b.linear(up, narrow, einsum="b t f, f h -> b t h"))
        else:
            body = repeats[kind]
            given = [draw(pick) for _ in body.inputs]
            found = b.repeat(*given, body=kind, times=draw(st.integers(1, 4)), carried=len(body.outputs))
            # All of what went round is needed after it, or else unrolling would leave dead code.
            values.append(found if len(body.outputs) == 1 else b.add(*found))
    # What goes round is needed in the next iteration, or else unrolling would leave dead code.
    needed = draw(st.permutations(values[:carried]))
    b.output(*(b.add(v, draw(st.sampled_from(values))) for v in needed))
    return b.graph()


def resolve(program: Program, path: str) -> tuple[Graph, Node]:
    """The op of a path through repeats."""
    graph = program["main"]
    *repeats, last = path.split(".")
    for name in repeats:
        loop = graph[name].op.loop
        assert loop
        graph = program[loop.body]
    return graph, graph[last]


def named(program: Program, name: str) -> Tensor:
    """The type of a value by the name that it has in reports."""
    path, _, result = name.partition("#")
    _, node = resolve(program, path)
    return node.results[int(result or 0)]


@pytest.mark.slow
@given(st.data(), points())
@settings(max_examples=300)
def test_any_program(data: st.DataObject, point: dict[str, int]) -> None:
    inner = data.draw(bodies("inner", 3, data.draw(st.integers(1, 2)), {}))
    outer = data.draw(bodies("outer", 3, data.draw(st.integers(1, 2)), {"inner": inner}))
    main = data.draw(bodies("main", data.draw(st.integers(2, 3)), 2, {"inner": inner, "outer": outer}))
    program = llmir.run(Program("random", {g.name: g for g in (main, outer, inner)}), "dce")
    flat = llmir.run(program, "unroll").graphs["main"]
    note(llmir.print_program(program))
    report = llmir.analyze(program, "h100", **records(llmir.analyze, **point))
    resident, transient = simulate(flat, report.at)
    assert report.weight_bytes + report.kv_cache_bytes == resident
    assert report.activation_peak_bytes == transient
    held = report.peak.held
    assert sum(size for _, size in held) == transient
    assert [size for _, size in held] == sorted((size for _, size in held), reverse=True)
    for name, size in held:
        assert size == report.at(named(program, name).bytes)
    assert resolve(program, report.peak.op)
    assert llmir.parse_program(llmir.print_program(program)) == program


@given(st.integers(1, 40))
def test_iterations_differ_at_both_ends(times: int) -> None:
    each = [(i == 0, i == times - 1) for i in range(times)]
    assert iterations(times) == list(dict.fromkeys(each))


def test_what_a_body_does_not_read_is_let_go_before_it() -> None:
    """And memory that nothing transient takes is 0."""

    def program(*, reads: bool) -> Program:
        b = Builder("layer")
        h, large = b.input("bf16[B, T, 8]", name="h"), b.input("bf16[B, T, 4096]", name="large")
        down = b.weight("bf16[4096, 8]", name="down")
        y = b.linear(large, down, einsum="b t f, f h -> b t h") if reads else h
        b.output(b.add(b.silu(h), y))
        main = Builder("main")
        x = main.input("bf16[B, T, 8]", name="x")
        up = main.weight("bf16[8, 4096]", name="up")
        main.output(main.repeat(x, main.linear(x, up, einsum="b t h, h f -> b t f"), body="layer", times=3))
        return Program("p", {"main": main.graph(), "layer": b.graph()})

    for reads in (True, False):
        [memory] = stage_memories(program(reads=reads))
        at = Binding(B=1, T=1, C=0)
        inside = {m.op: at(m.bytes) for m in memory.moments if "." in m.op}
        assert any(size > 8192 for size in inside.values()) == reads
    b = Builder("main")
    b.output(b.weight("bf16[8]", name="w"))
    [memory] = stage_memories(Program("p", {"main": b.graph()}))
    assert memory.transient(Binding()) == 0
    assert memory.peak(Binding()) == 16
    assert memory.fullest(Binding()).bytes == 0


@given(configs(), PIPELINES, st.lists(points(), min_size=1, max_size=4))
@settings(max_examples=20)
def test_the_fullest_of_a_grid_is_that_of_each_point(
    config: dict[str, object], pipeline: str, at: list[dict[str, int]]
) -> None:
    [memory] = stage_memories(llmir.run(llmir.load(config), pipeline))
    names = {"batch": "B", "new": "T", "context": "C"}
    grid = Binding(**{symbol: np.array([p[name] for p in at]) for name, symbol in names.items()})
    which = memory.fullest_index(grid)
    for i, point in enumerate(at):
        one = Binding(**{symbol: point[name] for name, symbol in names.items()})
        fullest = memory.fullest(one)
        assert memory.distinct[int(which[i])].op == fullest.op
        assert fullest.bytes == memory.transient(one) == max(one(m.bytes) for m in memory.moments)
        assert memory.transient(grid)[i] == fullest.bytes
        assert memory.peak(grid)[i] == memory.peak(one)
    check_distinct(memory)


def test_of_two_that_are_as_full_the_first_counts() -> None:
    moments = LivenessPoint("a", 2 * B * T, ()), LivenessPoint("b", 4 * B, ())
    memory = RankMemory(0, 0, Lifetimes(moments, tuple(moment.bytes for moment in moments)))
    assert memory.fullest_index(Binding(B=3, T=np.arange(1, 4), C=0)).tolist() == [1, 0, 0]
    assert [memory.fullest(Binding(B=3, T=t, C=0)).op for t in (1, 2, 3)] == ["b", "a", "a"]


def check_distinct(memory: RankMemory) -> None:
    """The first moment of each size, in the order of the schedule."""
    firsts = [m for i, m in enumerate(memory.moments) if m.bytes not in {x.bytes for x in memory.moments[:i]}]
    assert list(memory.distinct) == firsts


def test_moments_of_stages_are_called_as_their_ops() -> None:
    program = llmir.run(llmir.load("qwen3-0.6b"), "stages{pp=2},fuse-attention,fuse")
    names = {op.name for op in llmir.analyze(program, "h100", batch=1, new=4).ops}
    for memory in stage_memories(program):
        assert {m.op for m in memory.moments} <= names


def agrees(program: Program) -> None:
    """Rolled as flat, by hand."""
    report = llmir.analyze(program, "h100", batch=2, new=3)
    _, transient = simulate(llmir.run(program, "unroll").graphs["main"], report.at)
    assert report.activation_peak_bytes == transient


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("needed_after", [True, False])
def test_what_a_body_reads_first_makes_room_in_its_last_iteration_only(
    times: int, needed_after: bool
) -> None:
    b = Builder("layer")
    h, large = b.input(TYPE, name="h"), b.input("bf16[B, T, 512]", name="large")
    down, up = b.weight("bf16[512, 8]", name="down"), b.weight("bf16[8, 400]", name="up")
    back = b.weight("bf16[400, 8]", name="back")
    read = b.add(h, b.linear(large, down, einsum="b t f, f h -> b t h"))
    wide = b.silu(b.linear(read, up, einsum="b t h, h f -> b t f"))
    b.output(b.linear(wide, back, einsum="b t f, f h -> b t h"))
    main = Builder("main")
    x = main.input(TYPE, name="x")
    first = main.weight("bf16[8, 512]", name="first")
    given = main.linear(x, first, einsum="b t h, h f -> b t f")
    out = main.repeat(x, given, body="layer", times=times)
    if needed_after:
        last = main.weight("bf16[512, 8]", name="last")
        out = main.add(out, main.linear(given, last, einsum="b t f, f h -> b t h"))
    main.output(out)
    agrees(Program("p", {"main": main.graph(), "layer": b.graph()}))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_one_value_that_a_body_gives_twice_is_held_once(times: int) -> None:
    b = Builder("layer")
    s = b.silu(b.add(b.input(TYPE, name="x"), b.input(TYPE, name="y")))
    b.output(s, s)
    main = Builder("main")
    x = main.input(TYPE, name="x")
    one, other = main.repeat(x, main.silu(x), body="layer", times=times, carried=2)
    main.output(main.add(main.silu(one), main.silu(other)))
    agrees(Program("p", {"main": main.graph(), "layer": b.graph()}))
