"""Peak memory equals a brute-force simulation of the flat schedule, always."""

from __future__ import annotations

from hypothesis import given, note, settings
from hypothesis import strategies as st

import llmir
from llmir.build import Builder
from llmir.dim import Binding
from llmir.graph import Graph, Program, Value
from llmir.ops import Source

from .strategies import LOGITS, PIPELINES, configs, points

TYPE = "bf16[B, T, 8]"


def simulate(graph: Graph, at: Binding) -> tuple[int, int]:
    """(resident, transient peak) by replaying the schedule with one buffer after another, by hand."""
    uses: dict[Value, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.operands:
            uses.setdefault(value, []).append(i)
    for value in graph.outputs:
        uses.setdefault(value, []).append(len(graph.nodes))

    buffers: list[set[Value]] = []  # the values that share each buffer
    sizes: list[int] = []
    resident: list[bool] = []

    def needed_after(buffer: set[Value], i: int) -> bool:
        return any(u > i for v in buffer for u in uses.get(v, []))

    later = Binding(**{**at.symbols, "C": at.symbols["C"] + at.symbols["T"]})
    peak = 0
    freed: set[int] = set()
    for i, node in enumerate(graph.nodes):
        source = isinstance(node.op, Source)
        for value, type in zip(node.values, node.results, strict=True):
            if node.op.opcode == "input" and value not in uses:
                continue  # nobody keeps what nothing needs
            slot = node.op.aliases.get(value.result)
            home = next(
                (n for n, b in enumerate(buffers) if slot is not None and node.operands[slot] in b), None
            )
            size = at(type.bytes)
            fits = home is not None and sizes[home] == size and not needed_after(buffers[home], i)
            if home is not None and resident[home]:
                buffers[home].add(value)
                sizes[home] = later(graph.origin(value).results[0].bytes)
                buffers.append({value})  # rows that are read now and that the cache does not keep
                sizes.append(size - sizes[home])
                resident.append(False)
            elif home is not None and fits:
                buffers[home].add(value)
            else:
                buffers.append({value})
                sizes.append(size)
                resident.append(source and node.op.opcode != "input")
        if not source:
            live = [n for n in range(len(buffers)) if not resident[n] and n not in freed]
            peak = max(peak, sum(sizes[n] for n in live))
            freed |= {n for n in live if not needed_after(buffers[n], i)}
    return sum(s for s, r in zip(sizes, resident, strict=True) if r), peak


@given(configs(), LOGITS, PIPELINES, points())
def test_models(config: dict[str, object], logits: str, pipeline: str, point: dict[str, int]) -> None:
    program = llmir.run(llmir.load(config, logits=logits), pipeline)
    report = llmir.analyze(program, "h100", **point)
    resident, transient = simulate(llmir.run(program, "unroll").graphs["main"], report.at)
    assert report.activation_peak_bytes == transient
    assert report.weight_bytes + report.kv_cache_bytes == resident
    assert report.peak_memory_bytes == resident + transient


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


@given(st.data(), points())
@settings(max_examples=300)
def test_any_program(data: st.DataObject, point: dict[str, int]) -> None:
    inner = data.draw(bodies("inner", 3, data.draw(st.integers(1, 2)), {}))
    outer = data.draw(bodies("outer", 3, data.draw(st.integers(1, 2)), {"inner": inner}))
    main = data.draw(bodies("main", data.draw(st.integers(2, 3)), 2, {"inner": inner, "outer": outer}))
    program = llmir.run(Program("random", {g.name: g for g in (main, outer, inner)}), "dce")
    flat = llmir.run(program, "unroll").graphs["main"]
    note(llmir.print_program(program))
    report = llmir.analyze(program, "h100", **point)
    resident, transient = simulate(flat, report.at)
    assert report.weight_bytes + report.kv_cache_bytes == resident
    assert report.activation_peak_bytes == transient
    held = report.peak.held
    assert sum(size for _, size in held) == transient
    assert llmir.parse_program(llmir.print_program(program)) == program
