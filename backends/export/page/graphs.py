"""The graph of a phase as the page draws it: blocks that fold, ops in rows from top to bottom, and links."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import networkx as nx

from llmir.backends.export.dot.outline import Outline, outline
from llmir.backends.export.dot.sections import Section
from llmir.backends.export.dot.sums import stage_name
from llmir.backends.request.portable import Phase
from llmir.backends.step.report import Report


class Graphs:
    """Those that were added; programs of the same ops have one, as its layout depends on no number."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self.all: list[Any] = []

    def add(self, phase: Phase) -> int:
        """The number of a phase's graph."""
        plan = phase.plan
        program = plan.program
        loops = tuple((i.path, i.repeat, i.node.op.opcode, i.node.operands) for i in program.instances())
        key = program.entries, program.micro_batches, loops
        if key not in self._known:
            parts = program.micro_batches
            at: dict[str, Any] = {"batch": parts, "new": 1 if phase.name == "decode" else 2, "context": 0}
            report = Report(program, plan.model.device, **at, model=plan.model, phase=phase.name)
            self._known[key] = len(self.all)
            self.all.append(
                _drawn(outline(report, ""), {op.fixed["name"]: i for i, op in enumerate(phase.ops)})
            )
        return self._known[key]


def _drawn(of: Outline, rows: dict[str, int]) -> dict[str, Any]:
    """Sections with their ops, each by the rows that it stands for, and links between boxes by place."""
    several = len(of.report.stages) > 1
    stages = {
        section.id: f", {stage_name(stage)}" for stage in of.stages if several for section in stage.sections
    }
    sections = [section for section in of.sections if section.boxes[0].op]
    places: dict[str, tuple[int, int]] = {}
    found: list[dict[str, Any]] = []
    for number, section in enumerate(sections):
        places |= {box.id: (number, i) for i, box in enumerate(section.boxes)}
        more = {"count": _count(section), "where": stages.get(section.id, ""), "ops": _ops(section, rows)}
        found.append({"title": _title(section), **more})
    for number, section in enumerate(sections):
        own = nx.DiGraph()
        own.add_nodes_from(range(len(section.boxes)))
        own.add_edges_from(
            (places[link.tail][1], places[link.head][1])
            for link in of.links
            if link.tail in places
            and link.head in places
            and places[link.tail][0] == places[link.head][0] == number
        )
        for rank, boxes in enumerate(layered(own)):
            for column, box in enumerate(boxes):
                found[number]["ops"][box] |= {"rank": rank, "column": column, "columns": len(boxes)}
        found[number]["links"] = [list(edge) for edge in own.edges]
    return {"sections": found}


def layered(flow: nx.DiGraph) -> list[list[int]]:
    """The boxes in rows from top to bottom, each from left to right.

    A box is one row below the last of those that lead to it. Rows are ordered as Graphviz's `dot` does where
    it is there, so that few links cross, else by their numbers, which are those of the schedule.
    """
    rows = [sorted(row) for row in nx.topological_generations(flow)]
    across = _across(flow) if any(len(row) > 1 for row in rows) else {}
    return [sorted(row, key=lambda box: (across.get(box, 0.0), box)) for row in rows]


def _across(flow: nx.DiGraph) -> dict[int, float]:
    """How far right `dot` puts each box; nothing without it."""
    lines = [*(f"n{node};" for node in flow.nodes), *(f"n{tail} -> n{head};" for tail, head in flow.edges)]
    try:
        command, text = ["dot", "-Tjson"], f"digraph {{ ordering=out; {' '.join(lines)} }}"
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=True)
        boxes = json.loads(done.stdout)["objects"]
        return {int(box["name"][1:]): float(box["pos"].partition(",")[0]) for box in boxes}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return {}


def _title(section: Section) -> str:
    if section.prefix:
        return section.title
    blocks = list(dict.fromkeys(box.group for box in section.boxes))
    return " and ".join(blocks[:2]) + (" …" if len(blocks) > 2 else "")


def _count(section: Section) -> int:
    return section.times // section.micro_batches if section.prefix else 1


def _ops(section: Section, rows: dict[str, int]) -> list[dict[str, Any]]:
    paths = [f"{path}." if path else "" for path in section.folded] or [""]
    found = []
    for box in section.boxes:
        names = [f"{path}{box.name}" for path in paths] if section.prefix else [box.path]
        own = [rows[name] for name in names if name in rows] or [rows[box.cost.name]]
        found.append({"name": box.name, "rows": own, "note": box.note})
    return found
