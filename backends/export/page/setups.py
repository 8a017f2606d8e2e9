"""Configurations of a page that computes: programs on devices with their graphs, descriptions and functions.

Order of the file: the layout of a phase's graph, with blocks that can be folded (`GraphLayouts`);
descriptions of ops (equation, symbolic cost, source of the kernel: `describe_rows`); and `Setup`,
`SetupTables` and `document`, which build the data of the page.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import networkx as nx

from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.cost.registry import model_source
from llmir.backends.cost.roofline import limits
from llmir.backends.cost.transfer import DIE, peak_key, rates
from llmir.backends.export.dot.labels import stage_name
from llmir.backends.export.dot.outline import LayerSection, StepOutline, outline
from llmir.backends.request.portable import PhaseFunctions, PortableRequests
from llmir.backends.step.facts import precision
from llmir.backends.step.report import Report
from llmir.backends.work.network import NetworkLimit
from llmir.backends.work.rows import AMOUNTS, BOUNDS, ROOFLINE, Row
from llmir.base.errors import InputError, LlmirError
from llmir.hw.device import Device
from llmir.ir.core.program import Instance, Program

from .functions import Functions, FunctionUses, Listing

# Layouts of graphs


class GraphLayouts:
    """The layouts that were added; programs with equal ops share one, because a layout does not depend on
    sizes.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self.all: list[Any] = []

    def add(self, phase: PhaseFunctions) -> int:
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
                _drawn_sections(outline(report, ""), {op.fixed["name"]: i for i, op in enumerate(phase.ops)})
            )
        return self._known[key]


def _drawn_sections(of: StepOutline, rows: dict[str, int]) -> dict[str, Any]:
    """Sections with their ops, and connections between boxes by position; each op lists the rows that it
    stands for.
    """
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
        for rank, boxes in enumerate(layer_boxes(own)):
            for column, box in enumerate(boxes):
                found[number]["ops"][box] |= {"rank": rank, "column": column, "columns": len(boxes)}
        found[number]["links"] = [list(edge) for edge in own.edges]
    return {"sections": found}


def layer_boxes(flow: nx.DiGraph) -> list[list[int]]:
    """The boxes, arranged in rows from top to bottom and from left to right.

    A box is one row below the lowest of the boxes that it depends on. If Graphviz's `dot` is installed, it
    determines the order in a row so that few connections cross; otherwise boxes are in schedule order.
    """
    rows = [sorted(row) for row in nx.topological_generations(flow)]
    across = _across(flow) if any(len(row) > 1 for row in rows) else {}
    return [sorted(row, key=lambda box: (across.get(box, 0.0), box)) for row in rows]


def _across(flow: nx.DiGraph) -> dict[int, float]:
    """The horizontal positions of the boxes, computed by `dot`; empty without `dot`."""
    lines = [*(f"n{node};" for node in flow.nodes), *(f"n{tail} -> n{head};" for tail, head in flow.edges)]
    try:
        command, text = ["dot", "-Tjson"], f"digraph {{ ordering=out; {' '.join(lines)} }}"
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=True)
        boxes = json.loads(done.stdout)["objects"]
        return {int(box["name"][1:]): float(box["pos"].partition(",")[0]) for box in boxes}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return {}


def _title(section: LayerSection) -> str:
    if section.prefix:
        return section.title
    blocks = list(dict.fromkeys(box.group for box in section.boxes))
    return " and ".join(blocks[:2]) + (" …" if len(blocks) > 2 else "")


def _count(section: LayerSection) -> int:
    return section.times // section.micro_batches if section.prefix else 1


def _ops(section: LayerSection, rows: dict[str, int]) -> list[dict[str, Any]]:
    paths = [f"{path}." if path else "" for path in section.folded] or [""]
    found = []
    for box in section.boxes:
        names = [f"{path}{box.name}" for path in paths] if section.prefix else [box.path]
        own = [rows[name] for name in names if name in rows] or [rows[box.cost.name]]
        found.append({"name": box.name, "rows": own, "note": box.note})
    return found


# Descriptions of ops


def describe_rows(phase: PhaseFunctions) -> list[dict[str, Any]]:
    """A description of each row, in order."""
    plan = phase.plan
    nodes = {at.path: at for at in plan.program.instances() if at.node.op.runs}
    return [
        _op(row, nodes[row.name], price, plan.program.mesh) | {"limits": _limits(plan.model.device, row)}
        for row, price in zip(plan.rows, plan.prices, strict=True)
    ]


def _op(row: Row, at: Instance, price: OpTime, mesh: Any) -> dict[str, Any]:
    types = at.graph.operand_types(at.node)
    rule = at.node.op.equation(types)
    operands = tuple(t.local(mesh) for t in types)
    sizes = dict(at.node.op.new_axes(operands))
    for term, operand in zip(rule.operands, operands, strict=True):
        sizes |= {d.axes[0]: n for d, n in zip(term, operand.shape, strict=True) if len(d.axes) == 1}
    names = rule.axes([*rule.operands, *rule.results])
    roles: dict[str, Any] = {}
    for role, size in row.reads:
        roles[f"read, {role}"] = roles.get(f"read, {role}", 0) + size
    for role, size in row.writes:
        roles[f"written, {role}"] = roles.get(f"written, {role}", 0) + size
    held = [price.held(i) for i in range(len(getattr(price, "prices", (price,))))]
    return {
        "op": at.node.op.opcode,
        "equation": str(rule),
        "axes": [[name, str(sizes.get(name, "?"))] for name in names],
        "unit": row.work.dtype.name,
        "matrix": str(row.work.matrix),
        "vector": str(row.work.vector),
        "moved": {role: str(size) for role, size in roles.items()},
        "kernels": [_origin(one) for one in held],
    }


def _limits(device: Device, row: Row) -> list[dict[str, Any]]:
    """The rates that bound an op, each with its source; links are omitted, because the route determines
    them.
    """
    return [
        {
            "bound": limit.bound,
            "what": limit.what,
            "rate": limit.rate,
            "key": limit.constant,
            "source": device.source(limit.constant) if device.sources else "not stated",
        }
        for limit in limits(device, row)
        if not isinstance(limit, NetworkLimit)
    ]


def _origin(price: OpTime) -> str:
    """The calibration of a kernel; empty for the roofline."""
    fit = getattr(getattr(price, "own", price), "fit", None)
    if fit is None:
        return ""
    calls = f"{fit.fitted.rows:,} calls" if fit.fitted.rows else "calls"
    engine = f", {fit.engine}" if fit.engine else ""
    return f"{fit.family}: fitted to {calls} on {fit.device.name}{engine}"


# Setups and their tables

DEVICE, SPLIT = "device", "split"
_SPLIT = ("tp", "pp", "micro_batches", "dp", "ep", "sp", "redundant_experts", "dispatch", "routing")
_MENUS = {
    "hw": DEVICE,
    **dict.fromkeys(_SPLIT, SPLIT),
    "kv": "KV cache",
    "cost": "times",
}
_SHORT = {"micro_batches": "micro-batches", "redundant_experts": "redundant experts"}


@dataclass(frozen=True)
class Setup:
    """A program on a device, and the values of its axes; an impossible one has only the reason, `why`.

    `passes` are the passes that produced the program, as in `run`; None if they are not known.
    `memory_utilization` is the usable share of memory; None for the engine's default.
    """

    values: Mapping[str, Any]
    program: Program | None = None
    model: DeviceCostModel | None = None
    why: str = ""
    passes: str | None = ""
    memory_utilization: float | None = None


def choices(setup: Setup, names: Mapping[str, str]) -> dict[str, str]:
    """The entries of a configuration in the page's menus; `names` are the names of devices."""
    found: dict[str, list[str]] = {}
    for axis, value in setup.values.items():
        found.setdefault(_MENUS.get(axis, axis), []).append(_choice(axis, value, names))
    return {menu: " · ".join(filter(None, words)) or "one device" for menu, words in found.items()}


def _choice(axis: str, value: Any, names: Mapping[str, str]) -> str:
    if axis == "hw":
        return names.get(str(value), str(value))
    if axis in _SPLIT:
        plain = axis != "tp" and value in (0, 1, None)
        return "" if plain else f"{_SHORT.get(axis, axis)} {value}"
    return "as it is" if value is None else str(value)


class SetupTables:
    """The data of configurations; equal tables are stored once, and `functions` contains their code."""

    def __init__(self, functions: Functions | Listing) -> None:
        self.functions, self.graphs = functions, GraphLayouts()
        self._tables: dict[str, int] = {}
        self.tables: list[Any] = []

    def setup(self, setup: Setup) -> dict[str, Any]:
        """One phase: its functions by name, its tables by index, and facts."""
        assert setup.program is not None
        assert setup.model is not None
        share = setup.memory_utilization
        code = PortableRequests(setup.program, setup.model, memory_utilization=share)
        program, model, job = setup.program, code.model, code.job
        device = model.device
        phases = {name: self._phase(phase, code) for name, phase in code.phases.items()}
        return {
            "why": "",
            "passes": setup.passes,
            "device": device.name,
            "devices": program.devices,
            "capacity": device.capacity_bytes,
            "cost": model.name,
            "whose": model_source(model),
            "engine": str(model.runs) if model.runs else None,
            "precision": {k: v for k, v in precision(program).items() if v},
            "parts": program.micro_batches,
            "dp": program.parallelism.dp,
            "budget": job.budget,
            "drafts": code.drafts,
            "positions": program.facts.get("positions"),
            "hostError": model.host_error,
            "prefix": [program.prefix(entry) for entry in program.entries],
            "reserves": self.functions.add(code.held),
            "counts": code.counted and self.functions.add(code.counted),
            "falls": code.falls,
            "limits": code.limits,
            "roofs": self._table(_roofs(code)),
            "rates": self._table(_rates(code, self.functions)),
            "sizes": code.sizes,
            "kin": code.kin and {**code.kin._asdict(), "others": None, "most": DIE},
            "notes": list(code.notes),
            "phases": phases,
        }

    def _phase(self, phase: PhaseFunctions, code: PortableRequests) -> dict[str, Any]:
        add = self.functions.add
        fixed = "name", "stage", "repeat"
        rows = [[*(op.fixed[key] for key in fixed), *op[1:]] for op in phase.ops]
        bases = (phase.bases(), *code.doubted(phase))
        return {
            "early": add(phase.early),
            "late": add(phase.late),
            "figures": add(phase.figures),
            "memory": add(phase.memory),
            "counts": phase.counts,
            "added": self._table(phase.added),
            "rows": self._table(rows),
            "bases": [self._table([[list(base) for base in one] for one in of]) for of in bases],
            "described": self._table(describe_rows(phase)),
            "graph": self.graphs.add(phase),
        }

    def _table(self, table: Any) -> int:
        key = repr(table)
        if key not in self._tables:
            self._tables[key] = len(self.tables)
            self.tables.append(table)
        return self._tables[key]


def _roofs(code: PortableRequests) -> dict[str, Any]:
    """The rates of the device: memory bandwidth, and matrix rates in the dtypes that are used."""
    device = code.model.device
    peaks: dict[str, tuple[float, str]] = {}
    for phase in code.phases.values():
        for row in phase.plan.rows:
            if row.work.matrix:
                peak, unit = device.matrix_peak(row.work.dtype.unit)
                peaks[unit] = peak, peak_key(device, unit)
    said = bool(device.sources)
    return {
        "memory": device.memory_Bps,
        "memoryKind": device.memory_kind or "memory",
        "memorySource": device.source("memory_Bps") if said else "not stated",
        "peaks": [[unit, *each] for unit, each in peaks.items()],
        "peakSource": device.source("matrix_flops") if said and peaks else "not stated",
    }


def _rates(code: PortableRequests, functions: FunctionUses) -> list[dict[str, Any]]:
    """The rates that the device's functions use; a link is the fastest one as long as its rate exceeds
    `least`.
    """
    device = code.model.device
    used = functions.uses(chain.from_iterable(phase.functions for phase in code.phases.values()))
    known = {rate.key: rate for rate in rates(device)}
    found = []
    for key in used:
        of, said = known[key], device.source(key) if device.sources else "not stated"
        least = 0.0
        if key.startswith("links"):
            own = device.links[key.split(".")[1]]
            share = own.among(2).Bps / own.Bps  # two ranks of a mesh communicate over one of its links
            others = (link.Bps for link in device.links.values() if link.Bps < of.value)
            least = min(max(others, default=0) / share, of.value)
        found.append(of._asdict() | {"source": said, "least": least})
    return found


def document(
    setups: Sequence[Setup], start: Mapping[str, int], version: str
) -> tuple[dict[str, Any], Functions]:
    """The data of the page, and its functions. `start` contains the positions of its sliders."""
    functions = Functions()
    tables = SetupTables(functions)
    names = {str(s.values["hw"]): s.model.device.name for s in setups if s.model and "hw" in s.values}
    made: list[dict[str, Any]] = []
    for setup in setups:
        try:
            own: dict[str, Any] = {"why": setup.why} if setup.why else tables.setup(setup)
        except LlmirError as error:
            own = {"why": str(error)}
        made.append(own)
        own["choices"] = choices(setup, names)
        own["values"] = {k: v for k, v in setup.values.items() if v is not None}
    program = next((s.program for s, own in zip(setups, made, strict=True) if not own["why"]), None)
    if program is None:
        raise InputError(f"report: no configuration is possible; the first reason is: {made[0]['why']}")
    return {
        "version": version,
        "model": program.name,
        "architecture": program.facts.get("architecture"),
        "parameters": program.parameters,
        "bounds": BOUNDS,
        "amounts": AMOUNTS,
        "roofline": str(ROOFLINE),
        "start": dict(start),
        "setups": made,
        "rates": list(functions.told),
        "tables": tables.tables,
        "graphs": tables.graphs.all,
    }, functions
