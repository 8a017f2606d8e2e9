"""Peak memory of a graph by replaying its schedule, one buffer at a time."""

from __future__ import annotations

from llmir.ir.core.graph import Graph, Value
from llmir.ir.ops.sources import Source
from llmir.ir.sizes.binding import Binding


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
    named: set[str] = set()
    for i, node in enumerate(graph.nodes):
        source = isinstance(node.op, Source)
        if node.op.param in named:
            continue  # a tensor that is there already
        named |= {node.op.param} - {""}
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
            types = graph.operand_types(node)
            peak = max(peak, sum(sizes[n] for n in live) + at(node.op.workspace(types, node.results)))
            freed |= {n for n in live if not needed_after(buffers[n], i)}
    return sum(s for s, r in zip(sizes, resident, strict=True) if r), peak
