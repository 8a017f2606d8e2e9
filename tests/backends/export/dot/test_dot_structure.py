"""What pictures are made of: each op once, what flows with its bytes, totals that add up, no overlaps."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

import llmir
from llmir.backends.compare.diff import Change, StepDiff, WorkloadDiff, fold_changes
from llmir.backends.export import units
from llmir.backends.export.dot.columns import panel_lines
from llmir.backends.export.dot.labels import step_terms
from llmir.backends.export.dot.outline import outline
from llmir.backends.export.dot.render import LEVELS
from llmir.cli.main import cli
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from tests.flat import records

from .test_dot import SVG, job, needs_dot

FUSED = llmir.pipeline_of()
CASES = {
    "dense": ("llama3.1-8b", FUSED),
    "eager": ("llama3.1-8b", "dce"),
    "experts": ("qwen3-30b-a3b", f"{FUSED},shard{{tp=2}}"),
    "latent": ("deepseek-v3", f"quantize{{weights=fp8}},{FUSED},shard{{tp=8, ep=8}}"),
    "period": ("gemma-3-12b", FUSED),
    "stages": ("llama3.1-70b", f"{FUSED},stages{{pp=4, micro_batches=4}}"),
    "uneven": ("llama3.1-8b", f"{FUSED},stages{{layers=(1, 31), micro_batches=2}},shard{{tp=2}}"),
}
WIDEST = 960.0  # points, of which 860 pixels make letters of 9 points 8 pixels high


class Area(NamedTuple):
    """A rectangle, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def apart(self, other: Area) -> bool:
        """Whether they share no more than a border."""
        gap = 0.05
        across = self.right <= other.left + gap or other.right <= self.left + gap
        return across or self.top <= other.bottom + gap or other.top <= self.bottom + gap

    def within(self, other: Area) -> bool:
        """Whether the other holds it."""
        across = self.left >= other.left - 0.05 and self.right <= other.right + 0.05
        return across and self.bottom >= other.bottom - 0.05 and self.top <= other.top + 0.05


class Drawn(NamedTuple):
    """A picture as Graphviz reads it: nodes and edges with what a pointer says, and the nodes of clusters."""

    nodes: dict[str, str]
    areas: dict[str, Area]
    edges: list[tuple[str, str, str]]
    clusters: dict[str, tuple[Area, list[str]]]
    wide: float


def drawn(job: Any, path: Path, **options: Any) -> Drawn:
    source = llmir.draw(job, path / "x.dot", **options)
    found = json.loads(subprocess.run(["dot", "-Tjson", source], capture_output=True, check=True).stdout)
    objects = found["objects"]
    nodes = {o["name"]: o.get("tooltip", "") for o in objects if "pos" in o}
    areas = {o["name"]: area(o) for o in objects if "pos" in o}
    clusters = {}
    for cluster in (o for o in objects if o["name"].startswith("cluster")):
        points = [p for op in cluster["_draw_"] for p in op.get("points", [])]
        xs, ys = zip(*points, strict=True)
        inside = [objects[i]["name"] for i in cluster.get("nodes", [])]
        clusters[cluster["name"]] = Area(min(xs), min(ys), max(xs), max(ys)), inside
    edges = [
        (objects[e["tail"]]["name"], objects[e["head"]]["name"], e.get("tooltip", "").replace("\\n", "\n"))
        for e in found.get("edges", [])
    ]
    wide = float(found["bb"].split(",")[2])
    return Drawn({k: v.replace("\\n", "\n") for k, v in nodes.items()}, areas, edges, clusters, wide)


def area(node: dict[str, str]) -> Area:
    x, y = map(float, node["pos"].split(","))
    wide, high = (72 * float(node[name]) / 2 for name in ("width", "height"))
    return Area(x - wide, y - high, x + wide, y + high)


def step(case: str, **sizes: int) -> Any:
    model, pipeline = CASES[case]
    program = llmir.run(llmir.load(model), pipeline)
    return llmir.analyze(
        program, "h200", **records(llmir.analyze, **{"batch": 8, "new": 1, "context": 2048, **sizes})
    )


@needs_dot
@pytest.mark.parametrize("case", CASES)
def test_each_op_of_a_body_is_drawn_once(tmp_path: Path, case: str) -> None:
    report = step(case)
    found = drawn(report, tmp_path)
    paths = [tip.split("\n")[0] for name, tip in found.nodes.items() if re.fullmatch(r"p0_\d+", name)]
    names = Counter(path.rpartition(".")[2] for path in paths)
    program = report.program
    bodies = [g for name, g in program.graphs.items() if name not in program.entries]
    shown = Counter(n.name for g in bodies for n in g.nodes if n.op.runs and not n.op.loop)
    entries = [
        Counter(n.name for n in program[e].nodes if n.op.runs and not n.op.loop) for e in program.entries
    ]
    alike = [e for i, e in enumerate(entries) if not i or e != entries[i - 1]]
    assert names == sum(alike, shown)


@pytest.mark.mostly_slow(10)
@needs_dot
@pytest.mark.parametrize("level", ["layer", "full"])
@pytest.mark.parametrize("case", ["dense", "eager", "experts", "latent", "uneven"])
def test_edges_have_the_bytes_of_the_graph(tmp_path: Path, case: str, level: str) -> None:
    report = step(case, new=3)
    found = drawn(report, tmp_path, level=level)
    at = {
        name: tuple(s for s in tip.split("\n")[0].split(".") if not s.isdigit())
        for name, tip in found.nodes.items()
    }
    ops = {name for name in found.nodes if re.fullmatch(r"p0_\d+", name)}
    said = {(at[a][-2:], at[b][-1]): tip for a, b, tip in found.edges if {a, b} <= ops}
    checked = 0
    for name, graph in report.program.graphs.items():
        if name in report.program.entries:
            continue
        for node in (n for n in graph.nodes if n.op.runs):
            for value in node.operands:
                producer = graph[value.node]
                if producer.op.source or producer.op.zero:
                    continue
                local = graph.type(value).local(report.program.mesh)
                size = units.bytes(float(report.at(local.bytes)))
                sizes = " × ".join(str(round(float(report.at(n)))) for n in local.shape)
                tip = said[(name, value.node), node.name]
                assert f"{str(value)[1:]}: {sizes} {local.dtype}, {size}" in tip.split("\n")
                checked += 1
    assert checked > 5


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_the_terms_of_a_step_add_up_to_it(pp: int, micro_batches: int) -> None:
    how = f"stages{{pp={pp}, micro_batches={micro_batches}}}"
    program = llmir.run(llmir.load("llama3.1-8b"), f"{FUSED},{how}" if pp > 1 else FUSED)
    for new, context in ((64, 0), (1, 512)):
        report = llmir.analyze(program, "h100-sxm", batch=8, new=new, context=context)
        terms = step_terms(outline(report, "p0_"))
        assert sum(t.value for t in terms) == pytest.approx(float(report.time_s), rel=1e-12, abs=0)


@needs_dot
@pytest.mark.parametrize("case", ["dense", "stages", "uneven"])
def test_memory_is_drawn_for_each_stage_and_adds_up(tmp_path: Path, case: str) -> None:
    report = step(case)
    found = drawn(report, tmp_path)
    tips = [tip.split("\n") for name, tip in found.nodes.items() if name.startswith("p0_memory")]
    peaks = {units.bytes(float(s.peak_memory_bytes)) for s in report.stages}
    assert {tip[0].split(" of ")[0].removeprefix("memory ") for tip in tips} == peaks
    for first, *terms in tips:
        whole = amount(first.removeprefix("memory "))
        assert sum(map(amount, terms)) == pytest.approx(whole, rel=0.01)


def amount(words: str) -> float:
    """The number that a text begins with."""
    number, unit, *_ = words.split(" ")
    return float(number.replace(",", "")) * 1000 ** " kMGT".index(unit[0] if len(unit) > 1 else " ")


@pytest.mark.mostly_slow(21)
@needs_dot
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_and_frames_nest(tmp_path: Path, case: str, level: str) -> None:
    if level == "full" and case != "uneven":
        pytest.skip("thousands of nodes; one program says it all")
    found = drawn(step(case), tmp_path, level=level)
    rows = sorted(found.areas.items(), key=lambda item: -item[1].top)
    for i, (one, here) in enumerate(rows):
        for other, there in rows[i + 1 :]:
            if there.top < here.bottom:
                break
            assert here.apart(there), (one, other)
    for (a, (first, _)), (b, (second, _)) in combinations(found.clusters.items(), 2):
        assert first.apart(second) or first.within(second) or second.within(first), (a, b)
    for name, (frame, inside) in found.clusters.items():
        for node in inside:
            assert found.areas[node].within(frame), (node, name)
    assert found.wide <= WIDEST / (2 if level != "full" else 1) + 120


@needs_dot
@pytest.mark.parametrize("level", ["overview", "layer"])
@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_two_steps_are_legible_in_860_pixels(tmp_path: Path, model: str, level: str) -> None:
    assert drawn(job(model), tmp_path, level=level).wide <= WIDEST


@needs_dot
def test_what_crosses_between_stages_is_said_with_bytes_and_time(tmp_path: Path) -> None:
    report = step("stages")
    found = drawn(report, tmp_path)
    sends = [op for op in report.work if op.name.endswith(".send")]
    crossing = [tip for name, tip in found.nodes.items() if name.startswith("p0_cross")]
    assert len(crossing) == 2  # stages 1 and 2 are alike, and drawn once
    for tip in crossing:
        assert units.bytes(float(sends[0].comm_bytes)) in tip and units.time(float(sends[0].time_s)) in tip
        assert "2 × 1 × 8192 bf16" in tip  # a micro-batch of 8 sequences in 4 parts
    stages = [name for name in found.clusters if name.startswith("cluster_stage")]
    assert len(stages) == 3
    for name in stages:
        assert any(node.startswith("p0_memory") for node in found.clusters[name][1])


@needs_dot
def test_pointers_say_equations_and_numbers_and_no_names_of_nodes(tmp_path: Path) -> None:
    report = step("dense")
    graph = report.program["layer"]
    path = llmir.draw(report, tmp_path / "x.svg")
    titles = [t.text or "" for t in ElementTree.parse(path).iter(f"{SVG}title")]
    assert not any(re.search(r"\bp0_|cluster", title) for title in titles)
    for op in (op for op in report.work if op.name.startswith("layer.")):
        node = graph[op.name.removeprefix("layer.")]
        equation = str(node.op.equation(graph.operand_types(node)))
        (title,) = (t for t in titles if t.startswith(f"{op.name}\n"))
        assert f"{node.op.opcode}: {equation}" in title
        assert units.time(float(op.time_s)) in title and str(op.basis) in title


def block() -> Program:
    b = Builder()
    x, up = b.input("bf16[B, T, 4096]", name="x"), b.weight("bf16[4096, 16384]", name="up")
    down = b.weight("bf16[16384, 4096]", name="down")
    h = b.silu(b.linear(x, up, einsum="b t h, h f -> b t f"))
    b.output(b.add(x, b.linear(h, down, einsum="b t f, f h -> b t h")))
    return Program("my block", {"main": b.graph()})


@needs_dot
def test_a_block_of_ones_own_has_its_input_and_its_residual(tmp_path: Path) -> None:
    report = llmir.analyze(block(), "h100-sxm", batch=1, new=512, context=0)
    found = drawn(report, tmp_path)
    text = (tmp_path / "x.dot").read_text("utf-8")
    assert "PREFILL" not in text and f"my block · {units.time(float(report.time_s))}" in text
    (pill,) = (name for name in found.nodes if name.startswith("p0_in"))
    assert found.nodes[pill] == "x: 1 × 512 × 4096 bf16, 4.19 MB"
    heads = {found.nodes[head].split("\n")[0] for tail, head, _ in found.edges if tail == pill}
    assert heads == {"linear", "add"}
    assert len(re.findall(r"-> p0_\d+ \[.*style=dashed", text)) == 1
    whole = drawn(report, tmp_path, level="full")
    assert sum("weight up: 4096 × 16384 bf16, 134 MB" in tip for tip in whole.nodes.values()) == 1


def changes(diff: WorkloadDiff) -> list[StepDiff]:
    return [step for _, step in diff.phases]


def bytes_moved(change: Change) -> str:
    """By how much the bytes grew that a change reads, writes and sends."""
    names = ("read_bytes", "write_bytes", "comm_bytes")
    sides = [
        sum(float(getattr(p, n)) for p in parts for n in names) for parts in (change.before, change.after)
    ]
    grown = sides[1] - sides[0]
    return f"{'+' if grown > 0 else ''}{units.bytes(grown)}" if grown else "bytes as before"


@needs_dot
@pytest.mark.parametrize("case", ["dense", "latent", "uneven"])
def test_a_difference_says_on_its_edges_what_llmir_diff_says(tmp_path: Path, case: str) -> None:
    model, pipeline = CASES[case]
    eager = llmir.load(model)
    sides = (pipeline.replace(f"{FUSED}", "dce") or "dce"), pipeline
    programs = [llmir.run(eager, p) for p in sides]
    diff = llmir.diff(*programs, "h200", prompt=256, generate=4, batch=2)
    assert isinstance(diff, WorkloadDiff)
    found = drawn(diff, tmp_path)
    for i, phase in enumerate(changes(diff)):
        edges = [tip for tail, _, tip in found.edges if tail.startswith(f"d{i}_") and "→ " in tip]
        said = Counter(tip.split("\n")[0].rpartition(": ")[2] for tip in edges)
        expected: Counter[str] = Counter()
        moved = Counter(tip.split("\n")[1] for tip in edges)
        assert moved == Counter(bytes_moved(c) for _, c in fold_changes(phase.changes))
        deltas = [float(c.figure("time_s").delta) for _, c in fold_changes(phase.changes)]
        for delta in deltas:
            expected[f"+{units.time(delta)}" if delta > 0 else units.time(delta)] += 1
        assert said == expected
        assert sum(deltas) == pytest.approx(float(phase.total("time_s").delta), rel=1e-9, abs=0)
        (total,) = (tip for name, tip in found.nodes.items() if name.startswith(f"d{i}_sum"))
        assert all(units.time(float(t)) in total for t in phase.total("time_s"))
    grey = re.findall(r"_op\d+ \[.*fillcolor=\"#f3f4f6\".*dashed", (tmp_path / "x.dot").read_text("utf-8"))
    replaced = [c for s in changes(diff) for c in s.changes if c.what != "changed"]
    assert len(grey) > 0 or not any(c.before for c in replaced)
    rows = sorted(found.areas.items(), key=lambda item: -item[1].top)
    for i, (one, here) in enumerate(rows):
        for other, there in rows[i + 1 :]:
            assert there.top < here.bottom or here.apart(there), (one, other)
    assert found.wide <= WIDEST


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["draw", *arguments])
    return int(ended.value.code or 0)


def test_the_command_draws_two_sides_as_diff_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "x.dot")
    assert run("llama3.2-1b", "--diff", "--pass", "fuse-attention", "--phase", "prefill", "-o", target) == 0
    text = Path(target).read_text("utf-8")
    assert "flash_attention" in text and "scores" in text and "q_proj" in text
    assert capsys.readouterr().out == f"{target}\n"
    assert run("llama3.2-1b", "qwen3-0.6b", "--diff", "-o", target) == 0
    assert "Llama-3.2-1B on H100-SXM → Qwen3-0.6B on H100-SXM" in Path(target).read_text("utf-8")


@needs_dot
def test_a_side_that_does_not_fit_is_drawn(tmp_path: Path) -> None:
    target = tmp_path / "x.svg"
    assert run("qwen3-32b", "--diff", "-o", str(target)) == 0
    text = target.read_text("utf-8")
    assert "largest batch" in text and "0 → 16" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hw-after", "h200"], "--hw-after: requires --diff, because it describes a second side"),
        (["qwen3-0.6b"], "MODEL2: requires --diff, because it describes a second side"),
        (
            ["--diff", "--level", "full"],
            "--level full: cannot be combined with --diff, which draws each op of a layer",
        ),
        (
            ["--diff", "--pipeline", "fuse"],
            "--pipeline: has no effect with --diff; set the passes with --before and --after",
        ),
        (["--diff", "--attention", "eager"], "--attention eager: has no effect with --diff"),
        (["--diff", "--phase", "draft"], "this difference has no draft step; draw its prefill or decode"),
    ],
)
def test_options_that_cannot_act_on_sides_are_refused(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("llama3.2-1b", *arguments, "-o", str(tmp_path / "x.dot")) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_step_over_stages_states_one_total(pp: int) -> None:
    """Every time in its head is that of the step; shares say of how many such times they are."""
    how = f"stages{{pp={pp}}}" if pp > 1 else ""
    program = llmir.run(llmir.load("llama3.1-8b"), ",".join(filter(None, (FUSED, how))))
    report = llmir.analyze(program, "h100-sxm", batch=8, context=2000)
    of = outline(report, "")
    total = units.time(float(report.time_s))
    lines = panel_lines(of)
    assert {each for line in lines for each in re.findall(r"[\d.,]+ [mµn]?s\b", line)} <= {total}
    assert (f"shares: 100% is {pp} stages × {total}" in lines) == (pp > 1)
    assert report.all_stages_s == pytest.approx(pp * report.time_s)
